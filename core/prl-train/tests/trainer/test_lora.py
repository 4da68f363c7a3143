"""Adapters: only they train, and what is published is what other programs load."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch.distributed.checkpoint.filesystem import FileSystemReader
from transformers import AutoModelForCausalLM

from prl.types import ConfigError
from prl_train.data import pack
from prl_train.trainer import Trainer

from .test_trainer import samples

Make = Callable[..., Trainer]
LORA: dict[str, Any] = {"rank": 4, "alpha": 8}


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(torch.tensor([[5, 6, 7, 8]])).logits
    return result


def trained(make_trainer: Make, **lora: Any) -> Trainer:
    trainer = make_trainer(lora=LORA | lora)
    for seed in range(2):
        trainer.step(pack(samples(5, seed), 64))
    return trainer


def test_only_adapters_change(make_trainer: Make) -> None:
    before = make_trainer().model.state_dict()
    trainer = trained(make_trainer)
    names = {name for name, value in trainer.model.named_parameters() if value.requires_grad}
    assert names
    assert all(".lora_" in name for name in names)
    for name, value in trainer.model.state_dict().items():
        if ".lora_" not in name:
            assert torch.equal(value, before[name.replace(".base_layer", "")]), name


def test_a_fresh_adapter_changes_no_number(make_trainer: Make) -> None:
    (row,) = pack(samples(3), 64)
    assert make_trainer(lora=LORA).score(row) == make_trainer().score(row)


def test_merged_weights_and_the_adapter_directory_are_the_trained_model(
    make_trainer: Make, model_dir: Path, tmp_path: Path
) -> None:
    """Names, scale or a transposition that were wrong would show against transformers and peft."""
    trainer = trained(make_trainer)
    merged = AutoModelForCausalLM.from_pretrained(trainer.publish_weights(tmp_path / "merged", 1))
    assert set(merged.state_dict()) == set(AutoModelForCausalLM.from_pretrained(model_dir).state_dict())
    alone = trained(make_trainer, publish="adapter")
    directory = alone.publish_weights(tmp_path / "adapter", 1)
    assert sorted(path.name for path in directory.iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "weights.json",
    ]  # fmt: skip
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    untouched = logits(base)
    loaded = PeftModel.from_pretrained(base, str(directory))
    torch.testing.assert_close(logits(loaded), logits(merged), rtol=0, atol=1e-5)
    assert not torch.allclose(logits(merged), untouched, atol=1e-3), "nothing was learnt, so nothing was shown"
    settings = json.loads((directory / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["base_model_name_or_path"]) == (4, 8, str(model_dir))


def test_a_checkpoint_holds_the_adapters_alone_and_goes_on(make_trainer: Make, tmp_path: Path) -> None:
    whole = trained(make_trainer)
    expected = whole.step(pack(samples(5, 2), 64))["loss"]
    trained(make_trainer).save_checkpoint(tmp_path / "c")
    written = FileSystemReader(tmp_path / "c" / "tensors").read_metadata().state_dict_metadata
    assert all(".lora_" in name for name in written if name.startswith("model.")), "frozen weights were written too"
    trainer = make_trainer(lora=LORA)
    trainer.load_checkpoint(tmp_path / "c")
    assert trainer.step(pack(samples(5, 2), 64))["loss"] == expected


def test_chosen_modules_alone_carry_adapters(make_trainer: Make, tmp_path: Path) -> None:
    trainer = trained(make_trainer, target_modules=["q_proj", "layers.1.mlp.up_proj"], publish="adapter")
    published = load_file(trainer.publish_weights(tmp_path, 1) / "adapter_model.safetensors")
    assert {name.partition(".lora_")[0].removeprefix("base_model.model.model.layers.") for name in published} == {
        "0.self_attn.q_proj", "1.self_attn.q_proj", "1.mlp.up_proj",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("targets", "what"),
    [
        (["q_proj", "qq_proj"], "no module of the model is named 'qq_proj'"),
        (["embed_tokens"], "'model.embed_tokens' is not a linear layer"),
        (["lm_head"], "'lm_head' is the head"),
    ],
)
def test_an_adapter_that_matches_nothing_is_refused(make_trainer: Make, targets: list[str], what: str) -> None:
    """It would train nothing, or less than was asked for, without a word."""
    with pytest.raises(ConfigError, match=what) as caught:
        make_trainer(lora=LORA | {"target_modules": targets})
    assert repr(targets[-1]) in caught.value.what
    assert "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj" in caught.value.next_step


def test_without_peft_the_error_says_what_to_install(make_trainer: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match="need the package peft") as caught:
        make_trainer(lora=LORA)
    assert caught.value.next_step == 'pip install "prl-train[lora]"'
