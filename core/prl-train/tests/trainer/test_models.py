"""Tiny models and tokenizers are real ones; broken model directories are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from prl.types import ConfigError
from prl_train.models import create_tiny_qwen3, load_model, train_small_tokenizer

from .conftest import CONTROL, TEXT


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_small_tokenizer([TEXT] * 4, CONTROL, 320)


def test_control_tokens_are_single_ids_and_no_merge_contains_one(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    assert tokenizer.get_vocab_size(with_added_tokens=True) == len(set(vocabulary.values())) <= 320
    for token in CONTROL:
        assert tokenizer.encode(token, add_special_tokens=False).ids == [vocabulary[token]]
    merged = [text for text in tokenizer.get_vocab(with_added_tokens=False) if text not in CONTROL]
    assert not [text for text in merged if "<|im" in text or "im_end|>" in text]


def test_merges_cross_words_so_that_constant_pieces_are_short(tokenizer: Tokenizer) -> None:
    by_words = train_small_tokenizer([TEXT] * 4, CONTROL, 320, use_regex=True)
    across, within = (len(t.encode(TEXT, add_special_tokens=False).ids) for t in (tokenizer, by_words))
    assert across < within


@given(st.text(max_size=40))
def test_any_text_survives(text: str) -> None:
    tokenizer = train_small_tokenizer([TEXT], CONTROL, 300)
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_training_twice_gives_the_same_tokenizer(tokenizer: Tokenizer) -> None:
    """A resumed run that trains its tokenizer anew must get the same ids."""
    assert train_small_tokenizer([TEXT] * 4, CONTROL, 320).to_str() == tokenizer.to_str()


def test_flags_of_given_added_tokens_are_kept() -> None:
    tokenizer = train_small_tokenizer([TEXT], [AddedToken("<think>", special=False), "<|im_end|>"], 300)
    flags = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
    assert flags == {"<think>": False, "<|im_end|>": True}


def test_a_vocabulary_too_small_for_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot hold 256 bytes and 9 control tokens"):
        train_small_tokenizer([TEXT], CONTROL, 260)


def test_the_tiny_model_loads_in_transformers_alone(model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    assert model.config.model_type == "qwen3"
    assert model.config.tie_word_embeddings
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    assert model(ids).logits.shape == (1, ids.shape[1], len(tokenizer))
    assert tokenizer.eos_token == "<|im_end|>"
    assert model.config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")


def test_one_seed_is_one_model_and_leaves_the_global_generator_alone(tmp_path: Path, tokenizer: Tokenizer) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    sizes = {"hidden_size": 8, "layers": 1, "heads": 1, "kv_heads": 1, "intermediate": 8}
    paths = [
        create_tiny_qwen3(tmp_path / str(n), tokenizer.to_str(), max_position_embeddings=32, seed=seed, **sizes)
        for n, seed in enumerate((1, 1, 2))
    ]
    assert torch.equal(torch.get_rng_state(), before)
    tensors = [load_file(path / "model.safetensors")["model.embed_tokens.weight"] for path in paths]
    assert torch.equal(tensors[0], tensors[1])
    assert not torch.equal(tensors[0], tensors[2])
    assert tensors[0].std() == pytest.approx(0.08, rel=0.05)


def test_heads_that_do_not_divide_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="must be a multiple of heads"):
        create_tiny_qwen3(tmp_path / "m", tokenizer.to_str(), hidden_size=10, heads=3)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_weights_is_a_three_part_error(model_dir: Path, tmp_path: Path) -> None:
    shutil.copy(model_dir / "config.json", tmp_path)
    with pytest.raises(ConfigError, match="has no weights") as caught:
        load_model(tmp_path)
    assert (caught.value.where, bool(caught.value.next_step)) == (str(tmp_path), True)


def test_a_path_that_does_not_exist_or_holds_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no model at"):
        load_model(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load_model(tmp_path)


def test_missing_tensors_are_refused_instead_of_filled_with_random_numbers(model_dir: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model_dir, broken)
    tensors = load_file(broken / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ConfigError, match=r"lack 1 of the model's tensors, such as 'model.layers.1.mlp.up_proj.weight'"
    ):
        load_model(broken)


def test_tensors_that_are_not_the_models_are_told(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Adapters that nobody merged, a value head: the run trains without them, and publishes without them."""
    copy = shutil.copytree(model_dir, tmp_path / "copy")
    tensors = load_file(copy / "model.safetensors") | {"model.layers.0.mlp.up_proj.lora_A.weight": torch.zeros(2, 24)}
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    load_model(copy)
    told = f"{copy}: 1 tensors of the weights are not the model's, such as 'model.layers.0.mlp.up_proj.lora_A.weight'"
    assert [record.message for record in caplog.records if record.name == "prl.trainer"] == [told]


def test_damaged_weights_are_a_three_part_error(model_dir: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(model_dir, broken)
    (broken / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(broken)


def test_a_model_that_stays_quantized_is_refused(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its codes would be trained as if they were weights, and published beside scales that no longer fit."""
    real = AutoModelForCausalLM.from_pretrained

    def quantized(*args: Any, **options: Any) -> Any:
        model, info = real(*args, **options)
        model.config.quantization_config = {"quant_method": "fp8"}
        return model, info

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", quantized)
    with pytest.raises(ConfigError, match="quantized"):
        load_model(model_dir)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen99", "architectures": ["Qwen99"]},
        {"model_type": "qwen99", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}},
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    ],
    ids=["an unknown architecture", "code of its own", "a package that is not installed"],
)
def test_a_model_that_cannot_be_had_is_a_three_part_error_and_no_question(
    model_dir: Path, tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers asks at the terminal whether to run a model's own code, and every process of a run waits."""
    asked: list[object] = []
    monkeypatch.setattr("builtins.input", lambda *question: asked.append(question) or "y")
    broken = shutil.copytree(model_dir, tmp_path / "broken")
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(broken)
    assert asked == []
