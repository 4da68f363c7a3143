"""Distillation on the student's own samples: reverse KL to a teacher's log-probabilities."""

from __future__ import annotations

from prl.contracts import LossInputs, LossResult

from .options import DistillationOptions
from .terms import count, mismatch, normalised, unit_of, where


class DistillationLoss:
    """loss = (sum_k -(w (lp_teacher - lp_train) r) + sum tau_k (log r)^2) / denominator.

    r = exp(lp_train - lp_inference), k the kept tokens; lp_teacher - lp_train has no gradient. On the student's own
    samples, where r = 1, its gradient is that of KL(student || teacher) at those tokens.
    """

    streams = ("inference_logprobs", "teacher_logprobs")

    def __init__(self, options: DistillationOptions) -> None:
        self.options = options
        self.unit = unit_of(options)

    def __call__(self, inputs: LossInputs, denominator: float) -> LossResult:
        """Return the loss of a row; the metric `teacher_kl` is the mean of lp_train - lp_teacher."""
        options, logprobs = self.options, inputs.logprobs
        log_ratio = logprobs - inputs.inference_logprobs
        dropped = logprobs.detach().exp() - inputs.inference_logprobs.exp() < -options.drop_below
        gap = inputs.teacher_logprobs - logprobs.detach()
        ratio = where(~dropped, log_ratio).exp()
        terms = options.kl_weight * log_ratio * log_ratio - options.teacher_weight * where(~dropped, gap * ratio)
        means, maxima = mismatch(log_ratio)
        means["teacher_kl"] = (-gap.double().sum(), float(gap.numel()))
        means["dropped_share"] = (count(dropped), float(dropped.numel()))
        return LossResult(loss=normalised(terms, inputs, options, denominator), means=means, maxima=maxima)


def create(options: DistillationOptions) -> DistillationLoss:
    """Create the loss."""
    return DistillationLoss(options)
