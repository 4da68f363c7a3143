"""A loss of the trainer, over the targets of one packed row."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

LossUnit = Literal["tokens", "sequences"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The targets of one row; torch tensors are typed `Any` because core imports no torch.

    Shapes: N targets (possibly 0), S samples of the row. `logprobs` [N] carries the gradient; `entropy` [N] (nats, of
    the distribution each target was drawn from), `advantages` [N], and `inference_logprobs` and `teacher_logprobs` [N]
    do not. A stream that the row lacks is None. `sequences` [N] says which sample a target belongs to, ascending from
    0; `sequence_targets` [S] how many targets each sample has, of which some may have none. A sample is never split
    over rows.
    """

    logprobs: Any
    entropy: Any
    advantages: Any
    sequences: Any
    sequence_targets: Any
    inference_logprobs: Any = None
    teacher_logprobs: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossResult:
    """The loss of one row (a scalar tensor) and its metrics, which are added up over rows and ranks.

    `means` is name -> (total, count): the metric of a step is the sum of totals over the sum of counts. `maxima` is
    name -> value. Values are scalar tensors or numbers without gradient; every row gives the same names, one without
    targets too.
    """

    loss: Any
    means: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    maxima: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Loss(Protocol):
    """What is minimised. The record's target is `create(options) -> Loss`."""

    @property
    def streams(self) -> Collection[str]:
        """The optional streams of `LossInputs` that it reads: a batch that lacks one is refused before the step."""
        ...

    @property
    def unit(self) -> LossUnit:
        """What the denominator counts: targets ("tokens"), or samples with at least one ("sequences")."""
        ...

    def __call__(self, inputs: LossInputs, denominator: float) -> LossResult:
        """Return the row's share of the step's loss.

        `denominator` is counted over all rows of the step on all ranks, so that the loss of a step is the plain sum of
        its rows' and neither packing nor accumulation nor the number of ranks changes a gradient. A row without
        targets has a loss of 0 that can still be differentiated.
        """
        ...
