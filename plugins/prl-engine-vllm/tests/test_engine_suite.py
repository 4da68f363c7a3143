"""vLLM answers as every engine of prl must: the suite that the embedded engine passes too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from engines.suite import CHAT, CHAT_TOKENS, Call, EngineSuite, Served, request

from prl.client import HttpEngineClient
from prl.client.routes import VllmRoute
from prl.types import PromptTooLongError

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="session")
def served(qwen_server: Any, qwen_models: tuple[Path, Path]) -> Served:
    return Served(
        url=qwen_server.url,
        model="tiny",
        vocabulary=151_936,
        context=512,
        weights=str(qwen_models[0]),
        other_weights=str(qwen_models[1]),
        examples=40,
        # /tokenize is vLLM's own route, with vLLM's own errors
        routes=("/v1/generate", CHAT, CHAT_TOKENS, "/v1/weights"),
    )


class TestVllmEngine(EngineSuite):
    """The engine of `prl-engine-vllm`, over HTTP; and what only vLLM has."""

    async def test_vllms_own_route_gives_the_same_tokens(self, client: HttpEngineClient, served: Served) -> None:
        """A server without the plugin has this route alone: the client must reach it as well."""
        native = HttpEngineClient(served.url, route=VllmRoute(weight_version=0), retries=0)
        asked = [
            request(served, seed=seed, n=n, temperature=t) for seed, n, t in ((7, 1, 1.0), (8, 2, 0.7), (9, 1, 0.0))
        ]
        for one in asked:
            theirs, ours = await native.generate(one), await client.generate(one)
            assert [c.token_ids for c in theirs.choices] == [c.token_ids for c in ours.choices]
            for mine, its in zip(ours.choices, theirs.choices, strict=True):
                assert mine.logprobs == pytest.approx(its.logprobs, abs=1e-6)
        with pytest.raises(PromptTooLongError):
            await native.generate(request(served, [5] * served.context))
        await native.close()

    @pytest.mark.parametrize("path", [CHAT, CHAT_TOKENS])
    async def test_a_retried_chat_is_not_sampled_again(self, call: Call, path: str) -> None:
        extra = {"tokens": [5, 6]} if path == CHAT_TOKENS else {}
        body = call.chat(temperature=1.0, request_id=f"chat {path}", return_token_ids=True, **extra)
        first, again = [await call("POST", path, body) for _ in range(2)]
        assert first[0] == 200
        assert first == again
        status, answer = await call("POST", path, {**body, "max_tokens": 5})
        assert (status, answer["error"]["where"]) == (400, "request_id")

    async def test_a_chat_streams_as_vllm_does(self, served: Served) -> None:
        body = {"model": served.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True}
        async with aiohttp.ClientSession() as session, session.post(served.url + CHAT, json=body) as answer:
            assert answer.content_type == "text/event-stream"
            lines = [line for line in (await answer.text()).splitlines() if line]
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[0].removeprefix("data: "))["object"] == "chat.completion.chunk"

    async def test_a_cut_off_chat_prompt_is_told_as_too_long(self, client: HttpEngineClient, served: Served) -> None:
        words = "word " * (served.context * 2)
        with pytest.raises(PromptTooLongError):
            await client.chat({"model": served.model, "messages": [{"role": "user", "content": words}]})
