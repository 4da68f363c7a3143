"""One rollout's conversation in the `renderer` mode: what was sent and sampled is kept, never rendered again."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from prl.contracts import EngineClient, Renderer
from prl.render import proven_bridge
from prl.types import (
    ConfigError,
    EncodedIds,
    GenerateRequest,
    Message,
    ParsedResponse,
    PromptIds,
    SamplingParams,
    ToolSpec,
    Turn,
)

CHARACTERS_PER_TOKEN = 4


class RendererSession:
    """Keeps the ids of the last turn; the next prompt extends them where the renderer can prove it may."""

    def __init__(
        self,
        engine: EngineClient,
        renderer: Renderer,
        *,
        model: str,
        tools: Sequence[ToolSpec] | None,
        cache_salt: str | None,
        seed: int | None,
        priority: int,
        thread_above: int,
    ) -> None:
        self.messages: list[Message] = []
        self._engine = engine
        self._renderer = renderer
        self._model = model
        self._tools = tools
        self._salt = cache_salt
        self._seed = seed
        self._priority = priority
        self._thread_above = thread_above
        self._stop_ids = renderer.get_stop_token_ids()
        self._prompt = PromptIds()
        self._text = b"[]"
        self._completion: list[int] | None = None
        self._turns = 0

    async def turn(self, new_messages: Sequence[Message], sampling: SamplingParams) -> Turn:
        """Append messages, sample one assistant turn, append it; on any error the session is as before."""
        check_single(sampling)
        new = list(new_messages)
        prompt, kept = await self._prompt_ids(new)
        text = self._as_json(prompt, kept)
        response = await self._engine.generate(
            GenerateRequest(
                model=self._model,
                prompt_token_ids=prompt,
                encoded=EncodedIds(prompt, text),
                sampling=replace(
                    sampling,
                    stop_token_ids=tuple(dict.fromkeys([*self._stop_ids, *sampling.stop_token_ids])),
                    seed=turn_seed(sampling.seed, self._seed, self._turns),
                ),
                priority=self._priority,
                cache_salt=self._salt,
            )
        )
        choice = response.choices[0]
        parsed = await self._parse(choice.token_ids, prompt)
        message = parsed.to_message()
        self.messages = [*self.messages, *new, message]
        self._prompt, self._text, self._completion = prompt, text, choice.token_ids
        self._turns += 1
        return Turn(
            prompt_ids=prompt,
            completion_ids=choice.token_ids,
            logprobs=choice.logprobs,
            finish_reason=choice.finish_reason,
            weight_version=response.weight_version,
            message=message,
            parsed=parsed,
            temperature=sampling.temperature,
            routed_experts=choice.routed_experts,
        )

    def _as_json(self, prompt: PromptIds, kept: int) -> bytes:
        """Return the prompt as JSON: the last one's text goes on where its `kept` ids do."""
        if not kept or kept == len(prompt):
            return msgspec.json.encode(prompt[:])
        return b"".join((memoryview(self._text)[:-1], b",", memoryview(msgspec.json.encode(prompt[kept:]))[1:]))

    async def _prompt_ids(self, new: list[Message]) -> tuple[PromptIds, int]:
        """Render; return the ids and how many of them are the last prompt.

        It leaves the event loop where there is much to encode, so that other rollouts need not wait for it.
        """
        size = sum(len(str(message.get("content") or "")) for message in new)
        if size > self._thread_above:
            return await asyncio.to_thread(self._render, new)
        return self._render(new)

    async def _parse(self, completion: list[int], prompt: PromptIds) -> ParsedResponse:
        parse = self._renderer.parse_response
        if len(completion) * CHARACTERS_PER_TOKEN > self._thread_above:
            return await asyncio.to_thread(parse, completion, tools=self._tools, prompt_ids=prompt)
        return parse(completion, tools=self._tools, prompt_ids=prompt)

    def _render(self, new: list[Message]) -> tuple[PromptIds, int]:
        if self._completion is not None:
            bridged = proven_bridge(
                self._renderer, self._prompt, self._completion, new, tools=self._tools, history=self.messages
            )
            if bridged is not None:
                return bridged, len(self._prompt)
        # a full render need not extend what was sampled: it then shows as a break, and starts a new training sample
        rendered = self._renderer.render_ids([*self.messages, *new], tools=self._tools, add_generation_prompt=True)
        return PromptIds(rendered), 0


def check_single(sampling: SamplingParams) -> None:
    """Raise `ConfigError` where several completions are asked of one conversation."""
    if sampling.n != 1:
        raise ConfigError(
            f"a conversation samples one completion a turn, not n = {sampling.n}",
            where="sampling of a client session",
            next_step="start one session for each rollout of the group",
        )


def turn_seed(explicit: int | None, session: int | None, turn: int) -> int | None:
    """Return the seed of one turn: the request's own, else one derived from the session's and the turn's number."""
    if explicit is not None or session is None:
        return explicit
    digest = hashlib.sha256(f"{session}:{turn}".encode()).digest()
    return int.from_bytes(digest[:7], "big")
