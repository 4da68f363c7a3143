"""A real tiny Qwen3 directory, built once, and trainers over it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.tiny_vision import TEXT_CONTROLS as CONTROL

from prl_train.attention.binding import BoundKernel, bind
from prl_train.attention.sdpa import sdpa
from prl_train.models import create_tiny_qwen3, train_small_tokenizer
from prl_train.trainer import Trainer, TrainerConfig

TEXT = "<|im_start|>user\nguess a number from 1 to 3<|im_end|>\n<|im_start|>assistant\nmy guess is 2<|im_end|>\n"


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_small_tokenizer([TEXT] * 4, CONTROL, 320)
    return create_tiny_qwen3(
        tmp_path_factory.mktemp("tiny") / "model",
        tokenizer.to_str(),
        hidden_size=24,
        layers=2,
        heads=2,
        kv_heads=1,
        intermediate=48,
        max_position_embeddings=256,
        seed=3,
    )


@pytest.fixture
def kernel() -> BoundKernel:
    return bind("sdpa", sdpa, ("window", "softmax_scale", "gqa"))


@pytest.fixture
def make_trainer(model_dir: Path, kernel: BoundKernel) -> Callable[..., Trainer]:
    """Return a maker of loaded trainers; keywords are settings."""

    def make(**settings: Any) -> Trainer:
        defaults: dict[str, Any] = {"model": str(model_dir), "lr": 1e-2, "warmup_steps": 0, "seq_len": 64}
        trainer = Trainer(TrainerConfig(**(defaults | settings)), kernel=kernel)
        trainer.load()
        return trainer

    return make
