"""Checks of a trainer's loss: what packing, accumulation and several ranks rely on.

Shapes: N targets, S samples. torch is found when a check runs, never on import.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prl.contracts import Loss, LossInputs, LossResult

from .check import NotApplicable, check, expect

STREAMS = ("inference_logprobs", "teacher_logprobs")
_LENGTHS = (5, 1, 12, 0, 8)
_TOLERANCE = 1e-9


@dataclass
class LossSubject:
    """A loss under check; `streams` and `advantages` are those of its record."""

    name: str
    loss: Loss
    streams: Collection[str] = ()
    advantages: bool = True
    quirks: Mapping[str, str] = field(default_factory=dict)


@check("loss")
def its_streams_and_unit_are_known(subject: LossSubject) -> None:
    """The trainer does not know what the loss needs, or what its denominator counts."""
    streams, unit = set(subject.loss.streams), subject.loss.unit
    unknown = sorted((streams | set(subject.streams)) - set(STREAMS))
    expect(not unknown, f"it reads {unknown}; a batch has {list(STREAMS)}")
    expect(set(subject.streams) <= streams, f"its record says it reads {sorted(subject.streams)}, it {sorted(streams)}")
    expect(unit in ("tokens", "sequences"), f"its unit is {unit!r}, neither 'tokens' nor 'sequences'")


@check("loss")
def the_loss_is_one_finite_number(subject: LossSubject) -> None:
    """A step ends with nan, or with a loss that cannot be added up."""
    result, gradient = _run(subject, _inputs())
    expect(tuple(result.loss.shape) == (), f"the loss has the shape {tuple(result.loss.shape)}")
    expect(math.isfinite(result.loss.item()), f"the loss is {result.loss.item()}")
    expect(bool(_torch().isfinite(gradient).all()), f"the gradient is {gradient.tolist()}")
    expect(bool((gradient != 0).any()), "the gradient is 0 for every target")


@check("loss")
def the_denominator_divides(subject: LossSubject) -> None:
    """The weight of a target depends on the row, the micro-batch or the rank it fell into."""
    one, slope = _run(subject, _inputs(), 1.0)
    seven, part = _run(subject, _inputs(), 7.0)
    _expect_close(seven.loss * 7.0, one.loss, "the loss with a denominator of 7, times 7")
    _expect_close(part * 7.0, slope, "the gradient with a denominator of 7, times 7")


@check("loss")
def rows_add_up(subject: LossSubject) -> None:
    """Packing, gradient accumulation or the number of ranks changes what is trained."""
    whole, slope = _run(subject, _inputs())
    parts = [_run(subject, _inputs(keep=keep)) for keep in ((0, 1), (2,), (3, 4))]
    _expect_close(sum(result.loss for result, _ in parts), whole.loss, "the sum of three rows' losses")
    _expect_close(_torch().cat([gradient for _, gradient in parts]), slope, "the gradients of three rows")
    for name, (total, count) in whole.means.items():
        sums = [sum(float(result.means[name][i]) for result, _ in parts) for i in (0, 1)]
        expect(
            math.isclose(sums[0], float(total), rel_tol=1e-9, abs_tol=1e-9) and sums[1] == float(count),
            f"the metric {name!r} of three rows adds up to {sums}, of one row it is {[float(total), float(count)]}",
        )


@check("loss")
def the_order_of_samples_does_not_matter(subject: LossSubject) -> None:
    """The packer sorts samples; a loss that minds trains something else every time."""
    straight, _ = _run(subject, _inputs(keep=(0, 1, 2, 3, 4)))
    turned, _ = _run(subject, _inputs(keep=(4, 2, 3, 0, 1)))
    _expect_close(turned.loss, straight.loss, "the loss of the same samples in another order")


@check("loss")
def a_row_without_targets_is_nothing(subject: LossSubject) -> None:
    """Ranks that have no row left run an empty one: they hang, or spoil the step of all."""
    whole, _ = _run(subject, _inputs())
    empty, gradient = _run(subject, _inputs(keep=(3,)))
    value = empty.loss.item()
    expect(value == 0.0, f"the loss of a row without targets is {value}")
    expect(gradient.numel() == 0, "the gradient of a row without targets is not empty")
    names = (sorted(empty.means), sorted(empty.maxima))
    expect(names == (sorted(whole.means), sorted(whole.maxima)), f"its metrics are {names}, those of other rows differ")
    counts = [float(count) for _, count in empty.means.values()]
    expect(not any(counts), f"its metrics count {counts} targets")


@check("loss")
def nothing_undeclared_is_read(subject: LossSubject) -> None:
    """A batch that lacks a stream passes the trainer's check and fails in the middle of the step."""
    whole, _ = _run(subject, _inputs())
    absent: dict[str, Any] = {name: None for name in STREAMS if name not in subject.loss.streams}
    without, _ = _run(subject, replace(_inputs(), **absent))
    _expect_close(without.loss, whole.loss, f"the loss without {', '.join(absent) or 'nothing'}")
    if not subject.advantages:
        inputs = _inputs()
        other, _ = _run(subject, replace(inputs, advantages=inputs.advantages * 3 + 1))
        _expect_close(other.loss, whole.loss, "the loss with other advantages, which its record says it does not read")


