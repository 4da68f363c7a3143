"""The prompts that each client mode would have sent, for the completions that the model gave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from prl.client.framing import Framing
from prl.contracts import Renderer, TokenChatClient
from prl.types import Message, ToolSpec, Turn

from .server import Server
from .steps import Step


@dataclass(frozen=True, slots=True)
class Sides:
    """Who renders: our renderer, and the server."""

    renderer: Renderer
    server: Server


Prompts = Callable[[Sequence[Step], Sides, Sequence[ToolSpec] | None], list[list[int]]]


def chat_prompts(steps: Sequence[Step], sides: Sides, tools: Sequence[ToolSpec] | None) -> list[list[int]]:
    """Return the prompts of messages in: the server renders the whole history anew each turn."""
    return [sides.server.ids(step.history, tools, generate=True) for step in steps]


def token_prompts(steps: Sequence[Step], sides: Sides, tools: Sequence[ToolSpec] | None) -> list[list[int]]:
    """Return the prompts of ids kept, with the server's own framing of new messages spliced on where that is proven."""
    return asyncio.run(_token_prompts(steps, sides, tools))


async def _token_prompts(steps: Sequence[Step], sides: Sides, tools: Sequence[ToolSpec] | None) -> list[list[int]]:
    framing = Framing(cast(TokenChatClient, _Tokenize(sides.server, tools)), {})
    prompts: list[list[int]] = []
    for step in steps:
        prompt: list[int] | None = None
        if step.after is not None:
            earlier = steps[step.after]
            before = step.history[: len(earlier.history) + 1]
            prompt = await framing.extend(as_turn(earlier, prompts[step.after]), before, step.history)
        prompts.append(sides.server.ids(step.history, tools, generate=True) if prompt is None else prompt)
    return prompts


def renderer_prompts(steps: Sequence[Step], sides: Sides, tools: Sequence[ToolSpec] | None) -> list[list[int]]:
    """Return the prompts of tokens in: bridged where the renderer can prove it may, rendered anew else."""
    prompts: list[list[int]] = []
    for step in steps:
        bridged = None
        if step.after is not None:
            earlier = steps[step.after]
            known = len(earlier.history) + 1
            bridged = sides.renderer.bridge_to_next_turn(
                prompts[step.after],
                earlier.completion_ids,
                step.history[known:],
                tools=tools,
                history=step.history[:known],
            )
        if bridged is None:
            prompts.append(sides.renderer.render_ids(step.history, tools=tools, add_generation_prompt=True))
        else:
            prompts.append(bridged.token_ids)
    return prompts


MODES: Mapping[str, Prompts] = {"chat": chat_prompts, "token": token_prompts, "renderer": renderer_prompts}


def as_turn(step: Step, prompt_ids: list[int]) -> Turn:
    """Return a step as the turn that a client would have recorded it."""
    return Turn(
        prompt_ids=prompt_ids,
        completion_ids=step.completion_ids,
        logprobs=None,
        finish_reason=step.finish_reason,
        weight_version=0,
        message=step.message,
        parsed=step.parsed,
    )


class _Tokenize:
    """The part of an engine that framing asks."""

    def __init__(self, server: Server, tools: Sequence[ToolSpec] | None) -> None:
        self._server = server
        self._tools = tools

    async def tokenize(self, body: dict[str, Any]) -> list[int]:
        messages: Sequence[Message] = body["messages"]
        return self._server.ids(messages, self._tools, generate=body["add_generation_prompt"])
