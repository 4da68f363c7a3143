"""The policy loss: importance ratio against the engine's own log-probabilities, with a mask on large mismatch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .loss_config import LossConfig


@dataclass(slots=True)
class LossSums:
    """Sums over the targets of one micro-batch; add them up over a step, then divide by counts."""

    tokens: float = 0.0
    dropped: float = 0.0
    mismatch_kl: float = 0.0
    mismatch_kl_dropped: float = 0.0
    log_ratio_squared: float = 0.0
    ratio: float = 0.0
    max_logprob_diff: float = 0.0

    def add(self, other: LossSums) -> None:
        """Add another micro-batch's sums."""
        self.tokens += other.tokens
        self.dropped += other.dropped
        self.mismatch_kl += other.mismatch_kl
        self.mismatch_kl_dropped += other.mismatch_kl_dropped
        self.log_ratio_squared += other.log_ratio_squared
        self.ratio += other.ratio
        self.max_logprob_diff = max(self.max_logprob_diff, other.max_logprob_diff)

    def metrics(self) -> dict[str, float]:
        """Return means over targets."""
        count = max(self.tokens, 1.0)
        return {
            "mismatch_kl": self.mismatch_kl / count,
            "mismatch_kl_dropped": self.mismatch_kl_dropped / max(self.dropped, 1.0),
            "dropped_share": self.dropped / count,
            "importance_ratio": self.ratio / count,
            "max_logprob_diff": self.max_logprob_diff,
        }


def policy_loss(
    logprobs: Tensor,
    inference_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    denominator: float,
    config: LossConfig | None = None,
    teacher_logprobs: Tensor | None = None,
) -> tuple[Tensor, LossSums]:
    """Return the loss of one micro-batch and its metrics; all tensors [N], one entry per target candidate.

    With r = exp(lp_train - lp_inference), m the mask and k the kept tokens of m:
    loss = (sum_k -(tau_a A r) + sum_m tau_k (log r)^2) / denominator. The gradient flows through r; there is no clip.
    `denominator` is the number of targets of the whole step over all ranks, so that packing and gradient accumulation
    do not change the result.
    """
    config = config or LossConfig()
    log_ratio = torch.where(loss_mask, logprobs - inference_logprobs, torch.zeros_like(logprobs))
    dropped = loss_mask & _is_dropped(logprobs, inference_logprobs, advantages, config)
    kept = loss_mask & ~dropped
    # The ratio of a dropped token is not even computed: were it inf, its masked gradient would be nan.
    ratio = torch.where(kept, log_ratio, torch.zeros_like(log_ratio)).exp()
    weight = config.advantage_weight * advantages
    if config.teacher_weight > 0 and teacher_logprobs is not None:
        weight = weight + config.teacher_weight * (teacher_logprobs - logprobs.detach())
    policy = torch.where(kept, weight * ratio, torch.zeros_like(ratio)).sum()
    penalty = (log_ratio * log_ratio).sum()
    loss = (config.kl_weight * penalty - policy) / denominator
    return loss, _sums(log_ratio.detach(), loss_mask, dropped)


def _is_dropped(logprobs: Tensor, inference_logprobs: Tensor, advantages: Tensor, config: LossConfig) -> Tensor:
    """Test the raw advantage: the trust region is about the sampled action, not about the teacher's correction."""
    difference = logprobs.detach().exp() - inference_logprobs.exp()
    return torch.where(advantages > 0, difference > config.drop_above, difference < -config.drop_below)


def _sums(log_ratio: Tensor, loss_mask: Tensor, dropped: Tensor) -> LossSums:
    log_ratio = log_ratio.double()
    # expm1 keeps the tiny values of an on-policy step, which r - 1 - log r loses to rounding.
    kl = torch.expm1(log_ratio) - log_ratio
    values = torch.stack(
        [
            loss_mask.sum().double(),
            dropped.sum().double(),
            kl.sum(),
            torch.where(dropped, kl, torch.zeros_like(kl)).sum(),
            (log_ratio * log_ratio).sum(),
            torch.where(loss_mask, log_ratio.exp(), torch.zeros_like(kl)).sum(),
            log_ratio.abs().amax() if log_ratio.numel() else log_ratio.new_zeros(()),
        ]
    )
    return LossSums(*values.tolist())  # one transfer from the device, not seven
