"""Checkpoints resume exactly; directories are whole or not taken."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from prl import load_tokenizer
from prl_train import storage
from prl_train.data import pack
from prl_train.errors import CheckpointError
from prl_train.models import create_tiny_qwen3
from prl_train.trainer import Trainer, latest_checkpoint, latest_weights, read_weights, remove_old_weights
from prl_train.trainer.checkpoint import checkpoint_path, remove_old_checkpoints

from .test_trainer import samples

Make = Callable[..., Trainer]
USAGE = ("seconds", "tokens_per_second", "memory_gb")
SCHEDULE: dict[str, Any] = {"lr": 5e-3, "warmup_steps": 3, "schedule": "cosine", "total_steps": 6}


def run(trainer: Trainer, first: int, last: int) -> list[dict[str, float]]:
    metrics = [trainer.step(pack(samples(5, seed=n), 48)) for n in range(first, last)]
    return [{key: value for key, value in entry.items() if key not in USAGE} for entry in metrics]


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(make_trainer: Make, tmp_path: Path) -> None:
    whole = make_trainer(**SCHEDULE)
    expected = run(whole, 0, 6)
    first = make_trainer(**SCHEDULE)
    done = run(first, 0, 3)
    first.save_checkpoint(tmp_path / "c", {"batch": 3, "names": ["a"]})
    torch.manual_seed(99)
    second = make_trainer(**SCHEDULE)
    assert second.load_checkpoint(tmp_path / "c") == {"batch": 3, "names": ["a"]}
    assert second.step_number == 3
    assert done + run(second, 3, 6) == expected
    for mine, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_random_state_travels_with_the_checkpoint(make_trainer: Make, tmp_path: Path) -> None:
    trainer = make_trainer()
    torch.manual_seed(7)
    trainer.save_checkpoint(tmp_path / "c")
    expected = torch.rand(3)
    torch.manual_seed(8)
    trainer.load_checkpoint(tmp_path / "c")
    assert torch.equal(torch.rand(3), expected)


def test_saving_does_not_disturb_the_run(make_trainer: Make, tmp_path: Path) -> None:
    plain, saving = make_trainer(), make_trainer()
    expected = run(plain, 0, 2)
    done = run(saving, 0, 1)
    saving.save_checkpoint(tmp_path / "c")
    assert done + run(saving, 1, 2) == expected


@pytest.mark.parametrize("damage", ["marker", "truncate", "flip", "remove"])
def test_a_damaged_checkpoint_is_refused_and_leaves_the_trainer_as_it_was(
    make_trainer: Make, tmp_path: Path, damage: str
) -> None:
    trainer = make_trainer()
    path = trainer.save_checkpoint(tmp_path / "c")
    tensors = next((path / "tensors").glob("*.distcp"))
    content = tensors.read_bytes()
    if damage == "marker":
        (path / "checkpoint.json").unlink()
    elif damage == "truncate":
        tensors.write_bytes(content[:-10])
    elif damage == "flip":
        tensors.write_bytes(content[:-10] + bytes(10))
    else:
        (path / "state.json").unlink()
    run(trainer, 0, 1)
    before = [p.clone() for p in trainer.model.parameters()]
    with pytest.raises(CheckpointError, match="not whole") as caught:
        trainer.load_checkpoint(path)
    assert caught.value.where == str(path)
    assert trainer.step_number == 1
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_a_checkpoint_of_another_model_is_refused_before_anything_changes(
    make_trainer: Make, model_dir: Path, tmp_path: Path
) -> None:
    other = create_tiny_qwen3(
        tmp_path / "other", model_dir / "tokenizer.json", hidden_size=16, layers=1, heads=2, intermediate=32
    )
    path = make_trainer(model=str(other)).save_checkpoint(tmp_path / "c")
    trainer = make_trainer()
    with pytest.raises(CheckpointError, match="has shape"):
        trainer.load_checkpoint(path)


def test_extra_that_is_not_json_is_refused_before_writing(make_trainer: Make, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        make_trainer().save_checkpoint(tmp_path / "c", {"x": object()})
    assert list(tmp_path.iterdir()) == []


def test_a_crash_while_writing_leaves_the_older_checkpoint(
    make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    path = trainer.save_checkpoint(tmp_path / "step_000001", {"n": 1})

    def crash(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(storage, "replace_directory", crash)
    with pytest.raises(OSError, match="disk full"):
        trainer.save_checkpoint(path, {"n": 2})
    monkeypatch.undo()
    assert trainer.load_checkpoint(path) == {"n": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["step_000001"]


def test_the_newest_whole_checkpoint_is_found_and_old_ones_go(make_trainer: Make, tmp_path: Path) -> None:
    trainer = make_trainer()
    for step in (1, 2, 10):
        trainer.save_checkpoint(checkpoint_path(tmp_path, step))
    (checkpoint_path(tmp_path, 10) / "state.json").unlink()
    assert latest_checkpoint(tmp_path) == checkpoint_path(tmp_path, 2)
    assert latest_checkpoint(tmp_path / "none") is None
    assert [path.name for path in remove_old_checkpoints(tmp_path, 2)] == ["step_000001"]
    assert remove_old_checkpoints(tmp_path, None) == []


def test_steps_are_told_apart_by_their_numbers_and_copies_are_left_alone(tmp_path: Path) -> None:
    """After a million steps a run goes on from an old checkpoint and removes the new ones, and people's copies."""
    for name in ("step_999999", "step_1000000", "step_1000001", "step_000005.bak", "step_best"):
        storage.write_sealed(tmp_path / name, "checkpoint.json", {}, lambda _: None)
    assert latest_checkpoint(tmp_path) == tmp_path / "step_1000001"
    removed = remove_old_checkpoints(tmp_path, 1, newest=tmp_path / "step_1000000")
    assert [path.name for path in removed] == ["step_999999"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step_000005.bak", "step_1000000", "step_1000001", "step_best"
    ]  # fmt: skip


