"""What the tests of several rooms share: one thread, and a tiny model that several processes can divide."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random model of two layers; four query heads and two key heads, so that four ranks can share a row."""
    from prl_train.models import create_tiny_qwen3, train_small_tokenizer

    text = "<|im_start|>user\nguess a number<|im_end|>\n"
    tokenizer = train_small_tokenizer([text] * 4, ("<|im_start|>", "<|im_end|>"), 300)
    return create_tiny_qwen3(
        tmp_path_factory.mktemp("tiny") / "model",
        tokenizer.to_str(),
        hidden_size=32,
        layers=2,
        heads=4,
        kv_heads=2,
        intermediate=48,
        max_position_embeddings=256,
        seed=3,
    )
