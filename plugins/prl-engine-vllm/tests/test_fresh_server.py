"""A second server, started on the new weights: the first, after an update, must answer as it does. And adapters."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from prl.client import HttpEngineClient
from prl.types import EngineError, GenerateRequest, SamplingParams

pytestmark = pytest.mark.heavy
PROMPTS = ([20 + i for i in range(30)], [9707, 11, 1879], [(7 * i) % 150_000 for i in range(300)])
SAMPLING = ({"temperature": 0.0}, {"seed": 7}, {"seed": 7, "temperature": 0.7, "top_k": 50, "top_p": 0.9})
MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj")
RANK = 4
SCALE = 2.0  # lora_alpha / r


@pytest.fixture(scope="module")
def fresh_server(serve: Callable[..., Any], qwen_models: tuple[Path, Path]) -> Any:
    """A server on the second model, with adapters."""
    return serve(qwen_models[1], "--lora", "true", "--max-lora-rank", "8")


@pytest.fixture
async def fresh(fresh_server: Any) -> AsyncIterator[HttpEngineClient]:
    client = HttpEngineClient(fresh_server.url, timeout=120, retries=0)
    yield client
    await client.close()


@pytest.fixture
async def updated(qwen_server: Any, qwen_models: tuple[Path, Path]) -> AsyncIterator[HttpEngineClient]:
    """The first server, on the second model's weights until the test ends."""
    client = HttpEngineClient(qwen_server.url, timeout=120, retries=0)
    await client.load_weights(str(qwen_models[1]), 21)
    yield client
    await client.load_weights(str(qwen_models[0]), 22)
    await client.close()


def ask(prompt: list[int], model: str = "tiny", **sampling: Any) -> GenerateRequest:
    return GenerateRequest(model=model, prompt_token_ids=prompt, sampling=SamplingParams(max_tokens=12, **sampling))


async def test_after_an_update_answers_equal_a_fresh_servers(
    updated: HttpEngineClient,
    fresh: HttpEngineClient,
    qwen_models: tuple[Path, Path],
    oracle: Any,
    logprobs_of: Any,
) -> None:
    """With tied embeddings vLLM's own reload keeps the old output head, and answers 200 with wrong numbers."""
    model = oracle(qwen_models[1])
    for prompt in PROMPTS:
        for sampling in SAMPLING:
            ours, theirs = await asyncio.gather(
                updated.generate(ask(prompt, **sampling)), fresh.generate(ask(prompt, **sampling))
            )
            [mine], [its] = ours.choices, theirs.choices
            assert mine.token_ids == its.token_ids
            assert mine.logprobs == pytest.approx(its.logprobs, abs=1e-5)
            if "top_k" not in sampling:
                expected = logprobs_of(model, [*prompt, *mine.token_ids])[len(prompt) - 1 :]
                assert mine.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
async def test_logprobs_are_of_the_distribution_at_the_requests_temperature(
    fresh: HttpEngineClient, qwen_models: tuple[Path, Path], oracle: Any, logprobs_of: Any, temperature: float
) -> None:
    """A trainer divides its logits by the temperature: raw values would make every ratio wrong."""
    model = oracle(qwen_models[1])
    answer = await fresh.generate(ask(PROMPTS[0], temperature=temperature, seed=3))
    [choice] = answer.choices
    expected = logprobs_of(model, [*PROMPTS[0], *choice.token_ids], temperature)[len(PROMPTS[0]) - 1 :]
    assert choice.logprobs == pytest.approx(expected, abs=1e-4)


