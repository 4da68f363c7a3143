"""New weights while vLLM serves: exact, versioned, whole or not at all."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from prl.client import HttpEngineClient
from prl.types import EngineError, EngineUnavailableError, GenerateRequest, GenerateResponse, SamplingParams
from prl_engine_vllm.sockets import folder_of

pytestmark = pytest.mark.heavy
PROMPT = list(range(20, 60))
LONG = [(7 * i) % 1000 for i in range(300)]  # longer than two blocks of the prefix cache
UPDATES = 100
IN_FLIGHT = 6


def ask(prompt: list[int] = PROMPT, **sampling: Any) -> GenerateRequest:
    params = SamplingParams(**{"max_tokens": 8, "seed": 1} | sampling)
    return GenerateRequest(model="tiny", prompt_token_ids=prompt, sampling=params)


@pytest.fixture
async def client(moe_server: Any) -> AsyncIterator[HttpEngineClient]:
    client = HttpEngineClient(moe_server.url, timeout=120, retries=0)
    yield client
    await client.close()


@pytest.fixture(scope="module")
def oracles(moe_models: tuple[Path, Path], oracle: Callable[[Path], Any]) -> tuple[Any, Any]:
    return oracle(moe_models[0]), oracle(moe_models[1])


def error_of(answer: GenerateResponse, model: Any, logprobs_of: Any) -> float:
    """Return the largest difference of any sampled token's log-probability from the model's own."""
    prompt = answer.prompt_token_ids
    worst = 0.0
    for choice in answer.choices:
        expected = logprobs_of(model, [*prompt, *choice.token_ids])[len(prompt) - 1 :]
        worst = max(worst, *(abs(a - b) for a, b in zip(choice.logprobs, expected, strict=True)))
    return worst


async def test_a_mixture_of_experts_answers_exactly_after_a_load_and_after_going_back(
    client: HttpEngineClient, moe_models: tuple[Path, Path], oracles: tuple[Any, Any], logprobs_of: Any
) -> None:
    """vLLM's own reload leaves experts unpacked, and then even the first weights do not give the first answers back."""
    for version, which in ((1, 1), (2, 0), (3, 1), (4, 0)):
        await client.load_weights(str(moe_models[which]), version)
        answer = await client.generate(ask(n=2))
        assert answer.weight_version == version
        assert error_of(answer, oracles[which], logprobs_of) < 1e-4
        assert error_of(answer, oracles[1 - which], logprobs_of) > 0.1


async def test_no_cached_prefix_outlives_its_weights(
    client: HttpEngineClient, moe_models: tuple[Path, Path], oracles: tuple[Any, Any], logprobs_of: Any
) -> None:
    """The same long prompt, without a new salt: keys of the old weights would be off by more than one."""
    await client.load_weights(str(moe_models[0]), 5)
    for _ in range(2):
        assert error_of(await client.generate(ask(LONG)), oracles[0], logprobs_of) < 1e-4
    await client.load_weights(str(moe_models[1]), 6)
    assert error_of(await client.generate(ask(LONG)), oracles[1], logprobs_of) < 1e-4


async def test_a_hundred_updates_under_load_never_mix_versions(
    client: HttpEngineClient, moe_models: tuple[Path, Path], oracles: tuple[Any, Any], logprobs_of: Any
) -> None:
    """Each answer's tokens belong to the version that it names, and none is lost."""
    first = 1000
    answers: list[GenerateResponse] = []
    done = asyncio.Event()

    async def play(number: int) -> None:
        seed = number
        while not done.is_set():
            seed += IN_FLIGHT
            answers.append(await client.generate(ask([5 + number, *PROMPT], seed=seed, max_tokens=4 + seed % 13)))

    players = [asyncio.create_task(play(number)) for number in range(IN_FLIGHT)]
    for update in range(UPDATES):
        await client.load_weights(str(moe_models[update % 2]), first + update)
    done.set()
    await asyncio.gather(*players)
    versions = {answer.weight_version for answer in answers if answer.weight_version >= first}
    assert len(versions) > UPDATES // 2, "requests did not run between most updates"
    for answer in answers:
        if answer.weight_version >= first:
            which = (answer.weight_version - first) % 2
            assert error_of(answer, oracles[which], logprobs_of) < 1e-4, answer.weight_version


def _spoil(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return edit


def _cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _misname(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "absent.safetensors"}}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_spoil(lambda t: t.pop("model.norm.weight")), r"lacks 'model\.norm\.weight'"),
        (_spoil(lambda t: t.update({"model.extra.weight": torch.zeros(2)})), r"no 'model\.extra\.weight'"),
        (_spoil(lambda t: t.update({"model.norm.weight": torch.ones(33)})), r"shape \[33\], the model's is \[32\]"),
        (_spoil(lambda t: t["model.norm.weight"].fill_(float("nan"))), "not finite"),
        (_spoil(lambda t: t.update({"lm_head.weight": torch.zeros(1024, 32)})), "tied in the model but differ"),
        (_cut, "cannot be read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no \\*.safetensors"),
        (_misname, "absent.safetensors"),
        (shutil.rmtree, "no such directory"),
    ],
)
async def test_a_bad_directory_leaves_the_old_weights_serving(
    client: HttpEngineClient, moe_models: tuple[Path, Path], tmp_path: Path, damage: Any, said: str
) -> None:
    """vLLM's own reload of such a directory answers 500, and the next request ends the server."""
    await client.load_weights(str(moe_models[0]), 7)
    before = await client.generate(ask())
    bad = tmp_path / "bad"
    shutil.copytree(moe_models[1], bad)
    damage(bad)
    with pytest.raises(EngineError, match=said):
        await client.load_weights(str(bad), 8)
    after = await client.generate(ask())
    assert after.choices == before.choices
    assert after.weight_version == 7


