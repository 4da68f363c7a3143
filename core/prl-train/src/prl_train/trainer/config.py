"""Settings of the trainer, the `[trainer]` section of a run."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from prl_train.algo.loss_config import LossConfig

Schedule = Literal["constant", "linear", "cosine"]


class OptimizerConfig(BaseModel):
    """AdamW and its learning rate over the steps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lr: float = Field(default=1e-5, gt=0.0, description="learning rate after the warm-up")
    betas: tuple[float, float] = Field(default=(0.9, 0.95), description="AdamW's decay rates of the two moments")
    eps: float = Field(default=1e-8, gt=0.0, description="AdamW's epsilon; 1e-5 makes a start from few rewards gentler")
    weight_decay: float = Field(
        default=0.0, ge=0.0, description="decay of matrices; vectors (norms, biases) never decay"
    )
    warmup_steps: int = Field(default=10, ge=0, description="steps over which the learning rate rises linearly")
    schedule: Schedule = Field(default="constant", description="the learning rate after the warm-up")
    total_steps: int | None = Field(default=None, ge=1, description="where 'linear' and 'cosine' end; needed for both")
    min_lr_ratio: float = Field(default=0.0, ge=0.0, le=1.0, description="the last learning rate as a share of `lr`")
    max_grad_norm: float = Field(default=1.0, gt=0.0, description="the gradient is scaled down to this norm")


class TrainerConfig(OptimizerConfig):
    """Model, precision, packing, optimizer, loss and checkpoints of the trainer.

    Weights are held in float32; with `dtype = "bfloat16"` the passes run in it, and so are the published weights.
    """

    model: str = Field(
        default="", description="directory or hub id of the model; a run fills it in from its own [model]"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="precision of the passes and published weights"
    )
    device: str = Field(default="cpu", description='torch device, such as "cpu" or "cuda:0"')
    seq_len: int = Field(default=2048, ge=2, description="tokens in one packed row (one micro-batch)")
    attention: str = Field(default="sdpa", description="name of an attention kernel plugin")
    gradient_checkpointing: bool = Field(
        default=False, description="recompute activations in the backward pass to save memory"
    )
    threads: int | None = Field(default=1, ge=1, description="torch threads; null leaves torch's own choice")
    seed: int = Field(default=0, ge=0, description="seed of every random choice of the trainer")
    loss: LossConfig = Field(default_factory=lambda: LossConfig(), description="the policy loss")
    keep_checkpoints: int | None = Field(
        default=2, ge=1, description="how many checkpoints a run keeps; null keeps all"
    )
    checkpoint_every: int = Field(
        default=0, ge=0, description="steps between checkpoints; 0 writes one at the end only"
    )