@pytest.mark.parametrize("marker", [b"[]", b'{"files": 3}', b'{"files": {"a": 1}}', b'{"step": 1}', b"\xff\x00"])
def test_a_marker_of_something_else_is_no_checkpoint(tmp_path: Path, marker: bytes) -> None:
    """A folder of another program beside the checkpoints keeps a run from being resumed, with a TypeError."""
    (tmp_path / "step_000009").mkdir()
    (tmp_path / "step_000009" / "checkpoint.json").write_bytes(marker)
    assert latest_checkpoint(tmp_path) is None
    with pytest.raises(CheckpointError, match=r"not whole: checkpoint\.json"):
        storage.read_sealed(tmp_path / "step_000009", "checkpoint.json")


def test_a_resumed_run_has_the_settings_of_its_own_configuration(make_trainer: Make, tmp_path: Path) -> None:
    """A changed weight decay, or epsilon, is read, shown, and not used."""
    first = make_trainer(weight_decay=0.5, betas=(0.8, 0.9), eps=1e-4)
    run(first, 0, 1)
    first.save_checkpoint(tmp_path / "c")
    second = make_trainer(weight_decay=0.1)
    second.load_checkpoint(tmp_path / "c")
    groups = second._loaded().optimizer.param_groups
    assert [(group["weight_decay"], group["betas"], group["eps"]) for group in groups] == [
        (0.1, (0.9, 0.95), 1e-8), (0.0, (0.9, 0.95), 1e-8)
    ]  # fmt: skip
    assert {state["step"].item() for state in second._loaded().optimizer.state.values()} == {1.0}


def test_published_weights_are_a_model_any_program_loads(make_trainer: Make, tmp_path: Path) -> None:
    trainer = make_trainer()
    run(trainer, 0, 1)
    path = trainer.publish_weights(tmp_path, 7)
    assert path == tmp_path / "version_000007"
    assert read_weights(path, verify=True) == 7
    loaded = AutoModelForCausalLM.from_pretrained(path)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert "lm_head.weight" not in load_file(path / "model.safetensors"), "the tied head was written twice"
    assert AutoTokenizer.from_pretrained(path).eos_token == "<|im_end|>"
    config = json.loads((path / "config.json").read_text())
    assert "prl_packed" not in json.dumps(config), "other programs do not know the trainer's attention"
    assert config["dtype"] == "float32"


def test_published_weights_carry_all_that_a_tokenizer_is_read_from(
    make_trainer: Make, model_dir: Path, tmp_path: Path
) -> None:
    """Vision models keep their chat template in a file of its own: engines of trained weights have none, nor `auto`."""
    source = shutil.copytree(model_dir, tmp_path / "source")
    (source / "chat_template.json").write_text('{"chat_template": "from json"}')
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    path = make_trainer(model=str(source)).publish_weights(tmp_path / "weights", 1)
    assert load_tokenizer(path).chat_templates == load_tokenizer(source).chat_templates
    assert load_tokenizer(path).chat_templates["tool_use"] == "with tools"
    assert read_weights(path, verify=True) == 1


