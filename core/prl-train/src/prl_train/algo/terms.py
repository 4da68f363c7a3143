"""What losses share: from terms of tokens to one loss, and how far trainer and engine are apart.

Shapes: N targets, S samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from prl.contracts import LossInputs
from prl.contracts.loss import LossUnit

from .options import NormalisedOptions

Means = dict[str, tuple[Any, Any]]


def unit_of(options: NormalisedOptions) -> LossUnit:
    """Return what the step's denominator counts."""
    return "tokens" if options.normalise == "tokens" else "sequences"


def normalised(terms: Tensor, inputs: LossInputs, options: NormalisedOptions, denominator: float) -> Tensor:
    """Return the loss of the terms [N] of a row: a scalar."""
    if options.normalise == "sequences":
        terms = terms / inputs.sequence_targets[inputs.sequences]
    return terms.sum() / (denominator * (options.constant_length or 1))


def where(condition: Tensor, values: Tensor) -> Tensor:
    """Return the values where the condition holds and 0 elsewhere; a product with 0 would turn inf into nan."""
    return torch.where(condition, values, torch.zeros_like(values))


def count(flags: Tensor) -> Tensor:
    """Return how many flags are set, in float64: it is added up over many rows."""
    return flags.sum(dtype=torch.float64)


def mismatch(log_ratio: Tensor) -> tuple[Means, dict[str, Any]]:
    """Return the metrics of log r = lp_train - lp_inference [N]: means and maxima."""
    ratios = log_ratio.detach().double()
    number = float(ratios.numel())
    # expm1 keeps the tiny values of an on-policy step, which r - 1 - log r loses to rounding.
    kl = torch.expm1(ratios) - ratios
    means: Means = {"mismatch_kl": (kl.sum(), number), "importance_ratio": (ratios.exp().sum(), number)}
    return means, {"max_logprob_diff": ratios.abs().max() if ratios.numel() else 0.0}
