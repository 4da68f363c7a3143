"""Publish weights: a model directory that any engine loads, or one of adapters, whole or absent."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from prl_train.distributed.sharding import whole
from prl_train.distributed.world import World
from prl_train.errors import CheckpointError
from prl_train.models.load import AUXILIARY_FILES
from prl_train.models.lora import adapted_layers, adapter_tensors, merged, plain_name, save_adapter_config
from prl_train.models.saved_names import as_saved, saved_in_groups
from prl_train.storage import is_sealed, numbered, read_sealed, remove_directory, write_sealed

WEIGHTS_MARKER = "weights.json"
"""The file that says a weights directory is whole: `{"version": N, "files": {name: {"size", "sha256"}}}`."""
DEFAULT_FILE_BYTES = 5 * 10**9
_PREFIX = "version_"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One tensor on its way out; `gather` is a collective where weights are divided."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    bytes: int
    gather: Callable[[], Tensor]
    is_shared: bool = False

    def read(self) -> Tensor:
        """Return the tensor as it is written."""
        ready = self.gather().to("cpu", self.dtype)
        # A file must not hold one storage under two names.
        return ready.clone() if self.is_shared else ready.contiguous()


def write_weights(
    parent: Path,
    model: Any,
    version: int,
    *,
    dtype: torch.dtype,
    source: Path,
    world: World | None = None,
    file_bytes: int = DEFAULT_FILE_BYTES,
) -> Path:
    """Write `parent/version_N` with config, safetensors in `dtype` and the tokenizer files of `source`.

    Every process must call it; the main one writes. More than `file_bytes` become several files and an index. Adapters
    are added to the weights they change.
    """

    def describe(directory: Path) -> None:
        for found in (path for pattern in AUXILIARY_FILES for path in source.glob(pattern)):
            target = directory / found.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(found, target)
        _save_config(model, dtype, directory)

    files = _files(list(outgoing_tensors(model, dtype)), file_bytes, "model")
    return _publish(parent, version, files, describe, world or World())


def write_adapter(parent: Path, model: Any, version: int, *, dtype: torch.dtype, world: World | None = None) -> Path:
    """Write `parent/version_N` with the adapters alone, as peft and engines with LoRA read them."""
    tensors = [_plain(name, tensor, dtype) for name, tensor in adapter_tensors(model)]
    files = {"adapter_model.safetensors": tensors}

    def describe(directory: Path) -> None:
        save_adapter_config(model, directory)

    return _publish(parent, version, files, describe, world or World())


def _publish(
    parent: Path, version: int, files: dict[str, list[Outgoing]], describe: Callable[[Path], None], world: World
) -> Path:
    target = parent / f"{_PREFIX}{version:06d}"

    def fill(directory: Path) -> None:
        describe(directory)
        for name, outgoing in files.items():
            # File after file, so that never more than one is in memory.
            save_file({one.name: one.read() for one in outgoing}, directory / name, metadata={"format": "pt"})
        if len(files) > 1:
            _write_index(directory, files)

    if world.is_main:
        write_sealed(target, WEIGHTS_MARKER, {"version": version}, fill, durable=False)
    else:
        for outgoing in files.values():
            for one in outgoing:
                one.gather()
    world.wait()
    return target


def outgoing_tensors(model: Any, dtype: torch.dtype) -> Iterator[Outgoing]:
    """Yield the model's tensors under their checkpoint names, each storage once.

    A tied head is the embedding and is not written twice. Read or gather them in order: tensors that are one in memory
    and many in a checkpoint are gathered together, once.
    """
    held = {one.name: one for one in _held_tensors(model, dtype)}
    shapes = {name: torch.empty(one.shape, dtype=one.dtype, device="meta") for name, one in held.items()}
    for names, saved in saved_in_groups(model, shapes):
        if list(saved) == names:
            yield from (held[name] for name in names)
        else:
            yield from _Group(model, [held[name] for name in names]).parts(saved)


class _Group:
    """Tensors of the model that a checkpoint divides otherwise; they are in memory from the first part to the last."""

    def __init__(self, model: Any, sources: Sequence[Outgoing]) -> None:
        self._model = model
        self._sources = sources
        self._left: dict[str, Tensor] = {}

    def parts(self, saved: Mapping[str, Tensor]) -> Iterator[Outgoing]:
        """Yield what goes out in place of the sources."""
        for name, tensor in saved.items():
            size = tensor.numel() * tensor.dtype.itemsize
            yield Outgoing(name, tensor.dtype, tensor.shape, size, partial(self._take, name), is_shared=True)

    def _take(self, name: str) -> Tensor:
        if name not in self._left:
            self._left = as_saved(self._model, {one.name: one.gather() for one in self._sources})
        return self._left.pop(name)


def _held_tensors(model: Any, dtype: torch.dtype) -> Iterator[Outgoing]:
    """Yield the model's tensors under its own names, each storage once."""
    written: set[Any] = set()
    tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
    parameters = dict(model.named_parameters(remove_duplicate=False))
    adapted = adapted_layers(model)
    is_exact = _exact_names(model)
    state: dict[str, Tensor] = model.state_dict()
    for inner, tensor in sorted(state.items(), key=lambda item: plain_name(item[0]) in tied):
        name = plain_name(inner)
        if name is None:
            continue
        storage = _storage(tensor, parameters.get(inner))
        is_shared = storage in written
        if is_shared and name in tied:
            continue
        written.add(storage)
        # Tensors that share storage without being declared tied are written twice: a loader will not tie them again.
        kind = torch.float32 if is_exact(name) else dtype
        yield _plain(name, tensor, kind, layer=adapted.get(name), is_shared=is_shared)


