"""Tiny models of several families, made by transformers, with random weights that leave no attention score at zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fixtures.small_models import FOUR_HEADS

COMMON: dict[str, Any] = {
    **FOUR_HEADS,
    "attention_dropout": 0.0,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {"num_key_value_heads": 1},
    "glm4": {"partial_rotary_factor": 0.5},
    "gemma3_text": {
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 40,
    },
    "gemma2": {
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 40,
        "attn_logit_softcapping": 0.5,
    },
    "gpt_oss": {
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
}
"""Model type -> what its configuration has beyond `COMMON`."""


def tiny_model(family: str, attention: str) -> Any:
    """Make a model from scratch, the same for every `attention`, which is transformers' name of the implementation."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **{**COMMON, **FAMILIES[family]})
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(0, 0.3) if weight.dim() > 1 or name.endswith("sinks") else weight.uniform_(0.5, 1.5)
    return model.train()


@pytest.fixture
def make_model() -> Callable[[str, str], Any]:
    return tiny_model


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)
