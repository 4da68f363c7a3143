"""What a model's tokens see of a row, found out by asking it.

Attention is told where documents end. A layer that carries a state from token to token (a linear attention, a
state-space layer, a convolution) is not. A model with attention of its own is told nothing at all, not even that
tokens must not see those after them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from prl.types import ConfigError, MicroBatch

_LENGTH = 12
_NOISE = {torch.float32: 1e-4}
_HALF_NOISE = 5e-2
"""A log-probability may change by this much where nothing but the neighbour did: experts work on other batches."""


def keeps_documents_apart(config: Any, logprobs_of: Callable[[MicroBatch], Tensor], dtype: torch.dtype) -> bool:
    """Return whether a document's log-probabilities are the same behind one neighbour as behind another.

    `logprobs_of` gives those of a row's targets. In a world of processes all must call this. Raises `ConfigError` where
    tokens see what comes after them.
    """
    ids = _plain_ids(config)
    document, neighbour, another = (_text(ids, step) for step in (0, 1, 3))
    changed = [*document[:-1], another[-1]]
    rows = [_row(neighbour, document), _row(neighbour, changed), _row(another, document)]
    first, later, behind = (logprobs_of(row).float() for row in rows)
    noise = _NOISE.get(dtype, _HALF_NOISE)
    if not _is_same(first[:-1], later[:-1], noise):
        raise ConfigError(
            "the model's tokens see those after them: it does not attend through the attention kernels",
            where=f"a {config.get_text_config().model_type} model",
            next_step="train a causal model whose attention transformers lets others provide",
        )
    return _is_same(first, behind, noise)


def check_layers(config: Any) -> None:
    """Raise `ConfigError` for layers whose attention no kernel is told of: it would be computed as another one."""
    text = config.get_text_config()
    if "chunked_attention" in (getattr(text, "layer_types", None) or ()):
        raise ConfigError(
            "the model attends within chunks of its context, which attention kernels are not told of",
            where=f"layer_types of a {text.model_type} model",
            next_step="train another model: with this one, tokens would see others that they never see in an engine",
        )


def _plain_ids(config: Any) -> list[int]:
    """Return token ids that stand for nothing but text."""
    parts = (config, config.get_text_config())
    special = {value for part in parts for name, value in vars(part).items() if name.endswith("token_id")}
    size = int(config.get_text_config().vocab_size)
    return [token for token in range(min(size, 4 * _LENGTH)) if token not in special]


def _text(ids: list[int], step: int) -> list[int]:
    """Return one of several texts, each different from the others almost everywhere."""
    return [ids[((step + 1) * place + step) % len(ids)] for place in range(_LENGTH)]


def _is_same(one: Tensor, other: Tensor, noise: float) -> bool:
    return bool(((one - other).abs() <= noise).all())


def _row(neighbour: list[int], document: list[int]) -> MicroBatch:
    length = len(neighbour) + len(document)
    return MicroBatch(
        input_ids=[*neighbour, *document],
        position_ids=[*range(len(neighbour)), *range(len(document))],
        cu_seqlens=[0, len(neighbour), length],
        loss_mask=[False] * (len(neighbour) + 1) + [True] * (len(document) - 1),
        advantages=[0.0] * length,
        inference_logprobs=None,
        temperatures=[1.0] * length,
    )
