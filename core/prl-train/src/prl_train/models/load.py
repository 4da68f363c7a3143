"""Load a causal language model with transformers, and refuse what is incomplete."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from prl.types import ConfigError

from .vision import attention_of_parts, auto_class

LOG = logging.getLogger("prl.trainer")
AUXILIARY_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "tiktoken.model",
    "spiece.model",
    "vocab.txt",
    "tekken.json",
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
"""What stands beside the weights in a model directory, as patterns; a published one carries what its source has."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def load_model(
    path_or_id: str | Path,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    *,
    attention: str = "sdpa",
) -> Any:
    """Load a model from a directory or a hub id; `attention` is transformers' own name of the implementation.

    A head that the checkpoint has beside the embeddings is the model's, also where its config.json ties the two; its
    `config` then says so. Raises `ConfigError` where the directory has no weights, where the model cannot be found or
    needs code or packages that are not here, where it stays quantized, and where the checkpoint lacks some of the
    model's weights (transformers alone would fill those with random numbers).
    """
    name = str(path_or_id)
    check_directory(name)
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
            loaded: Any = auto_class(config).from_pretrained(
                name,
                dtype=dtype,
                attn_implementation=attention_of_parts(config, attention),
                output_loading_info=True,
                trust_remote_code=False,  # said, so that nobody is asked at a terminal
            )
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise ConfigError(
            f"the model {name!r} cannot be loaded: {str(error).splitlines()[0]}",
            where="model",
            next_step="give a directory with config.json and *.safetensors, or a hub id that this machine can reach",
        ) from error
    model, info = loaded
    if getattr(model.config, "quantization_config", None) is not None:
        raise ConfigError(
            "the model's weights are quantized, and would be neither trained nor published right",
            where=name,
            next_step="give the model's checkpoint in bfloat16 or float32; its config.json has no quantization_config",
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ConfigError(
            f"the weights lack {len(missing)} of the model's tensors, such as {missing[0]!r}",
            where=name,
            next_step="use a complete checkpoint; its architecture is named in config.json",
        )
    if unused := sorted(info["unexpected_keys"]):
        LOG.warning("%s: %d tensors of the weights are not the model's, such as %r", name, len(unused), unused[0])
    if not has_tied_head(model):
        untie(model.config)
    return model.to(device)


def has_tied_head(model: Any) -> bool:
    """Whether the head is the embeddings."""
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    return head is not None and getattr(head, "weight", None) is getattr(embeddings, "weight", head)


def untie(config: Any) -> None:
    """Have a config say that the head is a matrix of its own."""
    for part in (config, config.get_text_config()):
        if getattr(part, "tie_word_embeddings", False):
            part.tie_word_embeddings = False


def empty_model(
    path_or_id: str | Path, dtype: torch.dtype = torch.float32, *, attention: str = "sdpa", tied: bool = True
) -> Any:
    """Make a model of the same shape without its weights: memory is taken only where something is written later.

    `tied` is whether the loaded model's head is its embeddings.
    """
    with quiet_transformers():
        config = AutoConfig.from_pretrained(str(path_or_id), trust_remote_code=False)
        if not tied:
            untie(config)
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
        if "*" in name:
            continue  # the hub is asked for names alone
        cached_file(str(path_or_id), name, _raise_exceptions_for_missing_entries=False)
    return Path(str(cached_file(str(path_or_id), "config.json"))).parent


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep transformers' loading report and progress bar off the terminal; what matters raises."""
    control: Any = transformers_logging
    level, bars = control.get_verbosity(), control.is_progress_bar_enabled()
    control.set_verbosity_error()
    control.disable_progress_bar()
    try:
        yield
    finally:
        control.set_verbosity(level)
        if bars:
            control.enable_progress_bar()
