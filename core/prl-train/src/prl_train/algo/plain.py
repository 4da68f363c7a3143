"""Losses without importance ratio: the plain policy gradient, and supervised cross-entropy."""

from __future__ import annotations

from prl.contracts import LossInputs, LossResult

from .options import CrossEntropyOptions, PolicyGradientOptions
from .terms import normalised, unit_of


class PolicyGradientLoss:
    """loss = sum over tokens of -A lp_train."""

    streams = ()

    def __init__(self, options: PolicyGradientOptions) -> None:
        self.options = options
        self.unit = unit_of(options)

    def __call__(self, inputs: LossInputs, denominator: float) -> LossResult:
        """Return the loss of a row; the metric `nll` is the mean negative log-probability of the targets."""
        terms = -inputs.advantages * inputs.logprobs
        return LossResult(loss=normalised(terms, inputs, self.options, denominator), means=_nll(inputs))


class CrossEntropyLoss:
    """loss = sum over tokens of -lp_train."""

    streams = ()

    def __init__(self, options: CrossEntropyOptions) -> None:
        self.options = options
        self.unit = unit_of(options)

    def __call__(self, inputs: LossInputs, denominator: float) -> LossResult:
        """Return the loss of a row; the metric `nll` is the mean negative log-probability of the targets."""
        return LossResult(loss=normalised(-inputs.logprobs, inputs, self.options, denominator), means=_nll(inputs))


def _nll(inputs: LossInputs) -> dict[str, tuple[object, float]]:
    logprobs = inputs.logprobs.detach().double()
    return {"nll": (-logprobs.sum(), float(logprobs.numel()))}


def create_policy_gradient(options: PolicyGradientOptions) -> PolicyGradientLoss:
    """Create the plain policy gradient."""
    return PolicyGradientLoss(options)


def create_cross_entropy(options: CrossEntropyOptions) -> CrossEntropyLoss:
    """Create the supervised loss."""
    return CrossEntropyLoss(options)
