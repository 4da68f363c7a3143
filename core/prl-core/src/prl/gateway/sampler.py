"""One request to its turns: bridge or render, send ids, read the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from prl.client.session import CHARACTERS_PER_TOKEN, turn_seed
from prl.contracts import EngineClient, Renderer
from prl.render import proven_bridge
from prl.types import (
    GenerateChoice,
    GenerateRequest,
    GenerateResponse,
    Message,
    ParsedResponse,
    PromptIds,
    RenderError,
    SamplingParams,
    Turn,
)

from .answer import answered
from .body import ChatRequest
from .book import Match, Node
from .canonical import extend_key
from .sampling import apply_forced
from .stops import Said, check_stops, cut_at_stop

if TYPE_CHECKING:
    from .session import GatewaySession

Result = TypeVar("Result")
Decode = Callable[[list[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What a session fixes: `forced` fields, the `seed` of its turns (it beats the client's), its cache salt."""

    forced: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    cache_salt: str | None = None

    def params(self, asked: SamplingParams, number: int, stop_ids: list[int]) -> SamplingParams:
        """Return how request `number` of the session is sampled."""
        merged = apply_forced(asked, self.forced)
        explicit = self.forced.get("seed") if self.seed is not None else merged.seed
        return replace(
            merged,
            seed=turn_seed(explicit, self.seed, number),
            stop_token_ids=tuple(dict.fromkeys([*stop_ids, *merged.stop_token_ids])),
        )


class Sampler:
    """Turns requests into turns on one engine and one renderer; holds no conversation."""

    def __init__(self, renderer: Renderer, *, model: str, thread_above: int) -> None:
        self.renderer = renderer
        self.model = model
        self._tokenizer = getattr(renderer, "tokenizer", None)
        self.decode: Decode | None = getattr(self._tokenizer, "decode", None)
        self._thread_above = thread_above
        self._stop_ids = renderer.get_stop_token_ids()
        self._knows_developers = knows_role(renderer, "developer")

    def understood(self, request: ChatRequest) -> ChatRequest:
        """Return a request as the family reads it: OpenAI's developer messages are system messages to most."""
        if self._knows_developers or all(message.get("role") != "developer" for message in request.messages):
            return request
        messages = [
            Message(**{**message, "role": "system"}) if message.get("role") == "developer" else message
            for message in request.messages
        ]
        return replace(request, messages=messages)

    async def sample(
        self,
        session: GatewaySession,
        engine: EngineClient,
        request: ChatRequest,
        match: Match,
        sampling: Sampling,
        number: int,
    ) -> list[Node]:
        """Return one node a choice; raise the typed error of what failed."""
        check_stops(request.stop, self._tokenizer)
        size = sum(len(str(message.get("content") or "")) for message in match.messages[-match.new :])
        prompt = await self._run(size, lambda: self._prompt(request, match))
        params = sampling.params(request.sampling, number, self._stop_ids)
        response = await engine.generate(
            GenerateRequest(model=self.model, prompt_token_ids=prompt, sampling=params, cache_salt=sampling.cache_salt)
        )
        size = CHARACTERS_PER_TOKEN * sum(len(choice.token_ids) for choice in response.choices)
        turns = await self._run(size, lambda: self._turns(request, prompt, params, response))
        return [self.node(session, match, turn, may_call=request.may_call) for turn in turns]

    async def _run(self, size: int, work: Callable[[], Result]) -> Result:
        """Work here, or in a thread where there is much to do, so that other requests need not wait for it."""
        return await asyncio.to_thread(work) if size > self._thread_above else work()

    def _prompt(self, request: ChatRequest, match: Match) -> PromptIds:
        node = match.extends
        if node is not None:
            bridged = proven_bridge(
                self.renderer,
                node.turn.prompt_ids,
                node.turn.completion_ids,
                match.messages[-match.new :],
                tools=request.tools,
                history=node.history,
            )
            if bridged is not None:
                return bridged
        return PromptIds(self.renderer.render_ids(match.messages, tools=request.tools, add_generation_prompt=True))

    def _turns(
        self, request: ChatRequest, prompt: PromptIds, params: SamplingParams, response: GenerateResponse
    ) -> list[Turn]:
        turns = []
        for choice in response.choices:
            said = self._cut(choice, prompt, params, request)
            parsed = self.renderer.parse_response(said.read, tools=request.tools, prompt_ids=prompt)
            turns.append(self._turn(said.choice, prompt, params, response.weight_version, parsed))
        return turns

    def _cut(self, choice: GenerateChoice, prompt: PromptIds, params: SamplingParams, request: ChatRequest) -> Said:
        length, least = len(prompt), params.min_tokens
        return cut_at_stop(choice, request.stop, self._tokenizer, prompt_length=length, min_tokens=least)

    def _turn(
        self, choice: GenerateChoice, prompt: PromptIds, params: SamplingParams, version: int, parsed: ParsedResponse
    ) -> Turn:
        return Turn(
            prompt_ids=prompt,
            completion_ids=choice.token_ids,
            logprobs=choice.logprobs,
            finish_reason=choice.finish_reason,
            weight_version=version,
            message=parsed.to_message(),
            parsed=parsed,
            temperature=params.temperature,
            routed_experts=choice.routed_experts,
        )

    def node(self, session: GatewaySession, match: Match, turn: Turn, *, may_call: bool) -> Node:
        """Return a turn as a node of its session's tree."""
        answer: Message = answered(turn, self.decode, may_call=may_call)
        return Node(
            turn=turn,
            history=(*match.messages, turn.message),
            answer=answer,
            key=extend_key(match.key, answer, len(match.messages)),
            tools=match.tools,
            session=session,
        )


def knows_role(renderer: Renderer, role: str) -> bool:
    """Whether a renderer writes messages of a role: some refuse it, and some templates drop it without a word."""
    user: Message = {"role": "user", "content": "b"}
    try:
        return renderer.render_ids([{"role": role, "content": "a"}, user]) != renderer.render_ids([user])
    except RenderError:
        return False
