"""Losses that bound the importance ratio: per token (`ppo-clip`, `cispo`) and per sample (`gspo`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from prl.contracts import LossInputs, LossResult
from prl.contracts.loss import LossUnit

from .options import CispoOptions, GspoOptions, PpoClipOptions
from .terms import count, mismatch, normalised, unit_of

STREAMS = ("inference_logprobs",)


def clipped_terms(log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return -min(r A, clip(r, 1 - low, 1 + high) A), and where the clip is what counts; all of one shape.

    The exponential of a clipped ratio is never taken: were it inf, its gradient of 0 would be nan.
    """
    too_high = (advantages > 0) & (log_ratio.detach() > math.log1p(high))
    too_low = (advantages < 0) & (log_ratio.detach() < math.log1p(-low))
    is_clipped = too_high | too_low
    bound = torch.where(too_high, torch.full_like(log_ratio, 1.0 + high), torch.full_like(log_ratio, 1.0 - low))
    ratio = torch.where(is_clipped, torch.zeros_like(log_ratio), log_ratio).exp()
    return -advantages * torch.where(is_clipped, bound, ratio), is_clipped


class PpoClipLoss:
    """loss = sum over tokens of -min(r A, clip(r) A)."""

    streams = STREAMS

    def __init__(self, options: PpoClipOptions) -> None:
        self.options = options
        self.unit = unit_of(options)

    def __call__(self, inputs: LossInputs, denominator: float) -> LossResult:
        """Return the loss of a row; `clipped_share` counts tokens that have no gradient."""
        options = self.options
        log_ratio = inputs.logprobs - inputs.inference_logprobs
        terms, is_clipped = clipped_terms(log_ratio, inputs.advantages, options.clip_low, options.clip_high)
        means, maxima = mismatch(log_ratio)
        means["clipped_share"] = (count(is_clipped), float(is_clipped.numel()))
        return LossResult(loss=normalised(terms, inputs, options, denominator), means=means, maxima=maxima)


class CispoLoss:
    """loss = sum over tokens of -min(r, max_ratio) A lp_train, the first factor without gradient."""

    streams = STREAMS

    def __init__(self, options: CispoOptions) -> None:
        self.options = options
        self.unit = unit_of(options)

    def __call__(self, inputs: LossInputs, denominator: float) -> LossResult:
        """Return the loss of a row; `clipped_share` counts tokens whose weight was capped (they keep a gradient)."""
        log_ratio = inputs.logprobs - inputs.inference_logprobs
        ratio = log_ratio.detach().exp()
        terms = -ratio.clamp(max=self.options.max_ratio) * inputs.advantages * inputs.logprobs
        means, maxima = mismatch(log_ratio)
        means["clipped_share"] = (count(ratio > self.options.max_ratio), float(ratio.numel()))
        return LossResult(loss=normalised(terms, inputs, self.options, denominator), means=means, maxima=maxima)


class GspoLoss:
    """loss = mean over samples of -min(s A, clip(s) A), log s the mean of log r over the sample's targets.

    A sample's advantage is the mean over its targets.
    """

    streams = STREAMS
    unit: LossUnit = "sequences"

    def __init__(self, options: GspoOptions) -> None:
        self.options = options

    def __call__(self, inputs: LossInputs, denominator: float) -> LossResult:
        """Return the loss of a row; `clipped_share` counts samples that have no gradient."""
        log_ratio = inputs.logprobs - inputs.inference_logprobs
        present = inputs.sequence_targets > 0
        mean_log_ratio = _sample_means(log_ratio, inputs)[present]
        advantages = _sample_means(inputs.advantages, inputs)[present]
        terms, is_clipped = clipped_terms(mean_log_ratio, advantages, self.options.clip_low, self.options.clip_high)
        means, maxima = mismatch(log_ratio)
        samples = float(is_clipped.numel())
        means["clipped_share"] = (count(is_clipped), samples)
        means["sequence_ratio"] = (mean_log_ratio.detach().double().exp().sum(), samples)
        return LossResult(loss=terms.sum() / denominator, means=means, maxima=maxima)


def _sample_means(values: Tensor, inputs: LossInputs) -> Tensor:
    """Return the mean of the values [N] of each sample [S]; 0 for a sample without targets."""
    sums = values.new_zeros(len(inputs.sequence_targets)).index_add(0, inputs.sequences, values)
    means: Tensor = sums / inputs.sequence_targets.clamp(min=1)
    return means


def create_ppo_clip(options: PpoClipOptions) -> PpoClipLoss:
    """Create the token-level clipped loss."""
    return PpoClipLoss(options)


def create_cispo(options: CispoOptions) -> CispoLoss:
    """Create the capped-weight loss."""
    return CispoLoss(options)


def create_gspo(options: GspoOptions) -> GspoLoss:
    """Create the sample-level clipped loss."""
    return GspoLoss(options)
