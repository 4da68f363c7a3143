"""Loading a checkpoint with transformers, refusing whatever would serve random or wrong weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from prl.types import ConfigError

from .options import LocalEngineOptions

WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")


def check_model_directory(model: str) -> None:
    """Raise `ConfigError` where `model` is a directory without a config or without weights."""
    path = Path(model)
    if not path.exists():
        if path.is_absolute() or model.startswith((".", "~")):
            raise ConfigError(
                f"no model directory {model!r}",
                where="[engine] model",
                next_step="give an existing directory or a hub id",
            )
        return
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"{model!r} holds no config.json, so it is no model directory",
            where="[engine] model",
            next_step="give the directory that save_pretrained wrote",
        )
    if not any(next(path.glob(pattern), None) for pattern in WEIGHT_PATTERNS):
        raise ConfigError(
            f"{model!r} has a config but no weights",
            where=f"[engine] model; looked for {' and '.join(WEIGHT_PATTERNS)}",
            next_step="copy the weight files there, or give the directory that has them",
        )


def resolve_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"unknown device {name!r}", where="[engine] device", next_step='use "auto", "cpu" or "cuda"'
        ) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device {name!r} is asked for, but torch sees no GPU",
            where="[engine] device",
            next_step='use device = "cpu", or install a torch build for this GPU',
        )
    return device


def load_model(options: LocalEngineOptions) -> Any:
    """Return the model in evaluation mode on its device; raise `ConfigError` if any weight is missing."""
    import transformers

    factory: Any = transformers.AutoModelForCausalLM
    check_model_directory(options.model)
    device = resolve_device(options.device)
    try:
        with _no_progress_bar():
            model, info = factory.from_pretrained(
                options.model,
                dtype=_dtype(options.dtype, device),
                attn_implementation=options.attention,
                trust_remote_code=options.trust_remote_code,
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigError(
            f"transformers cannot load {options.model!r}: {_first_line(error)}",
            where="[engine] model",
            next_step="check the directory or hub id, and that transformers knows this architecture",
        ) from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise ConfigError(
            f"{len(missing)} weights of the model are not in the checkpoint, such as {missing[0]!r}",
            where=f"[engine] model = {options.model!r}",
            next_step="give a complete checkpoint: missing weights would be random numbers",
        )
    return model.to(device).requires_grad_(False).eval()


def context_length(model: Any, wanted: int | None) -> int:
    """Return the context in tokens: what is asked for, at most what the model's config allows."""
    limit: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    context = limit if wanted is None else wanted
    if context is None:
        raise ConfigError(
            "the model's config names no max_position_embeddings",
            where="[engine] max_model_len",
            next_step="set max_model_len to the context in tokens",
        )
    if limit is not None and context > limit:
        raise ConfigError(
            f"max_model_len = {context} is more than the model's {limit} positions",
            where="[engine] max_model_len",
            next_step=f"use at most {limit}",
        )
    return context


@contextlib.contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Keep transformers' bar off the terminal: a run draws its own."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _dtype(name: str, device: torch.device) -> torch.dtype | str:
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
    return torch.float32 if device.type == "cpu" else "auto"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