@check("loss")
def its_inputs_are_left_alone(subject: LossSubject) -> None:
    """Metrics and the next loss read numbers that this one changed."""
    inputs = _inputs()
    names = ("advantages", "entropy", "sequences", "sequence_targets", *STREAMS)
    before = {name: getattr(inputs, name).clone() for name in names}
    _run(subject, inputs)
    changed = [name for name in names if not _torch().equal(before[name], getattr(inputs, name))]
    expect(not changed, f"it changes {', '.join(changed)}")


def _run(subject: LossSubject, inputs: LossInputs, denominator: float = 26.0) -> tuple[LossResult, Any]:
    """Return the loss of a row and its gradient [N] in the log-probabilities."""
    result = subject.loss(inputs, denominator)
    expect(bool(result.loss.requires_grad), "the loss has no gradient in the log-probabilities")
    (gradient,) = _torch().autograd.grad(result.loss, inputs.logprobs)
    return result, gradient


def _inputs(keep: Sequence[int] = range(len(_LENGTHS))) -> LossInputs:
    """Return a row of the chosen samples, always the same numbers for the same sample; float64."""
    torch = _torch()
    lengths = [_LENGTHS[number] for number in keep]

    def drawn(seed: int, low: float, high: float) -> Any:
        parts = []
        for number in keep:
            generator = torch.Generator().manual_seed(100 * seed + number)
            parts.append(torch.rand(_LENGTHS[number], generator=generator, dtype=torch.float64) * (high - low) + low)
        return torch.cat(parts)

    advantages = [(-1.5, 0.4, 2.0, 0.0, -0.3)[number] for number in keep]
    targets = torch.tensor(lengths)
    return LossInputs(
        logprobs=drawn(1, -2.0, -0.1).requires_grad_(),
        entropy=drawn(2, 0.1, 2.0),
        advantages=torch.tensor(advantages, dtype=torch.float64).repeat_interleave(targets),
        sequences=torch.arange(len(lengths)).repeat_interleave(targets),
        sequence_targets=targets,
        inference_logprobs=drawn(3, -2.0, -0.1),
        teacher_logprobs=drawn(4, -2.0, -0.1),
    )


def _expect_close(mine: Any, wanted: Any, what: str) -> None:
    worst = (mine - wanted).abs().max().item() if wanted.numel() else 0.0
    expect(worst <= _TOLERANCE, f"{what} differs by up to {worst:.2e}")


def _torch() -> Any:
    """Find torch, which prl-core does not depend on."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise NotApplicable("torch is not installed") from error
