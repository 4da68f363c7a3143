"""Log-probabilities of targets from hidden states, without the logits of all targets at once.

Shapes: N targets, H hidden size, V vocabulary. Logits exist for one tile of targets and vocabulary at a time; the
backward pass computes them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class HeadForm:
    """What a model does to its head's output x: `softcap * tanh(scale * x / softcap)`, or `scale * x` without a cap."""

    scale: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True, slots=True)
class Tiles:
    """How many targets' logits exist at once, and over how much of the vocabulary (None: all of it)."""

    targets: int = 512
    vocabulary: int | None = None

    def of(self, targets: int, vocabulary: int) -> tuple[list[slice], list[slice]]:
        """Return the tiles' rows and columns."""
        return _slices(targets, self.targets), _slices(vocabulary, self.vocabulary or vocabulary)


def _slices(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def divisors(temperatures: Tensor) -> Tensor:
    """Return what logits are divided by, [N].

    Temperature 0 is greedy sampling, whose engine-side log-probability is that of temperature 1.
    """
    return torch.where(temperatures > 0, temperatures, torch.ones_like(temperatures))


def plain_logprobs(logits: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities [N] of the targets from logits [N, V] and, without gradient, the entropies in nats."""
    scaled = _widened(logits) / divisors(temperatures)[:, None]
    normaliser = torch.logsumexp(scaled, dim=-1)
    logprobs = scaled.gather(1, targets[:, None])[:, 0] - normaliser
    with torch.no_grad():
        expected = (torch.softmax(scaled, dim=-1) * scaled).sum(dim=-1)
    return logprobs, (normaliser - expected).detach()


def fused_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperatures: Tensor,
    *,
    form: HeadForm | None = None,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what `plain_logprobs` gives for the logits of a linear head.

    hidden [N, H], weight [V, H], bias [V] or None, targets and temperatures [N]. Inside an autocast region the products
    run in its dtype, and the weight's gradient is added up in the weight's own.
    """
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    work = (form or HeadForm(), tiles or Tiles(), dtype)
    apply: Any = _FusedLogprobs.apply
    pair: tuple[Tensor, Tensor] = apply(hidden, weight, bias, targets, divisors(temperatures), work)
    return pair


class _FusedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, divisor: Tensor, work: Any
    ) -> tuple[Tensor, Tensor]:
        form, tiles, dtype = work
        head = _Head(hidden, weight, bias, divisor, form, dtype)
        rows, columns = tiles.of(len(hidden), len(weight))
        logprobs, entropy, normaliser = divisor.new_empty(3, len(hidden), dtype=head.wide)
        for row in rows:
            logprobs[row], entropy[row], normaliser[row] = _row_statistics(head, targets, row, columns)
        ctx.save_for_backward(hidden, weight, bias, targets, divisor, normaliser)
        ctx.work = work
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_logprobs: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, divisor, normaliser = ctx.saved_tensors
        form, tiles, dtype = ctx.work
        head = _Head(hidden, weight, bias, divisor, form, dtype)
        rows, columns = tiles.of(len(hidden), len(weight))
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.zeros_like(hidden, dtype=head.wide) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=head.wide) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=head.wide) if needs_bias else None
        for row, column, slope in _slopes(head, targets, normaliser, grad_logprobs, rows, columns):
            narrow = slope.to(dtype)
            if grad_hidden is not None:
                _add_product(grad_hidden[row], narrow, head.weight[column])
            if grad_weight is not None:
                _add_product(grad_weight[column], narrow.T, head.hidden[row])
            if grad_bias is not None:
                grad_bias[column] += slope.sum(0)
        return (
            None if grad_hidden is None else grad_hidden.to(hidden.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
        )


class _Head:
    """The head's operands in the dtype of its products, and its logits tile by tile in at least float32."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, divisor: Tensor, form: HeadForm, dtype: torch.dtype
    ) -> None:
        self.hidden, self.weight = hidden.to(dtype), weight.to(dtype)
        self.bias = None if bias is None else bias.to(dtype)
        self.wide = torch.promote_types(dtype, torch.float32)
        self._divisor = divisor.to(self.wide)
        self._form = form

    def logits(self, row: slice, column: slice) -> tuple[Tensor, Tensor]:
        """Return the tile's logits [n, v] at their temperatures, the caller's to overwrite, and their slope.

        The slope in the head's output is [n, v], or [n, 1] where it is the same for all of the vocabulary.
        """
        bias = None if self.bias is None else self.bias[column]
        raw = functional.linear(self.hidden[row], self.weight[column], bias).to(self.wide)
        divisor = self._divisor[row, None]
        scale, cap = self._form.scale, self._form.softcap
        if cap is None:
            # In place, here and below: memory for one more tile costs more time than the arithmetic on it.
            return (raw if scale == 1.0 else raw.mul_(scale)).div_(divisor), scale / divisor
        bent = torch.tanh(raw * (scale / cap))
        return bent * cap / divisor, (1 - bent * bent) * scale / divisor


def _row_statistics(head: _Head, targets: Tensor, row: slice, columns: list[slice]) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probability, entropy and log-normaliser of the row's targets, each [n]; the vocabulary goes by once.

    Of the logits z seen so far: their maximum, sum exp(z - maximum), and sum exp(z - maximum) z.
    """
    wanted = targets[row]
    top = torch.full(wanted.shape, -torch.inf, dtype=head.wide, device=wanted.device)
    weights, weighted, chosen = torch.zeros_like(top), torch.zeros_like(top), torch.zeros_like(top)
    for column in columns:
        logits, _ = head.logits(row, column)
        highest = torch.maximum(top, logits.amax(-1))
        fade = torch.exp(top - highest)
        shares = (logits - highest[:, None]).exp_()
        weights = weights * fade + shares.sum(-1)
        weighted = weighted * fade + shares.mul_(logits).sum(-1)
        inside, place = _inside(wanted, column)
        chosen = torch.where(inside, logits.gather(1, place[:, None])[:, 0], chosen)
        top = highest
    normaliser = top + torch.log(weights)
    return chosen - normaliser, normaliser - weighted / weights, normaliser


def _slopes(
    head: _Head, targets: Tensor, normaliser: Tensor, grad: Tensor, rows: list[slice], columns: list[slice]
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield each tile with the gradient [n, v] of its part of the head's output."""
    for row in rows:
        outer = grad[row].to(head.wide)
        for column in columns:
            logits, inner = head.logits(row, column)
            weight = outer[:, None] * inner
            slope = logits.sub_(normaliser[row, None]).exp_().mul_(-weight)
            inside, place = _inside(targets[row], column)
            chosen = weight.expand_as(slope).gather(1, place[:, None])[:, 0]
            slope.scatter_add_(1, place[:, None], torch.where(inside, chosen, torch.zeros_like(chosen))[:, None])
            yield row, column, slope


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a product to the total, without a tensor of its own where both have one dtype."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _inside(targets: Tensor, column: slice) -> tuple[Tensor, Tensor]:
    """Return which targets [n] lie in the column's part of the vocabulary, and their place in it (0 elsewhere)."""
    inside = (targets >= column.start) & (targets < column.stop)
    return inside, torch.where(inside, targets - column.start, torch.zeros_like(targets))


def _widened(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
