"""An unmodified vLLM: what the client sends to its own route, and both shapes of what comes back."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from prl.client import HttpEngineClient, PrlRoute, VllmRoute, find_route
from prl.types import (
    ConfigError,
    EngineError,
    GenerateRequest,
    MalformedResponseError,
    PromptTooLongError,
    RequestAbortedError,
    SamplingParams,
)

Connect = Callable[..., HttpEngineClient]
NEW = {"content": [{"token_id": 7, "logprob": -0.5, "rank": 1, "top_logprobs": []}, {"token_id": 8, "logprob": -1.5}]}
OLD = {"content": [{"token": "token_id:7", "logprob": -0.5}, {"token": "token_id:8", "logprob": -1.5, "bytes": None}]}
CARD = (200, {"data": [{"id": "m", "max_model_len": 10}]})


def answer(**changes: Any) -> dict[str, Any]:
    choice = {"index": 0, "token_ids": [7, 8], "logprobs": NEW, "finish_reason": "stop", "stop_reason": 8} | changes
    usage = {"prompt_tokens": 2, "total_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": None}
    return {"request_id": "r", "output_mode": "tokens", "choices": [choice], "prompt_logprobs": None, "usage": usage}


def as_array_file(rows: list[list[list[int]]], kind: str = "<i2", code: str = "h") -> str:
    """Return what numpy.save writes of the rows, as base64."""
    shape = (len(rows), len(rows[0]), len(rows[0][0]))
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    text = header.ljust(117) + "\n"
    data = array(code, [expert for row in rows for layer in row for expert in layer]).tobytes()
    return base64.b64encode(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + data).decode()


def test_the_array_file_of_these_tests_is_numpys() -> None:
    written = (
        "k05VTVBZAQB2AHsnZGVzY3InOiAnPGkyJywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDMsIDEsIDIpLCB9ICAg"
        "ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoBAAIAAwAAAAIAAQA="
    )
    assert as_array_file([[[1, 2]], [[3, 0]], [[2, 1]]]) == written


def request(**changes: Any) -> GenerateRequest:
    return GenerateRequest(model="m", prompt_token_ids=[1, 2], **changes)


@pytest.fixture
def vllm(fake: Any, connect: Connect) -> HttpEngineClient:
    return connect(fake.url, route=VllmRoute())


@pytest.mark.parametrize("logprobs", [NEW, OLD], ids=["token_id", "token: token_id:N"])
async def test_both_shapes_of_log_probabilities_are_read(fake: Any, vllm: HttpEngineClient, logprobs: Any) -> None:
    fake.replies = [CARD, (200, answer(logprobs=logprobs))]
    response = await vllm.generate(request())
    [choice] = response.choices
    assert (choice.token_ids, choice.logprobs, choice.finish_reason) == ([7, 8], [-0.5, -1.5], "stop")
    assert (response.weight_version, response.prompt_token_ids) == (-1, [1, 2])
    assert response.usage == {"prompt_tokens": 2, "total_tokens": 4, "completion_tokens": 2}


async def test_what_is_sent_means_the_same_as_on_prls_own_route(fake: Any, vllm: HttpEngineClient) -> None:
    """vLLM's defaults differ: 16 tokens in some versions, a stop at the model's own end token, text besides ids."""
    fake.replies = [(200, answer())]
    sampling = SamplingParams(
        max_tokens=5, min_tokens=2, temperature=0.5, top_p=0.9, top_k=5, seed=3, stop_token_ids=(8,)
    )
    await vllm.generate(request(sampling=sampling, priority=2, cache_salt="v1", request_id="key", data_parallel_rank=1))
    path, body, headers = fake.requests[0]
    assert path == "/inference/v1/generate"
    assert headers["X-data-parallel-rank"] == "1"
    assert body == {
        "model": "m",
        "token_ids": [1, 2],
        "sampling_params": {
            "n": 1,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 5,
            "max_tokens": 5,
            "min_tokens": 2,
            "seed": 3,
            "stop_token_ids": [8],
            "ignore_eos": True,
            "logprobs": 0,
            "detokenize": False,
            "skip_special_tokens": False,
        },
        "priority": 2,
        "cache_salt": "v1",
    }


async def test_without_max_tokens_the_client_asks_once_how_long_the_context_is(
    fake: Any, vllm: HttpEngineClient
) -> None:
    fake.replies = [CARD, (200, answer()), (200, answer())]
    for _ in range(2):
        await vllm.generate(request())
    assert [path for path, _, _ in fake.requests] == ["/v1/models"] + ["/inference/v1/generate"] * 2
    assert fake.requests[1][1]["sampling_params"]["max_tokens"] == 8
    with pytest.raises(PromptTooLongError, match="10 tokens"):
        await vllm.generate(GenerateRequest(model="m", prompt_token_ids=[1] * 10))
    fake.replies = [CARD]
    with pytest.raises(MalformedResponseError, match="how long the context"):
        await vllm.generate(GenerateRequest(model="other", prompt_token_ids=[1]))


async def test_prompt_logprobs_are_found_by_the_prompts_ids(fake: Any, vllm: HttpEngineClient) -> None:
    """vLLM gives a dictionary of candidates a position; the first need not be the prompt's own token."""
    values = [None, {"9": {"logprob": -0.1, "rank": 1}, "2": {"logprob": -3.0, "rank": 4}}]
    asked = request(prompt_logprobs=True, sampling=SamplingParams(max_tokens=2))
    fake.replies = [(200, answer() | {"prompt_logprobs": values})]
    assert (await vllm.generate(asked)).prompt_logprobs == [None, -3.0]
    assert fake.requests[0][1]["sampling_params"]["prompt_logprobs"] == 0
    for wrong in ([None, {"9": {"logprob": -0.1}}], [None], [None, None], None, [None, {"2": {"logprob": -9999.0}}]):
        fake.replies = [(200, answer() | {"prompt_logprobs": wrong})]
        with pytest.raises(MalformedResponseError):
            await vllm.generate(asked)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logprobs": None}, "no log-probabilities"),
        ({"logprobs": {"content": None}}, "no log-probabilities"),
        ({"token_ids": None}, "no token ids"),
        ({"token_ids": [7]}, "1 token ids but 2"),
        ({"token_ids": [7, 9]}, "is of token 8, the sampled one is 9"),
        ({"logprobs": {"content": [{"token_id": 7, "logprob": -9999.0}] * 2}, "token_ids": [7, 7]}, "no log-prob"),
        ({"finish_reason": None}, "finish_reason"),
        ({"finish_reason": "error"}, "finish_reason"),
        ({"token_ids": "7"}, "not a vLLM generate answer"),
    ],
)
async def test_an_inconsistent_answer_is_an_error_never_filled_in(
    fake: Any, vllm: HttpEngineClient, changes: dict[str, Any], message: str
) -> None:
    fake.replies = [(200, answer(**changes))]
    with pytest.raises(MalformedResponseError, match=message):
        await vllm.generate(request(sampling=SamplingParams(max_tokens=2)))