def save_adapter(folder: Path, seed: int, modules: tuple[str, ...], weights: dict[str, torch.Tensor]) -> Path:
    """Save a random adapter of these modules in peft's format."""
    torch.manual_seed(seed)
    folder.mkdir(exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    for name in modules:
        shape = weights[f"{name}.weight"].shape if f"{name}.weight" in weights else (32, 32)
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, shape[1]) * 0.3
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(shape[0], RANK) * 0.3
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK * SCALE, "task_type": "CAUSAL_LM"}
    config |= {"target_modules": sorted({name.rsplit(".", 1)[1] for name in modules}), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def merged(model: Any, adapter: Path) -> Any:
    """Add an adapter to a model's weights: the oracle of what serving it means."""
    tensors = load_file(adapter / "adapter_model.safetensors")
    state = model.state_dict()
    with torch.no_grad():
        for name in MODULES:
            a, b = (tensors[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
            state[f"{name}.weight"] += SCALE * (b @ a)
    return model


async def test_adapters_are_served_replaced_and_removed(
    fresh: HttpEngineClient,
    fresh_server: Any,
    qwen_models: tuple[Path, Path],
    tmp_path: Path,
    oracle: Any,
    logprobs_of: Any,
    call: Any,
) -> None:
    weights = load_file(qwen_models[1] / "model.safetensors")
    folder = tmp_path / "adapter"
    before = await fresh.generate(ask(PROMPTS[2], seed=1))
    for seed, version in ((1, 31), (2, 32)):
        # From the same path: vLLM itself would answer from prefixes cached with the adapter before.
        adapter = save_adapter(folder, seed, MODULES, weights)
        status, answer = await call(
            "POST", f"{fresh_server.url}/v1/adapters", {"name": "lo", "directory": str(adapter), "version": version}
        )
        assert (status, answer) == (200, {"status": "ok", "name": "lo", "weight_version": version})
        model = merged(oracle(qwen_models[1]), adapter)
        for _ in range(2):
            found = await fresh.generate(ask(PROMPTS[2], "lo", seed=1))
            [choice] = found.choices
            expected = logprobs_of(model, [*PROMPTS[2], *choice.token_ids])[len(PROMPTS[2]) - 1 :]
            assert choice.logprobs == pytest.approx(expected, abs=1e-3)
            assert found.weight_version == version
    assert [card["id"] for card in await fresh.models()] == ["tiny", "lo"]
    base = await fresh.generate(ask(PROMPTS[2], seed=1))
    assert base.choices == before.choices, "the base model must not notice adapters"
    assert (await call("DELETE", f"{fresh_server.url}/v1/adapters/lo"))[0] == 200
    with pytest.raises(EngineError, match="'lo' is not served here"):
        await fresh.generate(ask(PROMPTS[0], "lo"))
    status, answer = await call("DELETE", f"{fresh_server.url}/v1/adapters/lo")
    assert (status, answer["error"]["code"]) == (404, "unknown_model")


async def test_an_adapter_of_another_model_is_refused(
    fresh: HttpEngineClient, fresh_server: Any, qwen_models: tuple[Path, Path], tmp_path: Path, call: Any
) -> None:
    """vLLM loads one whose modules it does not find, and then serves the base model under the adapter's name."""
    weights = load_file(qwen_models[1] / "model.safetensors")
    before = await fresh.generate(ask(PROMPTS[0], seed=1))
    bad = {
        "modules are not in the model": save_adapter(tmp_path / "a", 1, ("model.layers.9.self_attn.q_proj",), weights),
        "1 of its 3 modules": save_adapter(tmp_path / "b", 1, (*MODULES, "transformer.h.0.attn"), weights),
        "adapts no module": save_adapter(tmp_path / "c", 1, (), weights),
        "does not hold": tmp_path / "absent",
        "its rank is 64": save_adapter(tmp_path / "d", 1, MODULES, weights),
        "cannot be read": save_adapter(tmp_path / "e", 1, MODULES, weights),
    }
    config = tmp_path / "d" / "adapter_config.json"
    config.write_text(config.read_text().replace('"r": 4', '"r": 64'))
    (tmp_path / "e" / "adapter_model.safetensors").write_bytes(b"no tensors")
    for said, directory in bad.items():
        status, answer = await call(
            "POST", f"{fresh_server.url}/v1/adapters", {"name": "bad", "directory": str(directory)}
        )
        assert (status, answer["error"]["code"]) == (400, "bad_adapter"), said
        assert said in answer["error"]["message"]
    status, answer = await call(
        "POST", f"{fresh_server.url}/v1/adapters", {"name": "tiny", "directory": str(tmp_path / "a")}
    )
    assert (status, answer["error"]["code"]) == (400, "bad_adapter")
    assert (await fresh.generate(ask(PROMPTS[0], seed=1))).choices == before.choices
    with pytest.raises(EngineError, match="is not served here"):
        await fresh.generate(ask(PROMPTS[0], "bad"))


async def test_prompt_logprobs_with_adapters_on_are_refused_not_fatal(fresh: HttpEngineClient) -> None:
    """vLLM's CPU build dies of them."""
    with pytest.raises(EngineError, match="prompt_logprobs"):
        await fresh.generate(GenerateRequest(model="tiny", prompt_token_ids=[1, 2, 3], prompt_logprobs=True))
    assert await fresh.health()


def test_it_ends_when_its_terminal_does(serve: Callable[..., Any], fresh_server: Any) -> None:
    """The last of this file: nothing that it started is left."""
    assert fresh_server.stop() == 0
    said = fresh_server.said().split("serving 'tiny'")[1]
    # vLLM's front logs a traceback of its own where its engine's process ends a moment before it; we add none.
    unlogged = [line for line in said.splitlines() if not re.match(r"\((APIServer|EngineCore)\b[^)]*\)", line)]
    assert "Traceback" not in "\n".join(unlogged)
    assert not re.search(r'/prl(_\w+)?/[\w/]+\.py", line', said), "a part of prl failed while the server ended"
