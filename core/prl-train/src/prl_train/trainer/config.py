"""Settings of the trainer, the `[trainer]` section of a run."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from prl_train.algo.loss_config import LossConfig
from prl_train.transfer.config import TransferConfig, WeightTransferKind

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


class ParallelConfig(BaseModel):
    """How several trainer processes divide model and rows; a single process ignores it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    replicas: int = Field(
        default=1, ge=1, description="groups of processes that each hold the whole model, divided inside the group"
    )
    context: int = Field(default=1, ge=1, description="processes that share each row (context parallelism)")
    context_strategy: str = Field(
        default="auto", description='"ring", "ulysses", or "auto": ulysses where the heads can be divided'
    )
    cpu_offload: bool = Field(default=False, description="keep weights, gradients and optimizer in CPU memory")
    reduce_every_row: bool = Field(
        default=False, description="add gradients up over processes after each row: less memory, more traffic"
    )


class LoraConfig(BaseModel):
    """Train low-rank adapters instead of the weights; needs `pip install "prl-train[lora]"`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(default=16, ge=1, description="rank of the adapters")
    alpha: float = Field(default=32.0, gt=0.0, description="an adapter's output is scaled by alpha / rank")
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="dropout before an adapter")
    target_modules: tuple[str, ...] = Field(
        default=(), description="names of linear layers, such as q_proj; empty: all of them but the head"
    )
    publish: Literal["merged", "adapter"] = Field(
        default="merged", description="what engines get: whole weights with the adapters added, or the adapters alone"
    )


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
    compile: bool = Field(
        default=False, description="compile the model's layers with torch.compile; the first steps take minutes"
    )
    logprob_chunk: int = Field(
        default=512, ge=0, description="targets whose logits are in memory at once; 0: the model's own, all at once"
    )
    logprob_vocabulary_chunk: int | None = Field(
        default=None,
        ge=1,
        description="part of the vocabulary whose logits are in memory at once; absent: all of it, or 4096 tokens in "
        "float32 on a CPU",
    )
    router_replay: bool = Field(
        default=True, description="send tokens to the experts the engine used, where samples carry its routing"
    )
    processes: int = Field(
        default=1, ge=1, description="trainer processes on this machine; under torchrun, its own number counts instead"
    )
    parallel: ParallelConfig = Field(default_factory=lambda: ParallelConfig(), description="several processes")
    lora: LoraConfig | None = Field(default=None, description="train adapters; absent trains all weights")
    threads: int | None = Field(default=1, ge=1, description="torch threads; null leaves torch's own choice")
    seed: int = Field(default=0, ge=0, description="seed of every random choice of the trainer")
    loss: LossConfig = Field(default_factory=lambda: LossConfig(), description="which loss is minimised")
    keep_checkpoints: int | None = Field(
        default=2, ge=1, description="how many checkpoints a run keeps; null keeps all"
    )
    checkpoint_every: int = Field(
        default=0, ge=0, description="steps between checkpoints; 0 writes one at the end only"
    )
    checkpoint_async: bool = Field(
        default=False, description="write checkpoints while training goes on; needs memory for one copy"
    )
    weight_transfer: WeightTransferKind = Field(
        default="directory",
        description='how new weights reach engines: "directory", or "broadcast": from process to process, and through '
        "directories only at the start, the end and checkpoints, and where that fails",
    )
    transfer: TransferConfig = Field(default_factory=lambda: TransferConfig(), description="settings of a broadcast")
    weights_file_gb: float = Field(default=5.0, gt=0.0, description="largest file of published weights, in 10^9 bytes")
