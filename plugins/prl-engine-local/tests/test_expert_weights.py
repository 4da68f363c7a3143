"""Weights of mixtures of experts: a checkpoint's names differ from those in memory, and both are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from prl.serving.errors import WeightLoadError
from prl_engine_local.weights import apply_weights, read_weights


def make(kind: str, seed: int) -> Any:
    torch.manual_seed(seed)
    fields = {
        "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
        "Mixtral": {"num_local_experts": 4},
    }[kind]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        **fields,
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    result: torch.Tensor = model(torch.arange(12)[None]).logits
    return result


@pytest.mark.parametrize("kind", ["Qwen3Moe", "Mixtral"])
@pytest.mark.parametrize("own_names", [False, True])
def test_new_experts_answer_as_a_fresh_model_does(kind: str, own_names: bool, tmp_path: Path) -> None:
    served, published = make(kind, 1), make(kind, 2)
    if own_names:
        save_file({name: tensor.clone() for name, tensor in published.state_dict().items()}, tmp_path / "m.safetensors")
    else:
        published.save_pretrained(tmp_path)
    assert not torch.equal(logits(served), logits(published))
    apply_weights(served, read_weights(served, str(tmp_path)))
    assert torch.equal(logits(served), logits(published))


def test_a_missing_or_misshapen_expert_is_named_and_nothing_changes(tmp_path: Path) -> None:
    served, published = make("Qwen3Moe", 1), make("Qwen3Moe", 2)
    before = logits(served)
    published.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.2.up_proj.weight"
    for wrong in ({key: tensor for key, tensor in tensors.items() if key != name}, tensors | {name: torch.ones(2, 2)}):
        save_file(wrong, tmp_path / "model.safetensors")
        with pytest.raises(WeightLoadError, match="up_proj"):
            read_weights(served, str(tmp_path))
    assert torch.equal(logits(served), before)
