"""Publish weights: a model directory that any engine loads, whole or absent."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from prl_train.errors import CheckpointError
from prl_train.models.load import AUXILIARY_FILES
from prl_train.storage import is_sealed, read_sealed, write_sealed

WEIGHTS_MARKER = "weights.json"
"""The file that says a weights directory is whole: `{"version": N, "files": {name: {"size", "sha256"}}}`."""
_PREFIX = "version_"


def write_weights(parent: Path, model: Any, version: int, *, dtype: torch.dtype, source: Path) -> Path:
    """Write `parent/version_N` with config, safetensors in `dtype` and the tokenizer files of `source`."""

    def fill(directory: Path) -> None:
        for name in AUXILIARY_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, directory / name)
        _save_config(model, dtype, directory)
        save_file(_tensors(model, dtype), directory / "model.safetensors", metadata={"format": "pt"})

    return write_sealed(parent / f"{_PREFIX}{version:06d}", WEIGHTS_MARKER, {"version": version}, fill, durable=False)


def _tensors(model: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the model's tensors by name, each storage once: a tied head is the embedding and is not written twice."""
    tensors: dict[str, torch.Tensor] = {}
    written: set[int] = set()
    tied = set(getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ())
    state: dict[str, torch.Tensor] = model.state_dict()
    for name, tensor in sorted(state.items(), key=lambda item: item[0] in tied):
        is_shared = tensor.data_ptr() in written
        if is_shared and name in tied:
            continue
        written.add(tensor.data_ptr())
        value = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype)
        # Tensors that share storage without being declared tied are written twice: a loader will not tie them again.
        tensors[name] = value.clone() if is_shared else value.contiguous()
    return tensors


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
    whole = (path for path in sorted(Path(parent).glob(f"{_PREFIX}*"), reverse=True) if is_sealed(path, WEIGHTS_MARKER))
    return next(whole, None)


def remove_old_weights(parent: str | Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` weights directories; return what was removed."""
    if keep < 1:
        raise CheckpointError("at least one weights directory must stay", where=str(parent), next_step="use keep >= 1")
    old = sorted(Path(parent).glob(f"{_PREFIX}*"))[:-keep]
    for path in old:
        shutil.rmtree(path)
    return old
