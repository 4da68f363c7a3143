"""Checks of a client mode over a pretended engine: exact ids, whole turns, nothing half-done after an error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prl.contracts import ClientMode, EngineClient, Renderer
from prl.types import (
    GenerateChoice,
    GenerateRequest,
    GenerateResponse,
    Message,
    PromptTooLongError,
    RenderedTokens,
    SamplingParams,
    ToolSpec,
    Turn,
)

from .check import NotApplicable, brief, check, expect
from .material import ASK_AGAIN, TOOL, user

MakeMode = Callable[[EngineClient, Renderer], ClientMode]
_VERSION = 3


class PretendEngine:
    """An `EngineClient` that renders nothing and samples a script: what a mode sends is kept, what it gets is known.

    Each answer is the script's next text, encoded by the renderer's tokenizer, with its stop token.
    """

    def __init__(self, renderer: Renderer, tokenizer: Any, script: Sequence[str | Exception]) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._script = list(script)
        self.prompts: list[list[int]] = []
        self.completions: list[list[int]] = []
        self.salts: list[str | None] = []
        self.stops: list[list[int]] = []
        self.seeds: list[int | None] = []

    async def generate(self, request: GenerateRequest) -> GenerateResponse:
        """Answer a prompt of exact ids."""
        sampling = request.sampling
        self._note(list(request.prompt_token_ids), request.cache_salt, list(sampling.stop_token_ids), sampling.seed)
        ids, _ = self._sample()
        choice = GenerateChoice(token_ids=ids, logprobs=_logprobs(ids), finish_reason="stop")
        return GenerateResponse(
            choices=(choice,), weight_version=_VERSION, prompt_token_ids=list(request.prompt_token_ids)
        )

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer messages, as a server does that says which ids it used."""
        json.dumps(body, allow_nan=False)
        prompt = self._renderer.render_ids(body["messages"], tools=body.get("tools"), add_generation_prompt=True)
        self._note(prompt, body.get("cache_salt"), body.get("stop_token_ids") or [], body.get("seed"))
        ids, text = self._sample()
        logprobs = {"content": [{"token": "", "logprob": value} for value in _logprobs(ids)]}
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
            "token_ids": ids,
            "logprobs": logprobs,
        }
        return {"choices": [choice], "prompt_token_ids": prompt, "weight_version": _VERSION}

    async def models(self) -> list[dict[str, Any]]:
        """Name the pretended model."""
        return [{"id": "pretend", "max_model_len": 4096}]

    async def health(self) -> bool:
        """Be ready."""
        return True

    async def load_weights(self, directory: str, version: int) -> None:
        """Have no weights."""

    async def close(self) -> None:
        """Hold nothing."""

    def _note(self, prompt: list[int], salt: str | None, stops: list[int], seed: int | None) -> None:
        self.prompts.append(prompt)
        self.salts.append(salt)
        self.stops.append(stops)
        self.seeds.append(seed)

    def _sample(self) -> tuple[list[int], str]:
        answer = self._script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        ids = [*self._tokenizer.encode(answer), self._renderer.get_stop_token_ids()[0]]
        self.completions.append(ids)
        return ids, answer


