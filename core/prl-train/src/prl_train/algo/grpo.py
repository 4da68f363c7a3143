"""The default policy loss: importance ratio against the engine's own log-probabilities, masked on large mismatch."""

from __future__ import annotations

import torch
from torch import Tensor

from prl.contracts import LossInputs, LossResult

from .options import GrpoOptions
from .terms import count, mismatch, normalised, unit_of, where


class GrpoLoss:
    """loss = (sum_k -(tau_a A r) + sum tau_k (log r)^2) / denominator.

    r = exp(lp_train - lp_inference), A the advantage, k the kept tokens. The gradient flows through r; there is no
    clip.
    """

    def __init__(self, options: GrpoOptions) -> None:
        self.options = options
        self.unit = unit_of(options)
        self.streams = ("inference_logprobs", "teacher_logprobs") if options.teacher_weight else ("inference_logprobs",)

    def __call__(self, inputs: LossInputs, denominator: float) -> LossResult:
        """Return the loss of a row, with `mismatch_kl`, `dropped_share` and the like as metrics."""
        options, logprobs = self.options, inputs.logprobs
        log_ratio = logprobs - inputs.inference_logprobs
        dropped = self._dropped(logprobs.detach(), inputs)
        # The ratio of a dropped token is not even computed: were it inf, its masked gradient would be nan.
        ratio = where(~dropped, log_ratio).exp()
        weight = options.advantage_weight * inputs.advantages
        if options.teacher_weight:
            weight = weight + options.teacher_weight * (inputs.teacher_logprobs - logprobs.detach())
        terms = options.kl_weight * log_ratio * log_ratio - where(~dropped, weight * ratio)
        means, maxima = mismatch(log_ratio)
        kl = torch.expm1(log_ratio.detach().double()) - log_ratio.detach().double()
        means["mismatch_kl_dropped"] = (where(dropped, kl).sum(), count(dropped))
        means["dropped_share"] = (count(dropped), float(dropped.numel()))
        return LossResult(loss=normalised(terms, inputs, options, denominator), means=means, maxima=maxima)

    def _dropped(self, logprobs: Tensor, inputs: LossInputs) -> Tensor:
        """Test the raw advantage: the trust region is about the sampled action, not about the teacher's correction."""
        difference = logprobs.exp() - inputs.inference_logprobs.exp()
        above, below = difference > self.options.drop_above, difference < -self.options.drop_below
        return torch.where(inputs.advantages > 0, above, below)


def create(options: GrpoOptions) -> GrpoLoss:
    """Create the loss."""
    return GrpoLoss(options)
