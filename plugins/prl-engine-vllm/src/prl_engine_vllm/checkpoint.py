"""Reading a safetensors directory: proven whole and fitting before any model is touched, then streamed.

Light enough for the front end (which checks values) and the workers (which check that they see the same files).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import WeightLoadError

INDEX = "model.safetensors.index.json"
EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
TOLD = 200  # characters of another program's message

Shapes = dict[str, tuple[int, ...]]


def read_shapes(directory: str) -> Shapes:
    """Return every tensor's name and shape from the files' headers; raise `WeightLoadError` where one is broken."""
    shapes: Shapes = {}
    index = _index(Path(directory))
    for file in _files(Path(directory), index):
        with _open(file) as tensors:
            for name in list(tensors.keys()):
                if name in shapes:
                    raise problem(f"{name!r} is in two files", directory)
                shapes[name] = tuple(tensors.get_slice(name).get_shape())
    if absent := sorted(index.keys() - shapes.keys()):
        raise problem(f"{INDEX} lists {absent[0]!r}, but no file holds it", directory)
    return shapes


def stream(directory: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) one at a time, so that a large model is never whole in memory twice."""
    for file in _files(Path(directory), _index(Path(directory))):
        with _open(file) as tensors:
            for name in list(tensors.keys()):
                yield name, tensors.get_tensor(name)


def check_fits(shapes: Shapes, expected: Mapping[str, tuple[int, ...]], where: str, *, tied: bool) -> None:
    """Raise `WeightLoadError` unless names and shapes are those of the served checkpoint.

    With `tied`, the output head may be given or left out on either side: it is the embedding.
    """
    wanted = dict(expected)
    embedding = next((name for name in expected if name.endswith(EMBEDDING)), None)
    heads = {name for name in {*shapes, *expected} if tied and name.endswith(HEAD)}
    if embedding is not None:
        wanted |= dict.fromkeys(heads, expected[embedding])
    if unknown := sorted(shapes.keys() - wanted.keys()):
        raise refused(f"the model has no {_some(unknown)}", where)
    if missing := sorted(wanted.keys() - shapes.keys() - heads):
        raise refused(f"it lacks {_some(missing)}", where)
    for name, shape in shapes.items():
        if shape != tuple(wanted[name]):
            raise refused(f"{name!r} has shape {list(shape)}, the model's is {list(wanted[name])}", where)


def check_values(directory: str, *, tied: bool) -> None:
    """Raise `WeightLoadError` where values of the directory's tensors are wrong; see `check_tensors`."""
    check_tensors(stream(directory), f"directory {directory!r}", tied=tied)


def check_tensors(tensors: Iterable[tuple[str, Any]], where: str, *, tied: bool) -> None:
    """Raise `WeightLoadError` for values that are not finite, and for a tied head that differs from its embedding."""
    import torch

    ends: dict[str, Any] = {}
    for name, tensor in tensors:
        # types of one byte have no infinities to look for, and torch has no such look
        if tensor.is_floating_point() and tensor.element_size() > 1 and not bool(torch.isfinite(tensor).all()):
            raise refused(f"{name!r} holds values that are not finite", where)
        if tied and name.endswith((EMBEDDING, HEAD)):
            ends[name] = tensor
    if len(ends) == 2:
        (first, one), (second, other) = ends.items()
        if not torch.equal(one, other):
            raise refused(f"{first!r} and {second!r} are tied in the model but differ", where)


def problem(what: str, directory: str) -> WeightLoadError:
    """Return the error of a directory that was refused before anything was touched."""
    return refused(what, f"directory {directory!r}")


def refused(what: str, where: str) -> WeightLoadError:
    """Return the error of weights that were refused before anything was touched."""
    return WeightLoadError(
        f"weights not loaded: {what}",
        where=where,
        next_step="publish complete weights of the served model; the previous weights keep serving",
    )


def served_directory(model: str, load_format: str) -> str | None:
    """Return the directory that vLLM took the model from: itself, or its place in the hub's cache; None for none."""
    if load_format == "dummy":
        return None
    if Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return str(snapshot_download(model, local_files_only=True, allow_patterns=["*.safetensors", "*.json"]))
    except (LocalEntryNotFoundError, HfHubHTTPError, ValueError) as error:
        raise problem(f"the served checkpoint, to compare with, is not on this machine: {error}", model) from error


def _open(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(str(file), framework="pt")
    except (SafetensorError, OSError) as error:
        raise problem(f"{file.name} cannot be read: {error}", str(file.parent)) from error


def _index(directory: Path) -> dict[str, str]:
    path = directory / INDEX
    try:
        if not path.is_file():
            return {}
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise problem(f"{INDEX} is not a weights index ({str(error)[:TOLD]})", str(directory)) from error


def _files(directory: Path, index: Mapping[str, str]) -> list[Path]:
    try:
        is_there = directory.is_dir()
    except (OSError, ValueError) as error:
        raise problem(f"the path cannot be read: {str(error)[:TOLD]}", str(directory)) from error
    if not is_there:
        raise problem("there is no such directory", str(directory))
    names = sorted(set(index.values())) or sorted(path.name for path in directory.glob("*.safetensors"))
    if not names:
        raise problem("it holds no *.safetensors file", str(directory))
    for name in names:
        if Path(name).name != name or not (directory / name).is_file():
            raise problem(f"{INDEX} names {name!r}, which is not a file there", str(directory))
    return [directory / name for name in names]


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