async def test_routing_comes_as_rows_in_whatever_form_it_is_sent(fake: Any, vllm: HttpEngineClient) -> None:
    """vLLM sends an array file as text; its letters were taken for rows, and no rollout of the model could be used."""
    rows = [[[1, 2]], [[3, 0]], [[2, 1]]]
    asked = request(sampling=SamplingParams(max_tokens=2))
    for sent in (as_array_file(rows), rows):
        fake.replies = [(200, answer(routed_experts=sent))]
        assert (await vllm.generate(asked)).choices[0].routed_experts == rows
    wide = as_array_file([[[70_000]]], "<i4", "i")
    fake.replies = [(200, answer(routed_experts=wide))]
    assert (await vllm.generate(asked)).choices[0].routed_experts == [[[70_000]]]


@pytest.mark.parametrize("sent", ["no base64", "AAAA", {"data": "x"}, 3])
async def test_routing_that_nobody_can_read_is_refused(fake: Any, vllm: HttpEngineClient, sent: Any) -> None:
    fake.replies = [(200, answer(routed_experts=sent))]
    with pytest.raises(MalformedResponseError, match=r"choices\[0\].routed_experts is"):
        await vllm.generate(request(sampling=SamplingParams(max_tokens=2)))


async def test_an_aborted_completion_is_never_used(fake: Any, vllm: HttpEngineClient) -> None:
    fake.replies = [(200, answer(finish_reason="abort"))]
    with pytest.raises(RequestAbortedError):
        await vllm.generate(request(sampling=SamplingParams(max_tokens=2)))


@pytest.mark.parametrize(
    ("labels", "version"),
    [(None, 4), (["default"], 4), (["3"], 3), (["7", "6"], 6), (["default", "9"], 9)],
)
async def test_the_version_is_vllms_label_where_that_is_a_number(
    fake: Any, connect: Connect, labels: list[str] | None, version: int
) -> None:
    """Tokens of two versions count as the older one: off-policyness is never understated."""
    spans = labels and [{"version": label, "start": 0, "end": 1} for label in labels]
    fake.replies = [(200, answer(weight_versions=spans))]
    client = connect(fake.url, route=VllmRoute(weight_version=4))
    response = await client.generate(request(sampling=SamplingParams(max_tokens=2)))
    assert response.weight_version == version


async def test_vllms_own_words_for_an_overlong_prompt_keep_their_type(fake: Any, vllm: HttpEngineClient) -> None:
    words = "The decoder prompt (length 2048) is longer than the maximum model length of 2048."
    fake.replies = [(400, {"error": {"message": words, "type": "BadRequestError", "param": None, "code": 400}})]
    with pytest.raises(PromptTooLongError):
        await vllm.generate(request(sampling=SamplingParams(max_tokens=2)))


async def test_loading_weights_into_a_server_without_the_route_says_what_to_use(
    fake: Any, vllm: HttpEngineClient
) -> None:
    fake.replies = [(404, {"detail": "Not Found"})]
    with pytest.raises(EngineError) as caught:
        await vllm.load_weights("/w", 1)
    assert "prl serve" in caught.value.next_step


def test_a_route_is_found_by_its_path() -> None:
    assert isinstance(find_route("/v1/generate"), PrlRoute)
    assert isinstance(find_route("/inference/v1/generate"), VllmRoute)
    with pytest.raises(ConfigError, match="no route") as caught:
        find_route("/v1/generat")
    assert "/v1/generate" in caught.value.next_step
