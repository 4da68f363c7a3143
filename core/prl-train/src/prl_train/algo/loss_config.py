"""Settings of the policy loss; no torch here, so that a configuration can be read without it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class LossConfig(BaseModel):
    """Settings of the policy loss; names follow its formula.

    A token is dropped from the policy term where its advantage is positive and p_train - p_inference exceeds
    `drop_above`, or where it is not positive and the difference is under `-drop_below`: there an update would push the
    two policies further apart.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    drop_above: float = Field(default=0.2, ge=0.0, description="largest p_train - p_inference for advantages > 0")
    drop_below: float = Field(default=0.2, ge=0.0, description="largest p_inference - p_train for advantages <= 0")
    advantage_weight: float = Field(default=1.0, ge=0.0, description="tau_a: weight of the policy term")
    kl_weight: float = Field(default=1e-3, ge=0.0, description="tau_k: weight of (log r)^2")
    teacher_weight: float = Field(
        default=0.0, ge=0.0, description="tau_t: weight of lp_teacher - lp_train in the advantage"
    )