@pytest.fixture
def misled(moe_server: Any, moe_models: tuple[Path, Path], tmp_path: Path) -> Any:
    """Spoil the served checkpoint's files, so that a directory of wrong shapes passes the check and fails half way."""
    half = tmp_path / "half"
    shutil.copytree(moe_models[1], half)
    name = "model.layers.1.self_attn.q_proj.weight"
    _spoil(lambda tensors: tensors.update({name: torch.ones(64, 32)}))(half)
    shutil.copy(half / "model.safetensors", moe_server.model / "model.safetensors")
    yield half
    shutil.copy(moe_models[0] / "model.safetensors", moe_server.model / "model.safetensors")


async def test_a_load_that_fails_half_way_goes_back_to_the_old_weights(
    client: HttpEngineClient, moe_server: Any, moe_models: tuple[Path, Path], tmp_path: Path, misled: Path
) -> None:
    shutil.copy(moe_models[0] / "model.safetensors", moe_server.model / "model.safetensors")
    last = tmp_path / "last"
    shutil.copytree(moe_models[0], last)
    await client.load_weights(str(last), 9)
    before = await client.generate(ask())
    shutil.copy(misled / "model.safetensors", moe_server.model / "model.safetensors")
    with pytest.raises(EngineError, match="not loaded"):
        await client.load_weights(str(misled), 10)
    after = await client.generate(ask())
    assert after.choices == before.choices
    assert after.weight_version == 9


async def test_weights_that_cannot_be_restored_are_never_served(
    client: HttpEngineClient,
    moe_server: Any,
    moe_models: tuple[Path, Path],
    tmp_path: Path,
    misled: Path,
    oracles: tuple[Any, Any],
    logprobs_of: Any,
    call: Any,
) -> None:
    """Half of one version and half of another would answer 200 with nonsense: all is refused until a good load."""
    shutil.copy(moe_models[0] / "model.safetensors", moe_server.model / "model.safetensors")
    last = tmp_path / "last"
    shutil.copytree(moe_models[0], last)
    await client.load_weights(str(last), 11)
    shutil.copy(misled / "model.safetensors", moe_server.model / "model.safetensors")
    shutil.rmtree(last)
    with pytest.raises(EngineUnavailableError, match="undefined"):
        await client.load_weights(str(misled), 12)
    for method, path, body in (
        ("POST", "/v1/generate", {"model": "tiny", "prompt_token_ids": [1, 2]}),
        ("GET", "/health", None),
        ("GET", "/v1/models", None),
    ):
        status, answer = await call(method, moe_server.url + path, body)
        assert (status, answer["error"]["code"]) == (503, "weights_undefined"), path
    shutil.copy(moe_models[0] / "model.safetensors", moe_server.model / "model.safetensors")
    await client.load_weights(str(moe_models[1]), 13)
    answer = await client.generate(ask())
    assert answer.weight_version == 13
    assert error_of(answer, oracles[1], logprobs_of) < 1e-4


async def test_ids_outside_the_vocabulary_are_refused_though_the_server_has_no_tokenizer(
    client: HttpEngineClient,
) -> None:
    """Without a tokenizer vLLM checks no ids, and one foreign id ends the whole server."""
    for prompt in ([1024], [5, 5000], [-1], [2**40]):
        with pytest.raises(EngineError, match="outside the vocabulary of 1024"):
            await client.generate(ask(prompt))
    assert await client.health()


async def test_prompts_of_one_token_are_answered(
    client: HttpEngineClient, moe_models: tuple[Path, Path], oracles: tuple[Any, Any], logprobs_of: Any
) -> None:
    await client.load_weights(str(moe_models[0]), 14)
    for length in range(1, 6):
        assert error_of(await client.generate(ask(PROMPT[:length])), oracles[0], logprobs_of) < 1e-4


async def test_the_server_does_not_outlive_a_launcher_that_was_killed(moe_server: Any, call: Any) -> None:
    """The last of this file. A run that dies must not leave a GPU occupied, nor the sockets that vLLM leaves."""
    _, about = await call("GET", f"{moe_server.url}/v1/engine")
    sockets = folder_of(about["instance"])
    assert list(sockets.iterdir())
    moe_server.process.kill()
    moe_server.process.wait()
    deadline = time.monotonic() + 60
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", moe_server.port)) != 0:
                break
        assert time.monotonic() < deadline, "vLLM still listens"
        time.sleep(0.2)
    assert not sockets.exists()
