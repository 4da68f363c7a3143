"""New weights are loaded whole or not at all, and every answer names the weights it was sampled with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from prl.types import GenerateRequest, GenerateResponse, SamplingParams


def ask(**sampling: Any) -> GenerateRequest:
    return GenerateRequest(model="tiny", prompt_token_ids=[5, 6, 7, 8], sampling=SamplingParams(**sampling))


def assert_from(response: GenerateResponse, model: Any, logprobs_of: Any) -> None:
    for choice in response.choices:
        assert choice.logprobs == pytest.approx(logprobs_of(model, [5, 6, 7, 8, *choice.token_ids])[3:], abs=1e-4)


@pytest.mark.parametrize("tied", [True, False], ids=["tied embeddings", "untied"])
@pytest.mark.parametrize("shards", [False, True], ids=["one file", "shards"])
async def test_loaded_weights_answer_exactly(
    make_engine: Any, new_model: Any, save: Any, logprobs_of: Any, tied: bool, shards: bool
) -> None:
    old, new = new_model(1, tie_word_embeddings=tied), new_model(2, tie_word_embeddings=tied)
    engine = await make_engine(model=save(old, "old"))
    directory = save(new, "new", **({"max_shard_size": "100KB"} if shards else {}))
    assert (Path(directory) / "model.safetensors.index.json").exists() is shards
    before = await engine.generate(ask(max_tokens=6))
    await engine.client().load_weights(directory, 7)
    after = await engine.generate(ask(max_tokens=6))
    assert (before.weight_version, after.weight_version) == (-1, 7)
    assert_from(before, old, logprobs_of)
    assert_from(after, new, logprobs_of)
    assert engine.models()[0]["weight_version"] == 7


@pytest.mark.usefixtures("slow_steps")
async def test_a_response_belongs_to_one_version_while_weights_change_under_load(
    make_engine: Any, new_model: Any, save: Any, logprobs_of: Any, plain_model: Any
) -> None:
    engine = await make_engine(max_batch_size=4)
    new = new_model(9)
    directory = save(new, "new")
    tasks = [asyncio.create_task(engine.generate(ask(max_tokens=20 + 7 * i))) for i in range(8)]
    await asyncio.sleep(0.05)
    await engine.load_weights(directory, 1)
    tasks += [asyncio.create_task(engine.generate(ask(max_tokens=5))) for _ in range(3)]
    responses = await asyncio.gather(*tasks)
    versions = [response.weight_version for response in responses]
    assert set(versions) == {-1, 1}
    assert versions[-3:] == [1, 1, 1]
    assert versions[:8].count(-1) < 8, (
        "waiting requests must not start before the weights: a busy engine would never load"
    )
    for response in responses:
        assert_from(response, new if response.weight_version == 1 else plain_model, logprobs_of)


def _drop(path: Path) -> None:
    _edit(path, lambda tensors: tensors.pop("model.norm.weight"))


def _add(path: Path) -> None:
    _edit(path, lambda tensors: tensors.update({"model.extra.weight": torch.zeros(2)}))


def _reshape(path: Path) -> None:
    _edit(path, lambda tensors: tensors.update({"model.norm.weight": torch.ones(65)}))


def _spoil(path: Path) -> None:
    _edit(path, lambda tensors: tensors["model.norm.weight"].fill_(float("nan")))


def _untie(path: Path) -> None:
    _edit(path, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(600, 64)}))


def _truncate(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _empty(path: Path) -> None:
    (path / "model.safetensors").unlink()


def _wrong_index(path: Path) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "absent.safetensors"}}))


def _broken_index(path: Path) -> None:
    (path / "model.safetensors.index.json").write_text("{")


def _edit(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_drop, r"lacks 'model\.norm\.weight'"),
        (_add, r"no 'model\.extra\.weight'"),
        (_reshape, r"shape \[65\], the model's is \[64\]"),
        (_spoil, "not finite"),
        (_untie, "tied in the model but differ"),
        (_truncate, "cannot be read"),
        (_empty, r"no \*\.safetensors"),
        (_wrong_index, r"absent\.safetensors"),
        (_broken_index, "not a weights index"),
    ],
)
async def test_a_bad_directory_leaves_the_old_weights_serving(
    make_engine: Any, new_model: Any, save: Any, damage: Callable[[Path], None], message: str
) -> None:
    engine = await make_engine()
    before = await engine.generate(ask(seed=1, max_tokens=20))
    directory = save(new_model(4), "bad")
    damage(Path(directory))
    with pytest.raises(Exception, match=message) as caught:
        await engine.load_weights(directory, 1)
    assert caught.value.code == "bad_weights"
    after = await engine.generate(ask(seed=1, max_tokens=20))
    assert after.choices == before.choices
    assert after.weight_version == -1


async def test_an_absent_directory_is_named(make_engine: Any, tmp_path: Path) -> None:
    engine = await make_engine()
    with pytest.raises(Exception, match="no such directory") as caught:
        await engine.load_weights(str(tmp_path / "absent"), 1)
    assert "absent" in caught.value.where


async def test_weights_in_another_type_are_converted(
    make_engine: Any, new_model: Any, save: Any, logprobs_of: Any
) -> None:
    engine = await make_engine()
    await engine.load_weights(save(new_model(6).to(torch.bfloat16), "half"), 2)
    rounded = new_model(6)
    for weight in rounded.parameters():
        weight.data = weight.data.bfloat16().float()
    assert_from(await engine.generate(ask(max_tokens=5)), rounded, logprobs_of)
