"""Another vocabulary under the same ids would make every log-probability a wrong one, without any sign."""

from __future__ import annotations

from typing import Any

import pytest

from prl.types import ConfigError, EngineUnavailableError, GenerateResponse, MalformedRequestError
from prl_train.teacher.vocabulary import PROBE, check_vocabulary


class Engine:
    """Tokenizes with a function, or refuses; knows ids under `size`."""

    def __init__(self, tokenize: Any = None, size: int = 10**6) -> None:
        self._tokenize = tokenize
        self._size = size

    async def generate(self, request: Any) -> GenerateResponse:
        if max(request.prompt_token_ids) >= self._size:
            raise MalformedRequestError("an id lies outside the vocabulary")
        return GenerateResponse(choices=(), weight_version=0)

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        if self._tokenize is None:
            raise MalformedRequestError("no such route")
        return list(self._tokenize(body))

    async def chat(self, body: Any) -> Any: ...
    async def chat_tokens(self, body: Any) -> Any: ...
    async def models(self) -> Any: ...
    async def health(self) -> Any: ...
    async def load_weights(self, directory: str, version: int) -> None: ...
    async def close(self) -> None: ...


async def test_an_engine_that_tokenizes_as_we_do_passes(tokenizer: Any, render: Any) -> None:
    assert await check_vocabulary(Engine(lambda body: tokenizer.encode(body["prompt"])), "t", tokenizer) == "ids"


async def test_a_route_that_takes_only_conversations_proves_it_too(tokenizer: Any, render: Any) -> None:
    def conversations(body: dict[str, Any]) -> list[int]:
        if "messages" not in body:
            raise MalformedRequestError("messages are missing")
        return list(render().render_ids(body["messages"], add_generation_prompt=True))

    assert await check_vocabulary(Engine(conversations), "t", tokenizer) == "ids"


@pytest.mark.parametrize("shift", [1, 256])
async def test_another_vocabulary_is_refused(tokenizer: Any, shift: int) -> None:
    engine = Engine(lambda body: [token + shift for token in tokenizer.encode(body["prompt"])])
    with pytest.raises(ConfigError, match="one vocabulary") as caught:
        await check_vocabulary(engine, "t", tokenizer)
    assert "[teacher.rollouts]" in caught.value.next_step


async def test_the_same_tokens_cut_otherwise_are_another_vocabulary(tokenizer: Any) -> None:
    """Every text can be spelled in single bytes: reading the same is not being cut the same."""
    spelled = [token for char in PROBE for token in tokenizer.encode(char)]
    with pytest.raises(ConfigError, match="one vocabulary"):
        await check_vocabulary(Engine(lambda body: spelled), "t", tokenizer)


async def test_without_a_route_for_it_the_size_is_compared(tokenizer: Any) -> None:
    assert await check_vocabulary(Engine(), "t", tokenizer) == "size"
    with pytest.raises(ConfigError, match="refuses our highest id"):
        await check_vocabulary(Engine(size=1000), "t", tokenizer)


async def test_an_engine_that_is_gone_is_no_other_vocabulary(tokenizer: Any) -> None:
    def gone(body: Any) -> list[int]:
        raise EngineUnavailableError("nobody answers")

    with pytest.raises(EngineUnavailableError):
        await check_vocabulary(Engine(gone), "t", tokenizer)