def _exact_names(model: Any) -> Callable[[str], bool]:
    """Return which tensors are float32 in every checkpoint, as the model's class has it.

    The biases by which routers choose experts are such: half precision is coarser than what tells the experts apart.
    """
    parts = sorted(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    pattern = re.compile("|".join(rf"(^|\.){re.escape(part)}(\.|$)" for part in parts) or r"(?!)")
    return lambda name: pattern.search(name) is not None


def _storage(tensor: Tensor, parameter: nn.Parameter | None) -> Any:
    """Return what two names of one storage have in common; a divided tensor has no storage of its own to look at."""
    return ("parameter", id(parameter)) if isinstance(tensor, DTensor) else tensor.data_ptr()


def _plain(name: str, tensor: Tensor, dtype: torch.dtype, *, layer: Any = None, is_shared: bool = False) -> Outgoing:
    kind = dtype if tensor.is_floating_point() else tensor.dtype

    def gather() -> Tensor:
        value = whole(tensor.detach())
        return value if layer is None else merged(value, layer).detach()

    return Outgoing(name, kind, tensor.shape, tensor.numel() * kind.itemsize, gather, is_shared)


def _files(outgoing: Sequence[Outgoing], limit: int, stem: str) -> dict[str, list[Outgoing]]:
    """Divide tensors over files of at most `limit` bytes (one tensor may be larger), named as transformers does."""
    groups: list[list[Outgoing]] = [[]]
    size = 0
    for one in outgoing:
        if groups[-1] and size + one.bytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += one.bytes
    if len(groups) == 1:
        return {f"{stem}.safetensors": groups[0]}
    return {f"{stem}-{n:05d}-of-{len(groups):05d}.safetensors": group for n, group in enumerate(groups, start=1)}


def _write_index(directory: Path, files: dict[str, list[Outgoing]]) -> None:
    index = {
        "metadata": {"total_size": sum(one.bytes for group in files.values() for one in group)},
        "weight_map": {one.name: name for name, group in files.items() for one in group},
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def _save_config(model: Any, dtype: torch.dtype, directory: Path) -> None:
    """Write config.json without the trainer's own attention name, which other programs do not know."""
    before = model.config.dtype
    model.config.dtype = dtype
    try:
        model.config.save_pretrained(directory)
    finally:
        model.config.dtype = before


def read_weights(directory: str | Path, *, verify: bool = False) -> int:
    """Return the version of a weights directory; raise `CheckpointError` where it is not whole."""
    return int(read_sealed(Path(directory), WEIGHTS_MARKER, verify=verify)["version"])


def latest_weights(parent: str | Path) -> Path | None:
    """Return the newest whole weights directory below `parent`, or None."""
    found = reversed(numbered(parent, _PREFIX))
    return next((path for _, path in found if is_sealed(path, WEIGHTS_MARKER)), None)


def remove_old_weights(parent: str | Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` weights directories; return what was removed."""
    if keep < 1:
        raise CheckpointError("at least one weights directory must stay", where=str(parent), next_step="use keep >= 1")
    old = [path for _, path in numbered(parent, _PREFIX)][:-keep]
    for path in old:
        remove_directory(path)
    return old
