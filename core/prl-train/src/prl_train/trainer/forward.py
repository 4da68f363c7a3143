"""One forward pass over a packed row, down to the log-probability of every target.

Shapes: T tokens of the row, N targets (tokens whose `loss_mask` is set), S tokens of this rank's shard of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from prl.trajectory.routed import NO_ROUTE
from prl.types import ConfigError, MicroBatch
from prl_train.attention.binding import BoundKernel, PackedCall
from prl_train.data.packing import check_row
from prl_train.models.replay import ROUTES, RouterReplay
from prl_train.models.vision import image_inputs

from .head import FusedHead, find_head
from .logprob import Tiles, plain_logprobs

if TYPE_CHECKING:
    from prl_train.attention.context_parallel import RowPlan


_CACHED = 4096
"""Part of the vocabulary for which a tile of float32 logits fits a CPU's cache; the head then takes 2/3 of the time."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of one row; all tensors [N]. `positions[j]` is the row's token that target j is."""

    positions: Tensor
    logprobs: Tensor
    entropy: Tensor


def forward_targets(
    model: Any,
    batch: MicroBatch,
    bound: BoundKernel,
    *,
    device: torch.device,
    autocast: torch.dtype | None = None,
    head: FusedHead | None = None,
    replay: RouterReplay | None = None,
    plan: RowPlan | None = None,
) -> Targets:
    """Return the log-probability of each target under the model, at the temperature it was sampled with.

    Target i is predicted by token i - 1, so the logits of only those contexts are computed, and with `head` never all
    at once. The row's padding is a document of its own. `replay` sends tokens to the experts that the sampler used.
    With `plan` each rank runs its shard of the row, and all get every target.
    """
    check_row(batch)
    _check_ids(model, batch.input_ids)
    ids = torch.tensor(batch.input_ids, device=device)
    positions = torch.tensor([i for i, wanted in enumerate(batch.loss_mask) if wanted], device=device, dtype=torch.long)
    temperatures = torch.tensor(batch.temperatures, device=device)[positions]
    inputs = _inputs(model, batch, bound, ids, replay)
    contexts, targets = positions - 1, ids[positions]
    if plan is not None:
        inputs = _shard(inputs, plan, bound)
        which, contexts = plan.owned(contexts)
        targets, temperatures = targets[which], temperatures[which]
    logprobs, entropy = _run(model, inputs, contexts, targets, temperatures, autocast, head)
    if replay is not None and ROUTES in inputs:
        replay.confirm()
    if plan is not None:
        logprobs, entropy = (_gathered(values, contexts, plan)[positions - 1] for values in (logprobs, entropy))
    return Targets(positions, logprobs, entropy.detach())


def _check_ids(model: Any, ids: Sequence[int]) -> None:
    """Raise `ConfigError` for a token that the model has no embedding of: on a GPU, its lookup ends the process."""
    known = int(model.get_input_embeddings().weight.shape[0])
    if ids and not 0 <= min(ids) <= max(ids) < known:
        place, wrong = next((place, token) for place, token in enumerate(ids) if not 0 <= token < known)
        raise ConfigError(
            f"token id {wrong} is none of the model's {known}",
            where=f"token {place} of a packed row",
            next_step="use the model's own tokenizer; tokens that were added to it need embeddings (resize them first)",
        )


def prepare_head(
    model: Any, bound: BoundKernel, device: torch.device, tiles: Tiles, *, autocast: torch.dtype | None = None
) -> FusedHead | None:
    """Find out how the model's head can be fused, with a pass over a row of two tokens; None where it cannot."""
    if tiles.vocabulary is None and device.type == "cpu" and autocast is None:
        # In half precision the gain is small, and the sum of many rounded products is not what one product gives.
        tiles = replace(tiles, vocabulary=_CACHED)
    borders = torch.tensor([0, 2], dtype=torch.int32, device=device)
    tokens = torch.zeros(1, 2, dtype=torch.long, device=device)
    inputs = {
        "input_ids": tokens,
        "position_ids": torch.arange(2, device=device)[None],
        "packed": PackedCall(bound, borders, 2),
    }
    with _precision(device, autocast):
        return find_head(model, lambda: _logits(model, inputs, torch.arange(2, device=device)), tiles)


def _inputs(
    model: Any, batch: MicroBatch, bound: BoundKernel, ids: Tensor, replay: RouterReplay | None
) -> dict[str, Any]:
    """Return the model's inputs for the whole row; the batch axis stays 1: the row is one sequence of documents."""
    device = ids.device
    borders = list(batch.cu_seqlens)
    if borders[-1] < len(batch.input_ids):
        borders.append(len(batch.input_ids))
    longest = max(end - start for start, end in pairwise(borders))
    inputs: dict[str, Any] = {
        "input_ids": ids[None],
        "position_ids": torch.tensor(batch.position_ids, device=device)[None],
        "packed": PackedCall(bound, torch.tensor(borders, dtype=torch.int32, device=device), longest),
    }
    if replay is not None:
        inputs |= replay.inputs(batch, device)
    return inputs | image_inputs(model, batch, borders, device)


def _run(
    model: Any,
    inputs: dict[str, Any],
    contexts: Tensor,
    targets: Tensor,
    temperatures: Tensor,
    autocast: torch.dtype | None,
    head: FusedHead | None,
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies of the targets, each predicted at its context."""
    with _precision(contexts.device, autocast):
        if head is not None:
            return head.score(lambda: _logits(model, inputs, contexts), targets, temperatures)
        logits = _logits(model, inputs, contexts)[0]
    return plain_logprobs(logits, targets, temperatures)


def _logits(model: Any, inputs: dict[str, Any], contexts: Tensor) -> Tensor:
    logits: Tensor = model(**inputs, logits_to_keep=contexts, use_cache=False).logits
    return logits


def _shard(inputs: dict[str, Any], plan: RowPlan, bound: BoundKernel) -> dict[str, Any]:
    """Return this rank's part of the inputs."""
    if "pixel_values" in inputs:
        raise ConfigError(
            "a row with images cannot be divided over ranks: the image's features belong to the whole row",
            where="context parallelism",
            next_step="train vision-language models with context parallelism 1",
        )
    parts = {name: plan.shard(inputs[name][0])[None] for name in ("input_ids", "position_ids")}
    if ROUTES in inputs:
        parts[ROUTES] = plan.shard(inputs[ROUTES], fill=NO_ROUTE)
    return parts | {"packed": plan.call(bound)}


def _gathered(values: Tensor, contexts: Tensor, plan: RowPlan) -> Tensor:
    """Return [T], every rank's values at their contexts and 0 where no target was predicted."""
    return plan.gather(values.new_zeros(plan.shard_length).index_put((contexts,), values))


def _precision(device: torch.device, autocast: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if autocast is None else torch.autocast(device.type, dtype=autocast)