class PlainRenderer:
    """A small whole renderer for modes that need one: `<s>role` and a line feed, the body, `</s>`."""

    name = "plain"
    is_prefix_stable = True

    def __init__(self) -> None:
        from prl.testing.byte_tokenizer import ByteTokenizer
        from prl.tokenizer import as_tokenizer

        self.tokenizer = as_tokenizer(ByteTokenizer(["<s>", "</s>"]))

    def render_ids(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Return the ids of a conversation."""
        turns = "".join(f"<s>{message['role']}\n{message.get('content') or ''}</s>" for message in messages)
        return self.tokenizer.encode(turns + "<s>assistant\n" * add_generation_prompt)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """Return the ids without ownership."""
        ids = self.render_ids(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        return RenderedTokens(ids, None, tuple(message["role"] for message in messages))

    def bridge_to_next_turn(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        history: Sequence[Message] | None = None,
    ) -> RenderedTokens:
        """Extend what was sampled."""
        tail = self.render_ids(new_messages, add_generation_prompt=True)
        return RenderedTokens([*prompt_ids, *completion_ids, *tail], None, ())

    def parse_response(
        self,
        completion_ids: Sequence[int],
        *,
        tools: Sequence[ToolSpec] | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> Any:
        """Read the text before the stop token."""
        from prl.types import ParsedResponse

        stop = self.get_stop_token_ids()[0]
        return ParsedResponse(self.tokenizer.decode([token for token in completion_ids if token != stop]))

    def stream_parser(self, *, tools: Any = None, prompt_ids: Any = None) -> Any:
        """Refuse: a client mode reads whole completions."""
        raise NotApplicable("the kit's plain renderer does not stream")

    def get_stop_token_ids(self) -> list[int]:
        """Return the close of a turn."""
        return self.tokenizer.encode("</s>")


@dataclass
class ClientModeSubject:
    """A client mode under check: how to make it on an engine client and a renderer."""

    name: str
    make: MakeMode
    quirks: Mapping[str, str] = field(default_factory=dict)

    def start(self, *script: str | Exception, **session: Any) -> tuple[PretendEngine, Any]:
        """Return a pretended engine with a script, and a session on it."""
        renderer = PlainRenderer()
        engine = PretendEngine(renderer, renderer.tokenizer, script)
        mode = self.make(engine, renderer)
        return engine, mode.session(model="pretend", **session)


@check("client_mode")
def a_turn_has_the_exact_ids(subject: ClientModeSubject) -> None:
    """The trainer sees other tokens than the engine used and sampled."""
    engine, session = subject.start("one", "two")
    turns = [_turn(session, [user()]), _turn(session, [user(ASK_AGAIN)])]
    for turn, prompt, completion in zip(turns, engine.prompts, engine.completions, strict=True):
        expect(list(turn.prompt_ids) == prompt, "a turn's prompt ids are not those the engine used")
        expect(list(turn.completion_ids) == completion, "a turn's completion ids are not those the engine sampled")
        expect(list(turn.logprobs or ()) == _logprobs(completion), "a turn's log-probabilities are not the engine's")
        expect(turn.weight_version == _VERSION, f"a turn's weight version is {turn.weight_version}, not {_VERSION}")
        expect(turn.finish_reason == "stop", f"a stopped turn's finish reason is {turn.finish_reason!r}")


@check("client_mode")
def the_conversation_grows_by_whole_turns(subject: ClientModeSubject) -> None:
    """The model does not see what it said, or what it was told."""
    engine, session = subject.start("one", "two", tools=[TOOL])
    given: list[Message] = [user(), user(ASK_AGAIN)]
    for message in given:
        _turn(session, [message])
    roles = [message["role"] for message in session.messages]
    expect(roles == ["user", "assistant", "user", "assistant"], f"the session's messages are {roles}")
    said = [message["content"] for message in session.messages if message["role"] == "assistant"]
    expect(said == ["one", "two"], f"the session's assistant turns are {said}")
    before = [*engine.prompts[0], *engine.completions[0]]
    expect(engine.prompts[1][: len(before)] == before, "the second prompt does not extend the first turn")


@check("client_mode")
def an_error_leaves_the_session_as_it_was(subject: ClientModeSubject) -> None:
    """After one refused prompt the session holds a question that nobody answered, and asks it twice."""
    refusal = PromptTooLongError("too long", where="the kit", next_step="none")
    engine, session = subject.start("one", refusal, "two")
    _turn(session, [user()])
    before = list(session.messages)
    try:
        _turn(session, [user(ASK_AGAIN)])
    except PromptTooLongError:
        expect(session.messages == before, f"after an error the session holds {brief(session.messages)}")
    else:
        expect(False, "a prompt that is too long is no error")
    _turn(session, [user(ASK_AGAIN)])
    expect(engine.prompts[2] == engine.prompts[1], "the same question after an error gives another prompt")


@check("client_mode")
def the_callers_messages_are_not_changed(subject: ClientModeSubject) -> None:
    """The environment's own messages change under its hands."""
    _, session = subject.start("one")
    given = [user()]
    _turn(session, given)
    expect(given == [user()], f"the new messages became {brief(given)}")


@check("client_mode")
def the_sessions_salt_reaches_the_engine(subject: ClientModeSubject) -> None:
    """The prefix cache serves keys of older weights."""
    engine, session = subject.start("one", "two", cache_salt="weights-3")
    for message in (user(), user(ASK_AGAIN)):
        _turn(session, [message])
    expect(engine.salts == ["weights-3", "weights-3"], f"cache salts sent: {engine.salts}")


@check("client_mode")
def a_seed_gives_each_turn_its_own(subject: ClientModeSubject) -> None:
    """Every turn, or every rollout of a group, draws the same random numbers."""
    engine, session = subject.start("one", "two", seed=7)
    other_engine, other = subject.start("one", seed=8)
    for message in (user(), user(ASK_AGAIN)):
        _turn(session, [message])
    _turn(other, [user()])
    seeds = [*engine.seeds, *other_engine.seeds]
    expect(None not in seeds and len(set(seeds)) == len(seeds), f"seeds sent in two sessions: {seeds}")


def _turn(session: Any, new: Sequence[Message]) -> Turn:
    turn: Turn = asyncio.run(session.turn(new, SamplingParams(max_tokens=64)))
    return turn


def _logprobs(ids: Sequence[int]) -> list[float]:
    return [-0.5 - n / 64 for n in range(len(ids))]
