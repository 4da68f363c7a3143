"""Options of the losses; no torch here, so that a configuration can be checked without it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Normalise = Literal["tokens", "sequences", "constant"]


class LossOptions(BaseModel):
    """Base of the losses' options; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NormalisedOptions(LossOptions):
    """How the terms of single tokens become one loss."""

    normalise: Normalise = Field(
        default="tokens",
        description="mean over all targets; mean over samples of each sample's mean; or sum over `constant_length`",
    )
    constant_length: int | None = Field(
        default=None, ge=1, description="targets a sample's sum is divided by with normalise = 'constant'"
    )

    @model_validator(mode="after")
    def _constant_has_its_length(self) -> NormalisedOptions:
        if (self.normalise == "constant") != (self.constant_length is not None):
            raise ValueError("`constant_length` and normalise = 'constant' go together")
        return self


class GrpoOptions(NormalisedOptions):
    """Importance ratio per token, with a mask where trainer and engine disagree; names follow the formula.

    A token is dropped from the policy term where its advantage is positive and p_train - p_inference exceeds
    `drop_above`, or where it is not positive and the difference is under `-drop_below`: there an update would push the
    two policies further apart.
    """

    drop_above: float = Field(default=0.2, ge=0.0, description="largest p_train - p_inference for advantages > 0")
    drop_below: float = Field(default=0.2, ge=0.0, description="largest p_inference - p_train for advantages <= 0")
    advantage_weight: float = Field(default=1.0, ge=0.0, description="tau_a: weight of the policy term")
    kl_weight: float = Field(default=1e-3, ge=0.0, description="tau_k: weight of (log r)^2")
    teacher_weight: float = Field(
        default=0.0, ge=0.0, description="tau_t: weight of lp_teacher - lp_train in the advantage"
    )


class GspoOptions(LossOptions):
    """One importance ratio per sample: the geometric mean of its tokens' ratios, clipped (arXiv 2507.18071)."""

    clip_low: float = Field(default=3e-4, gt=0.0, lt=1.0, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(default=4e-4, gt=0.0, description="the ratio is clipped above 1 + clip_high")


class PpoClipOptions(NormalisedOptions):
    """Importance ratio per token, clipped where the advantage would drive it further from 1 (arXiv 1707.06347)."""

    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0, description="the ratio is clipped below 1 - clip_low")
    clip_high: float = Field(default=0.2, gt=0.0, description="the ratio is clipped above 1 + clip_high")


class CispoOptions(NormalisedOptions):
    """A capped importance ratio as a constant weight of the log-probability (arXiv 2506.13585)."""

    max_ratio: float = Field(default=5.0, gt=0.0, description="the weight of a token is at most this")


class PolicyGradientOptions(NormalisedOptions):
    """Plain REINFORCE on the given advantages, without importance ratio: for samples of the current weights."""


class DistillationOptions(NormalisedOptions):
    """Reverse KL to the teacher, from the log-probabilities of the sampled tokens; advantages are not read."""

    drop_below: float = Field(
        default=0.2, ge=0.0, description="a token with p_inference - p_train above this is dropped from the KL term"
    )
    teacher_weight: float = Field(default=1.0, ge=0.0, description="weight of the KL term")
    kl_weight: float = Field(default=1e-3, ge=0.0, description="weight of (log r)^2, r against the engine")


class CrossEntropyOptions(NormalisedOptions):
    """Negative log-probability of the targets; advantages are not read."""
