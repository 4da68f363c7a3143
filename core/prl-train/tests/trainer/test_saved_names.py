"""Published weights have the names of checkpoints, whatever transformers holds in memory: other programs read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from prl_train.models.saved_names import saved_in_groups
from prl_train.trainer.weights import outgoing_tensors, write_weights

EXPERTS = {
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8},
    "Mixtral": {"num_local_experts": 4},
    "Glm4Moe": {
        "n_routed_experts": 4,
        "moe_intermediate_size": 8,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
    "Qwen3": {"tie_word_embeddings": True},
}
SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def make(kind: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SMALL, **EXPERTS[kind])
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.mark.parametrize("kind", sorted(EXPERTS))
def test_a_published_directory_is_what_transformers_itself_would_save_and_load(kind: str, tmp_path: Path) -> None:
    model = make(kind)
    model.save_pretrained(tmp_path / "theirs")
    ours = write_weights(tmp_path, model, 3, dtype=torch.float32, source=tmp_path)
    expected, found = (load_file(folder / "model.safetensors") for folder in (tmp_path / "theirs", ours))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    again = type(model).from_pretrained(ours, dtype=torch.float32).eval()
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)


def test_experts_of_one_layer_are_in_memory_together_and_no_longer() -> None:
    model = make("Qwen3Moe")
    names = [one.name for one in outgoing_tensors(model, torch.float32)]
    assert "model.layers.1.mlp.experts.3.up_proj.weight" in names
    assert not [name for name in names if "gate_up_proj" in name]
    meta = {name: torch.empty(tensor.shape, device="meta") for name, tensor in model.state_dict().items()}
    groups = saved_in_groups(model, meta)
    assert max(len(held) for held, _ in groups) == 1
    assert sorted(name for _, saved in groups for name in saved) == sorted(names)


def test_what_routers_choose_by_is_never_rounded(tmp_path: Path) -> None:
    """Biases of about 34 that differ in the second decimal are one number in bfloat16: other experts are sampled."""
    model = make("Glm4Moe")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    bias = torch.tensor([34.501, 34.502, 34.503, 34.504])
    model.state_dict()[name].copy_(bias)
    found = load_file(write_weights(tmp_path, model, 1, dtype=torch.bfloat16, source=tmp_path) / "model.safetensors")
    assert torch.equal(found.pop(name), bias)
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    told = {one.name: (one.dtype, one.bytes) for one in outgoing_tensors(model, torch.bfloat16)}
    assert told[name] == (torch.float32, 16)


def test_tensors_can_be_read_twice_as_a_second_try_of_sending_does() -> None:
    outgoing = list(outgoing_tensors(make("Mixtral"), torch.bfloat16))
    first, second = ([one.read() for one in outgoing] for _ in range(2))
    assert all(torch.equal(a, b) and a.dtype == torch.bfloat16 for a, b in zip(first, second, strict=True))
    assert [one.shape for one in outgoing] == [tensor.shape for tensor in first]
