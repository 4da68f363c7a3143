"""Open what a `path` of a configuration names: a file, a directory, or a data set of the Hugging Face hub."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
from pathlib import Path
from typing import Any

from prl.types import ConfigError
from prl_train.errors import DataError

from .row_stores import DatasetRows, JsonlRows, RowStore, files_fingerprint

LOG = logging.getLogger("prl.sft")
INSTALL = "pip install 'prl-train[data]'"
_SAVED = ("state.json", "dataset_dict.json")


def open_rows(
    path: str, *, split: str = "train", subset: str | None = None, revision: str | None = None
) -> list[RowStore]:
    """Return the stores that a path names, in a fixed order.

    path: a `.parquet` file; any other file as JSON Lines; a directory that `Dataset.save_to_disk` wrote, or one of such
        files; a hub id such as `owner/name`. `split`, `subset` and `revision` choose within a data set; a directory of
        files has splits where the name of each file, or of its folder, ends with one.

    Raises `DataError` or `ConfigError` where there is nothing, or the library to read it is not installed.
    """
    place = Path(path)
    if place.is_file():
        return [_file(place)]
    if place.is_dir():
        if any((place / name).is_file() for name in _SAVED):
            return [_saved(place, split)]
        return [_file(found) for found in _of_split(_files(place), place, split)]
    if place.suffix or place.is_absolute() or path.startswith("."):
        raise DataError("the data file does not exist", where=path, next_step="check `data` in the configuration file")
    return [_hub(path, split, subset, revision)]


def _files(directory: Path) -> list[Path]:
    found = sorted(path for path in directory.rglob("*") if path.suffix in (".jsonl", ".ndjson", ".json", ".parquet"))
    if not found:
        raise DataError(
            "the directory holds no data files",
            where=str(directory),
            next_step="give .jsonl or .parquet files, or what `Dataset.save_to_disk` wrote",
        )
    return found


_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\b.*")
_LAST_WORD = re.compile(r"(?:.*[^a-z])?([a-z]+)[-_.]?\d*")
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
"""A word in the name of a file or folder -> the split that the `datasets` library takes it for."""


def _of_split(files: list[Path], directory: Path, split: str) -> list[Path]:
    """Return the files of a split; all of them where their names tell of no other.

    Raises `ConfigError` where only some names tell: a guess would leave out rows to train, or train those to test.
    """
    named = {path: _split_of(path.relative_to(directory)) for path in files}
    splits = {found for found in named.values() if found is not None}
    untold = next((path for path in files if named[path] is None), None)
    other = next((path for path in files if named[path] not in (None, "train")), None)
    if untold and other:
        raise ConfigError(
            f"{other.name} is named for the split {named[other]!r}, and {untold.name} for none",
            where=str(directory),
            next_step="give the files that you want as `sources`, or put them in a folder of their own",
        )
    wanted = _SPLITS.get(split, split)
    if not splits or (len(splits) == 1 and wanted in ("train", *splits)):
        return files
    found = [path for path in files if named[path] == wanted]
    if not found:
        raise ConfigError(
            f"there is no split {split!r}",
            where=str(directory),
            next_step=f"choose one of: {', '.join(sorted(splits))}",
        )
    LOG.warning("%s: %d of %d files are of the split %r, by their names", directory, len(found), len(files), split)
    return found


def _split_of(path: Path) -> str | None:
    """Return the split that names end with: `data/train_sft-00000-of-00003.parquet`, `gsm8k_test.jsonl`, `dev/1.jsonl`.

    "dev-notes" and "test-runs" are about something else; "latest" is one word.
    """
    shard = _SHARD.fullmatch(path.name)
    if shard and shard[1].isidentifier():
        return _SPLITS.get(shard[1], shard[1])
    in_name = _LAST_WORD.fullmatch((shard[1] if shard else path.stem).lower())
    words = [in_name[1] if in_name else "", *(part.lower() for part in reversed(path.parts[:-1]))]
    return next((_SPLITS[word] for word in words if word in _SPLITS), None)


def _file(path: Path) -> RowStore:
    if path.suffix != ".parquet":
        return JsonlRows(path)
    made = _library().Dataset
    try:
        is_empty = importlib.import_module("pyarrow.parquet").read_metadata(path).num_rows == 0
        dataset = made.from_dict({}) if is_empty else made.from_parquet(str(path))  # which refuses a file without rows
    except (OSError, ValueError, _library().exceptions.DatasetsError) as error:
        raise DataError(
            f"not a parquet file that can be read: {_reason(error)}",
            where=str(path),
            next_step="write it anew, or give the rows as .jsonl",
        ) from error
    return DatasetRows(dataset, str(path), files_fingerprint([path]))


def _saved(directory: Path, split: str) -> RowStore:
    try:
        loaded = _library().load_from_disk(str(directory))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"not a saved data set that can be read: {_reason(error)}",
            where=str(directory),
            next_step="save it anew with `Dataset.save_to_disk`, or give the rows as .jsonl",
        ) from error
    dataset = _one_split(loaded, split, str(directory))
    return DatasetRows(dataset, str(directory), files_fingerprint(sorted(directory.rglob("*.arrow"))))


def _hub(name: str, split: str, subset: str | None, revision: str | None) -> RowStore:
    library = _library()
    try:
        dataset = library.load_dataset(name, subset, split=split, revision=revision)
    except (OSError, ValueError, library.exceptions.DatasetsError) as error:
        raise DataError(
            f"the data set cannot be loaded: {_reason(error)}",
            where=f"{name!r} on the Hugging Face hub, split {split!r}",
            next_step="check the id, `split` and `subset`, log in for a private one, or give a local path",
        ) from error
    return DatasetRows(dataset, name, str(dataset._fingerprint))


def _one_split(loaded: Any, split: str, where: str) -> Any:
    if not isinstance(loaded, dict):
        return loaded
    if split not in loaded:
        raise ConfigError(
            f"there is no split {split!r}", where=where, next_step=f"choose one of: {', '.join(sorted(loaded))}"
        )
    return loaded[split]


def _library() -> Any:
    if importlib.util.find_spec("datasets") is None:
        raise ConfigError(
            "parquet files and data sets need the package `datasets`", where="[data]", next_step=f"Run: {INSTALL}"
        )
    return importlib.import_module("datasets")


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
