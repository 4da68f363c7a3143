"""One forward pass over a packed row, down to the log-probability of every target.

Shapes: T tokens of the row, N targets (tokens whose `loss_mask` is set), V vocabulary.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from prl.types import ConfigError, MicroBatch
from prl_train.attention.binding import BoundKernel, PackedCall
from prl_train.data.packing import check_row


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of one row; all tensors [N]. `positions[j]` is the row's token that target j is."""

    positions: Tensor
    logprobs: Tensor
    entropy: Tensor


def forward_targets(
    model: Any, batch: MicroBatch, bound: BoundKernel, *, device: torch.device, autocast: torch.dtype | None = None
) -> Targets:
    """Return the log-probability of each target under the model, at the temperature it was sampled with.

    Target i is predicted by token i - 1, so the logits of only those contexts are computed. The row's padding is a
    document of its own.
    """
    check_row(batch)
    length = len(batch.input_ids)
    positions = torch.tensor([i for i, wanted in enumerate(batch.loss_mask) if wanted], device=device)
    targets = torch.tensor(batch.input_ids, device=device)
    # The batch axis of transformers' models stays 1: the row is one sequence of several documents.
    with _precision(device, autocast):
        logits = model(
            input_ids=targets[None],
            position_ids=torch.tensor(batch.position_ids, device=device)[None],
            packed=_packed_call(batch, bound, length, device),
            logits_to_keep=positions - 1,
            use_cache=False,
            **_multimodal(batch, device),
        ).logits[0]
    temperatures = torch.tensor(batch.temperatures, device=device)[positions]
    logprobs, entropy = _logprobs(logits, targets[positions], temperatures)
    return Targets(positions, logprobs, entropy)


def _packed_call(batch: MicroBatch, bound: BoundKernel, length: int, device: torch.device) -> PackedCall:
    boundaries = list(batch.cu_seqlens)
    if boundaries[-1] < length:
        boundaries.append(length)
    longest = max(end - start for start, end in pairwise(boundaries))
    return PackedCall(bound, torch.tensor(boundaries, dtype=torch.int32, device=device), longest)


def _logprobs(logits: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of the targets and, without gradient, the distribution's entropy in nats.

    Temperature 0 is greedy sampling, whose engine-side log-probability is that of temperature 1.
    """
    divisor = torch.where(temperatures > 0, temperatures, torch.ones_like(temperatures))
    scaled = logits.float() / divisor[:, None]  # [N, V]
    normaliser = torch.logsumexp(scaled, dim=-1)
    logprobs = scaled.gather(1, targets[:, None])[:, 0] - normaliser
    with torch.no_grad():
        expected = (torch.softmax(scaled, dim=-1) * scaled).sum(dim=-1)
    return logprobs, (normaliser - expected).detach()


def _precision(device: torch.device, autocast: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if autocast is None else torch.autocast(device.type, dtype=autocast)


def _multimodal(batch: MicroBatch, device: torch.device) -> dict[str, Any]:
    """Return the image inputs of the model's processor, where the row has any."""
    if batch.pixel_values is None:
        return {}
    if batch.image_grid_thw is None:
        raise ConfigError(
            "a row has pixel_values but no image_grid_thw",
            where="a packed row",
            next_step="carry both from the model's image processor into the sample",
        )
    return {
        "pixel_values": torch.as_tensor(batch.pixel_values, device=device),
        "image_grid_thw": torch.as_tensor(batch.image_grid_thw, device=device),
    }
