"""Load a causal language model with transformers, and refuse what is incomplete."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig
from transformers.utils import logging
from transformers.utils.hub import cached_file

from prl.types import ConfigError

from .vision import attention_of_parts, auto_class

AUXILIARY_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "tiktoken.model",
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
"""What stands beside the weights in a model directory; a published directory carries what its source has."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def load_model(
    path_or_id: str | Path,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    *,
    attention: str = "sdpa",
) -> Any:
    """Load a model from a directory or a hub id; `attention` is transformers' own name of the implementation.

    Raises `ConfigError` where the directory has no weights, where the model cannot be found, and where the checkpoint
    lacks some of the model's weights (transformers alone would fill those with random numbers).
    """
    name = str(path_or_id)
    check_directory(name)
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(name)
            loaded: Any = auto_class(config).from_pretrained(
                name, dtype=dtype, attn_implementation=attention_of_parts(config, attention), output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigError(
            f"the model {name!r} cannot be loaded: {str(error).splitlines()[0]}",
            where="model",
            next_step="give a directory with config.json and *.safetensors, or a hub id that this machine can reach",
        ) from error
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        raise ConfigError(
            f"the weights lack {len(missing)} of the model's tensors, such as {missing[0]!r}",
            where=name,
            next_step="use a complete checkpoint; its architecture is named in config.json",
        )
    return model.to(device)


def empty_model(path_or_id: str | Path, dtype: torch.dtype = torch.float32, *, attention: str = "sdpa") -> Any:
    """Make a model of the same shape without its weights: memory is taken only where something is written later."""
    with quiet_transformers():
        config = AutoConfig.from_pretrained(str(path_or_id))
        with torch.device("meta"):
            model: Any = auto_class(config).from_config(
                config, dtype=dtype, attn_implementation=attention_of_parts(config, attention)
            )
    model.to_empty(device="cpu")
    model.tie_weights()
    return model


def check_directory(name: str) -> None:
    """Raise `ConfigError` for a path that is no directory, or a directory that holds no model."""
    path = Path(name)
    if not path.exists():
        if name.count("/") <= 1 and not name.startswith((".", "/", "~")):
            return  # the form of a hub id
        raise ConfigError(
            f"there is no model at {name!r}",
            where="model",
            next_step="check the path, or give a hub id such as 'owner/name'",
        )
    if not (path / "config.json").is_file():
        raise ConfigError(
            "the model directory has no config.json",
            where=str(path),
            next_step="give the directory that holds config.json",
        )
    if not any(next(path.glob(pattern), None) for pattern in _WEIGHTS):
        raise ConfigError(
            "the model directory has no weights (*.safetensors)",
            where=str(path),
            next_step="finish the download, or start from scratch with a [model.scratch] section",
        )


def source_directory(path_or_id: str | Path) -> Path:
    """Return the directory that holds the model's files, its hub snapshot for a hub id."""
    path = Path(path_or_id)
    if path.is_dir():
        return path
    for name in AUXILIARY_FILES:  # bring the small files into the snapshot
        cached_file(str(path_or_id), name, _raise_exceptions_for_missing_entries=False)
    return Path(str(cached_file(str(path_or_id), "config.json"))).parent


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' loading report and progress bar off the terminal; what matters raises."""
    control: Any = logging
    level, bars = control.get_verbosity(), control.is_progress_bar_enabled()
    control.set_verbosity_error()
    control.disable_progress_bar()
    try:
        yield
    finally:
        control.set_verbosity(level)
        if bars:
            control.enable_progress_bar()
