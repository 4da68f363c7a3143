"""Reading a safetensors directory: proven whole and fitting before any model is touched, then streamed.

Light enough for the front end (which checks values) and the workers (which check that they see the same files).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from prl.serving.checkpoints import (
    Shapes,
    check_finite,
    check_listed,
    check_shapes,
    differ,
    problem,
    read_index,
    weight_files,
)

EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"


def read_shapes(directory: str) -> Shapes:
    """Return every tensor's name and shape from the files' headers; raise `WeightLoadError` where one is broken."""
    shapes: dict[str, tuple[int, ...]] = {}
    index = read_index(Path(directory))
    for file in weight_files(Path(directory), index):
        with _open(file) as tensors:
            for name in list(tensors.keys()):
                if name in shapes:
                    raise problem(f"{name!r} is in two files", directory)
                shapes[name] = tuple(tensors.get_slice(name).get_shape())
    check_listed(index, shapes, Path(directory))
    return shapes


def stream(directory: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) one at a time, so that a large model is never whole in memory twice."""
    for file in weight_files(Path(directory), read_index(Path(directory))):
        with _open(file) as tensors:
            for name in list(tensors.keys()):
                yield name, tensors.get_tensor(name)


def check_fits(shapes: Shapes, expected: Shapes, where: str, *, tied: bool) -> None:
    """Raise `WeightLoadError` unless names and shapes are those of the served checkpoint.

    With `tied`, the output head may be given or left out on either side: it is the embedding.
    """
    wanted = dict(expected)
    embedding = next((name for name in expected if name.endswith(EMBEDDING)), None)
    heads = {name for name in {*shapes, *expected} if tied and name.endswith(HEAD)}
    if embedding is not None:
        wanted |= dict.fromkeys(heads, expected[embedding])
    check_shapes(shapes, wanted, where, optional=heads)


def check_values(directory: str, *, tied: bool) -> None:
    """Raise `WeightLoadError` where values of the directory's tensors are wrong; see `check_tensors`."""
    check_tensors(stream(directory), f"directory {directory!r}", tied=tied)


def check_tensors(tensors: Iterable[tuple[str, Any]], where: str, *, tied: bool) -> None:
    """Raise `WeightLoadError` for values that are not finite, and for a tied head that differs from its embedding."""
    import torch

    ends: dict[str, Any] = {}
    for name, tensor in tensors:
        check_finite(name, tensor, where)
        if tied and name.endswith((EMBEDDING, HEAD)):
            ends[name] = tensor
    if len(ends) == 2:
        (first, one), (second, other) = ends.items()
        if not torch.equal(one, other):
            raise differ(first, second, where)


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
        raise problem(f"{file.name} cannot be read: {error}", file.parent) from error
