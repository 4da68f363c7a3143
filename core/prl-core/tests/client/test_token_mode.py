"""The `token` mode: a server renders and parses, yet the ids that were sampled are sent back as they are."""

from __future__ import annotations

from typing import Any

import pytest

from prl.client import TokenModeOptions, create_token_mode
from prl.contracts import ChatSession, ClientMode
from prl.types import ConfigError, MalformedResponseError, Message, PromptTooLongError, SamplingParams

HI: Message = {"role": "user", "content": "hi"}
GO: Message = {"role": "user", "content": "go"}
SAMPLING = SamplingParams(max_tokens=9, temperature=0.7)
USER, ASSISTANT, END, NEWLINE = 1, 2, 3, 10


class ChatServer:
    """A server whose format is role, characters, END, NEWLINE; its answers are scripted ids.

    Drift: what it sampled ("Yo") it renders otherwise ("yo") from the message, as a text round trip may.
    """

    closing = (END, NEWLINE)

    def __init__(self, *answers: list[int] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.tokenized = 0

    def framed(self, messages: list[dict[str, Any]], *, generate: bool) -> list[int]:
        ids: list[int] = []
        for message in messages:
            role = ASSISTANT if message["role"] == "assistant" else USER
            ids += [role, *map(ord, message["content"].lower()), *self.closing]
        return ids + [ASSISTANT] * generate

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        self.tokenized += 1
        return self.framed(body["messages"], generate=body["add_generation_prompt"])

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._answer("chat", body, self.framed(body["messages"], generate=True))

    async def chat_tokens(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._answer("tokens", body, body["tokens"])

    def _answer(self, route: str, body: dict[str, Any], prompt: list[int]) -> dict[str, Any]:
        self.asked.append((route, body))
        ids = self.answers.pop(0)
        if isinstance(ids, Exception):
            raise ids
        text = "".join(chr(one) for one in ids if one > NEWLINE)
        return {
            "prompt_token_ids": prompt,
            "weight_version": 5,
            "choices": [
                {
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop" if ids[-1] in (END, USER) else "length",
                    "token_ids": ids,
                    "logprobs": {"content": [{"logprob": -0.5}] * len(ids)},
                }
            ],
        }

    async def generate(self, request: Any) -> Any:
        raise AssertionError("the token mode uses the chat routes")

    async def models(self) -> list[dict[str, Any]]:
        return []

    async def health(self) -> bool:
        return True

    async def load_weights(self, directory: str, version: int) -> None:
        return None

    async def close(self) -> None:
        return None


def said(text: str, end: int | None = END) -> list[int]:
    return [*map(ord, text), *([] if end is None else [end])]


async def test_the_second_prompt_is_the_first_and_its_answer_verbatim(scripted: Any) -> None:
    server = ChatServer(said("Yo"), said("ok"), said("ok"))
    mode = create_token_mode(server)
    session = mode.session(model="m", cache_salt="v5", seed=1)
    first = await session.turn([HI], SAMPLING)
    second = await session.turn([GO], SAMPLING)
    assert [route for route, _ in server.asked] == ["chat", "tokens"]
    assert second.prompt_ids == [
        *first.prompt_ids,
        *said("Yo"),
        NEWLINE,
        USER,
        *map(ord, "go"),
        END,
        NEWLINE,
        ASSISTANT,
    ]
    third = await session.turn([GO], SAMPLING)
    assert third.prompt_ids[: len(second.prompt_ids) + 3] == [*second.prompt_ids, *said("ok")]
    assert third.prompt_ids.shares(first.prompt_ids), "a long rollout must not hold all its prompts one by one"
    assert third.weight_version == 5
    body = server.asked[2][1]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert body["cache_salt"] == "v5"
    assert body["return_token_ids"] is True
    assert server.tokenized == 2 + 2 * 2, "the close of a turn is asked for once"
    assert isinstance(mode, ClientMode)
    assert isinstance(session, ChatSession)


async def test_a_format_whose_next_turn_closes_the_last_one(scripted: Any) -> None:
    """GLM's kind: the sampled stop token is the role marker that the next message begins with."""
    server = ChatServer(said("Yo", USER), said("ok", USER))
    server.closing = ()
    session = create_token_mode(server).session(model="m")
    first = await session.turn([HI], SAMPLING)
    second = await session.turn([GO], SAMPLING)
    assert second.prompt_ids == [*first.prompt_ids, *said("Yo", USER), *map(ord, "go"), ASSISTANT]


@pytest.mark.parametrize("case", ["cut", "rewritten", "unknown stop", "empty"])
async def test_what_cannot_be_proven_is_rendered_by_the_server_and_shows_as_a_break(case: str) -> None:
    first_answer = {"cut": said("Yo", None), "unknown stop": said("Yo", USER), "empty": [END]}.get(case, said("Yo"))
    server = ChatServer(first_answer, said("ok"))
    if case == "rewritten":  # as templates do that drop earlier reasoning once a user speaks again
        plain = server.framed
        server.framed = (
            lambda messages, *, generate: (  # type: ignore[method-assign]
                plain(messages[-1:] if len(messages) > 2 else messages, generate=generate)
            )
        )
    session = create_token_mode(server).session(model="m")
    await session.turn([HI], SAMPLING)
    second = await session.turn([GO], SAMPLING)
    expected = "tokens" if case == "empty" else "chat"
    assert [route for route, _ in server.asked] == ["chat", expected]
    assert second.completion_ids == said("ok")


THINK, THOUGHT_END = 4, 5


class ThinkingServer(ChatServer):
    """Qwen3's kind: an empty reasoning block in the last turn alone; reasoning is dropped once a user speaks again."""

    def framed(self, messages: list[dict[str, Any]], *, generate: bool) -> list[int]:
        ids: list[int] = []
        last_user = max(place for place, message in enumerate(messages) if message["role"] == "user")
        for place, message in enumerate(messages):
            role = ASSISTANT if message["role"] == "assistant" else USER
            thought = [*map(ord, message.get("reasoning_content") or "")] if place > last_user else []
            shown = role == ASSISTANT and (thought or place == len(messages) - 1)
            block = [THINK, *thought, THOUGHT_END] if shown else []
            ids += [role, *block, *map(ord, message["content"].lower()), *self.closing]
        return ids + [ASSISTANT] * generate


TOOL: Message = {"role": "tool", "content": "42"}


@pytest.mark.parametrize(
    ("reasoning", "reply", "route"),
    [(None, TOOL, "tokens"), (None, GO, "tokens"), ("hm", TOOL, "tokens"), ("hm", GO, "chat")],
    ids=["tool", "user", "tool after reasoning", "user after reasoning"],
)
async def test_only_a_template_that_drops_what_was_sampled_costs_a_break(
    reasoning: str | None, reply: Message, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty block that a template writes into the last turn alone is no part of what the model said."""
    server = ThinkingServer(said("Yo"), said("ok"))
    plain = server.chat

    async def chat(body: dict[str, Any]) -> dict[str, Any]:
        answer = await plain(body)
        answer["choices"][0]["message"]["reasoning_content"] = reasoning
        return answer

    monkeypatch.setattr(server, "chat", chat)
    session = create_token_mode(server).session(model="m")
    first = await session.turn([HI], SAMPLING)
    second = await session.turn([reply], SAMPLING)
    assert server.asked[1][0] == route
    if route == "tokens":
        new = [USER, *map(ord, str(reply["content"])), END, NEWLINE, ASSISTANT]
        assert second.prompt_ids == [*first.prompt_ids, *said("Yo"), NEWLINE, *new]


async def test_a_template_that_drops_an_earlier_turns_reasoning_costs_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last turn may be as it was, and the history before it rewritten all the same."""
    server = ThinkingServer(said("Yo"), said("ok"), said("ok"))
    plain = server.chat

    async def chat(body: dict[str, Any]) -> dict[str, Any]:
        answer = await plain(body)
        answer["choices"][0]["message"]["reasoning_content"] = "hm"
        return answer

    monkeypatch.setattr(server, "chat", chat)
    session = create_token_mode(server).session(model="m")
    await session.turn([HI], SAMPLING)
    await session.turn([TOOL], SAMPLING)
    await session.turn([GO], SAMPLING)
    assert [route for route, _ in server.asked] == ["chat", "tokens", "chat"]


async def test_an_overlong_prompt_leaves_the_session_as_it_was() -> None:
    server = ChatServer(said("Yo"), PromptTooLongError("too long"), said("ok"))
    session = create_token_mode(server).session(model="m")
    first = await session.turn([HI], SAMPLING)
    with pytest.raises(PromptTooLongError):
        await session.turn([{"role": "user", "content": "x" * 99}], SAMPLING)
    assert session.messages == [HI, first.message]
    second = await session.turn([GO], SAMPLING)
    assert second.prompt_ids[: len(first.prompt_ids) + 3] == [*first.prompt_ids, *said("Yo")]


async def test_a_server_that_sampled_for_other_ids_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that renders the messages after all would break the one promise in silence."""
    server = ChatServer(said("Yo"), said("ok"))
    session = create_token_mode(server).session(model="m")
    await session.turn([HI], SAMPLING)
    monkeypatch.setattr(server, "chat_tokens", server.chat)
    with pytest.raises(MalformedResponseError, match="other prompt ids"):
        await session.turn([GO], SAMPLING)
    assert len(session.messages) == 2


async def test_template_arguments_reach_every_request() -> None:
    server = ChatServer(said("Yo"), said("ok"))
    seen: list[Any] = []
    plain = server.tokenize

    async def tokenize(body: dict[str, Any]) -> list[int]:
        seen.append(body.get("chat_template_kwargs"))
        return await plain(body)

    server.tokenize = tokenize  # type: ignore[method-assign]
    options = TokenModeOptions(chat_template_kwargs={"enable_thinking": False}, extra_body={"top_logprobs": 1})
    session = create_token_mode(server, None, options).session(model="m")
    await session.turn([HI], SAMPLING)
    await session.turn([GO], SAMPLING)
    assert seen == [{"enable_thinking": False}] * 4
    for _, body in server.asked:
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        assert body["top_logprobs"] == 1


def test_an_engine_without_the_route_is_a_config_error(scripted: Any) -> None:
    with pytest.raises(ConfigError, match="ScriptedEngine offers no") as caught:
        create_token_mode(scripted())
    assert "renderer" in caught.value.next_step


async def test_the_http_client_speaks_both_routes(fake: Any, connect: Any) -> None:
    client = connect(fake.url)
    fake.replies = [(200, {"tokens": [1, 2], "count": 2}), (200, {"choices": []}), (200, {"tokens": [1, "2"]})]
    assert await client.tokenize({"messages": []}) == [1, 2]
    assert await client.chat_tokens({"tokens": [1]}) == {"choices": []}
    assert [path for path, _, _ in fake.requests] == ["/tokenize", "/v1/chat/completions/tokens"]
    assert len(fake.requests[1][1]["request_id"]) == 32
    with pytest.raises(MalformedResponseError, match="no token ids"):
        await client.tokenize({"messages": []})
