"""Where rows lie: JSON Lines files, and what the `datasets` library reads. A row is read when it is asked for."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from prl_train.errors import DataError
from prl_train.storage import file_sha256


class RowStore(Protocol):
    """Rows by their number; can be pickled, so that other processes read the same rows."""

    def __len__(self) -> int:
        """Return how many rows there are."""
        ...

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        """Return one row."""
        ...

    def where(self, index: int) -> str:
        """Return how people find the row."""
        ...

    def fingerprint(self) -> str:
        """Return what is equal for equal contents: a resumed run must see the same rows."""
        ...


class JsonlRows:
    """A JSON Lines file of any size: only the places of its lines are kept in memory."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise DataError(
                "the data file does not exist", where=str(path), next_step="check `data` in the configuration file"
            )
        self.path = path
        self._places = array("q", _places(path))
        self._file: Any = None

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        if self._file is None:
            self._file = self.path.open("rb")
        self._file.seek(self._places[index])
        return parse_row(self._file.readline(), self.where(index))

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_places": self._places, "_file": None}

    def where(self, index: int) -> str:
        """Return the file and the row's number, from 1, empty lines not counted."""
        return f"{self.path}, row {index + 1}"

    def fingerprint(self) -> str:
        """Return the file's sha256."""
        return file_sha256(self.path)


def _places(path: Path) -> Iterator[int]:
    place = 0
    with path.open("rb") as lines:
        for line in lines:
            if line.strip():
                yield place
            place += len(line)


def parse_row(line: bytes, where: str) -> dict[str, Any]:
    """Return the object that a line holds; raise `DataError` for a line that holds none."""
    try:
        row = json.loads(line)
    except ValueError as error:
        what = error.msg if isinstance(error, json.JSONDecodeError) else "the text is not UTF-8"
        raise DataError(f"not JSON: {what}", where=where, next_step="write one JSON object a line") from error
    if not isinstance(row, dict):
        raise DataError("the row is not an object", where=where, next_step="write one JSON object a line")
    return row


class DatasetRows:
    """Rows of a `datasets.Dataset`, which lie in memory-mapped Arrow files.

    Arrow gives every struct of a column the fields of all of them, null where a row had none: arguments of other tools,
    properties of other schemas. Such nulls are left out; what was null in the row itself cannot be told from them, and
    is kept in texts of JSON alone (and as the null content of a message).
    """

    def __init__(self, dataset: Any, name: str, contents: str) -> None:
        self._dataset = dataset
        self._name = name
        self._contents = contents

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        row: dict[str, Any] = self._dataset[index]
        return {name: _unpadded(value, self._dataset.features.get(name)) for name, value in row.items()}

    def where(self, index: int) -> str:
        """Return the data set and the row's number, from 1."""
        return f"{self._name}, row {index + 1}"

    def fingerprint(self) -> str:
        """Return what names the contents: the files' sums, or the library's own fingerprint."""
        return self._contents


def _unpadded(value: Any, feature: Any) -> Any:
    """Return a value without the null fields of its structs; `feature` is its type, and a dict where it is a struct."""
    if isinstance(value, Mapping) and isinstance(feature, Mapping):
        kept = ("content",) if "role" in feature else ()
        return {
            name: _unpadded(part, feature.get(name)) for name, part in value.items() if part is not None or name in kept
        }
    element = feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", None)
    if isinstance(value, list) and element is not None:
        return [_unpadded(part, element) for part in value]
    return value


def files_fingerprint(paths: list[Path]) -> str:
    """Return one sum over the contents of files, in order."""
    return hashlib.sha256("".join(file_sha256(path) for path in paths).encode()).hexdigest()