def test_untied_heads_are_published(make_trainer: Make, model_dir: Path, tmp_path: Path) -> None:
    untied = tmp_path / "untied"
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 2)
    model.save_pretrained(untied)
    shutil.copy(model_dir / "tokenizer.json", untied)
    trainer = make_trainer(model=str(untied))
    published = load_file(trainer.publish_weights(tmp_path / "weights", 1) / "model.safetensors")
    assert torch.equal(published["lm_head.weight"], published["model.embed_tokens.weight"] * 2)


def test_a_head_that_a_checkpoint_has_against_its_config_is_published_as_one(
    make_trainer: Make, model_dir: Path, tmp_path: Path
) -> None:
    """Engines tie the head where config.json says so, and throw away the one that was trained."""
    source = shutil.copytree(model_dir, tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn(tensors["model.embed_tokens.weight"].shape)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    assert json.loads((source / "config.json").read_text())["tie_word_embeddings"] is True
    path = make_trainer(model=str(source)).publish_weights(tmp_path / "weights", 1)
    assert torch.equal(load_file(path / "model.safetensors")["lm_head.weight"], tensors["lm_head.weight"])
    assert json.loads((path / "config.json").read_text())["tie_word_embeddings"] is False


def test_tensors_that_share_storage_by_chance_are_both_published(make_trainer: Make, tmp_path: Path) -> None:
    """A loader ties only what the architecture declares: a left-out tensor would be filled with random numbers."""
    trainer = make_trainer()
    layers = trainer.model.model.layers
    layers[1].mlp.up_proj.weight = layers[0].mlp.up_proj.weight
    published = load_file(trainer.publish_weights(tmp_path, 1) / "model.safetensors")
    names = [f"model.layers.{n}.mlp.up_proj.weight" for n in (0, 1)]
    assert torch.equal(published[names[0]], published[names[1]])


def test_an_incomplete_weights_directory_is_never_taken_for_whole(make_trainer: Make, tmp_path: Path) -> None:
    trainer = make_trainer()
    for version in (1, 2, 3):
        trainer.publish_weights(tmp_path, version)
    newest = tmp_path / "version_000003"
    os.truncate(newest / "model.safetensors", 100)
    with pytest.raises(CheckpointError, match="not whole"):
        read_weights(newest)
    (tmp_path / "version_000004").mkdir()
    assert latest_weights(tmp_path) == tmp_path / "version_000002"
    assert [path.name for path in remove_old_weights(tmp_path, 3)] == ["version_000001"]


def test_publishing_again_replaces_a_version(make_trainer: Make, tmp_path: Path) -> None:
    trainer = make_trainer()
    first = load_file(trainer.publish_weights(tmp_path, 1) / "model.safetensors")
    run(trainer, 0, 1)
    second = load_file(trainer.publish_weights(tmp_path, 1) / "model.safetensors")
    assert not torch.equal(first["model.norm.weight"], second["model.norm.weight"])
    assert [path.name for path in tmp_path.iterdir()] == ["version_000001"]


def test_large_weights_are_several_files_and_an_index(make_trainer: Make, tmp_path: Path) -> None:
    """A file of a large model would not fit into one; every loader knows the index."""
    trainer = make_trainer(weights_file_gb=2e-5)
    path = trainer.publish_weights(tmp_path, 1)
    files = sorted(entry.name for entry in path.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    for name, file in index["weight_map"].items():
        assert name in load_file(path / file)
    loaded = AutoModelForCausalLM.from_pretrained(path).state_dict()
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(loaded[name], value), name
    assert read_weights(path, verify=True) == 1


def test_a_background_write_that_fails_is_told(
    make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run must not go on for hours without a checkpoint, believing it has some."""
    trainer = make_trainer(checkpoint_async=True)

    def crash(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(storage, "replace_directory", crash)
    done: list[int] = []
    trainer.save_checkpoint(tmp_path / "c", then=lambda: done.append(1))
    with pytest.raises(OSError, match="disk full"):
        trainer.finish_checkpoint()
    assert done == []
    monkeypatch.undo()
    trainer.save_checkpoint(tmp_path / "c", then=lambda: done.append(2))
    trainer.finish_checkpoint()
    assert done == [2]
    assert trainer.load_checkpoint(tmp_path / "c") == {}
