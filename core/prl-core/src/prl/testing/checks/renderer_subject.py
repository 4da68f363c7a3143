"""A renderer under check: how to make one, its tokenizer, and what its format takes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

from prl.contracts import Renderer
from prl.testing.conversations import (
    ORDINARY,
    GeneratedConversation,
    Style,
    generate_assistant,
    generate_conversations,
)
from prl.tokenizer import Tokenizer
from prl.types import Message, RenderError, ToolSpec

from .check import NotApplicable, expect
from .material import THOUGHT, TOOL, as_mapping, assistant, call, call_id, calling, result, system, user

Oracle = Callable[[Sequence[Message], Sequence[ToolSpec] | None, bool], Sequence[int] | None]
"""(messages, tools, add_generation_prompt) -> the vendor's ids, None where the vendor refuses."""

_FUZZED = 160


class Sampled(NamedTuple):
    """A turn as a rollout has it: the ids before it, and the ids that the model samples."""

    prompt: list[int]
    completion: list[int]


class Case(NamedTuple):
    """One conversation to render."""

    messages: list[Message]
    tools: list[ToolSpec] | None
    prompt: bool

    def ids(self, renderer: Renderer) -> list[int]:
        """Render it."""
        return renderer.render_ids(self.messages, tools=self.tools, add_generation_prompt=self.prompt)


@dataclass
class RendererSubject:
    """What the renderer checks look at.

    make: build the renderer with options, `ConfigError` for unknown ones. tokenizer: the one it is built on.
    control_tokens: what the format may not find in untrusted text. oracle: the vendor's own rendering, where there is
    one. make_on: build the renderer on another tokenizer. installed: the name under which a new process finds it, for
    a byte tokenizer. golden, templates: a file of recorded ids, and the sha256 sums of the templates they belong to.
    """

    name: str
    make: Callable[..., Renderer]
    tokenizer: Tokenizer
    control_tokens: tuple[str, ...] = ()
    oracle: Oracle | None = None
    make_on: Callable[[Tokenizer], Renderer] | None = None
    installed: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    golden: Path | None = None
    templates: tuple[str, ...] = ()
    fuzzed: int = _FUZZED

    @cached_property
    def renderer(self) -> Renderer:
        """The renderer with its default options."""
        return self.make()

    @property
    def quirks(self) -> Mapping[str, str]:
        """What the format itself declares."""
        chat_format = getattr(self.renderer, "format", self.renderer)
        return getattr(chat_format, "quirks", None) or {}

    @cached_property
    def with_template_tokens(self) -> Renderer:
        """The renderer that does exactly what the vendor's template does."""
        return self.make(content_tokens="template")

    def text(self, ids: Sequence[int]) -> str:
        """Decode ids."""
        return self.tokenizer.decode(list(ids))

    def takes(self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None = None) -> bool:
        """Whether the format has a place for a conversation; what it has none for must be a `RenderError`."""
        try:
            self.renderer.render_ids(copy.deepcopy(messages), tools=copy.deepcopy(tools))
        except RenderError:
            return False
        return True

    @cached_property
    def takes_system(self) -> bool:
        """Whether a system message may come first."""
        return self.takes([system(), user(), assistant()])

    @cached_property
    def takes_calls(self) -> bool:
        """Whether the assistant may call tools."""
        return self.takes([user(), calling()], [TOOL])

    @cached_property
    def takes_parallel_calls(self) -> bool:
        """Whether one turn may call several tools."""
        return self.takes_calls and self.takes([user(), calling("", *two_calls())], [TOOL])

    @cached_property
    def takes_results(self) -> bool:
        """Whether tools may answer."""
        return self.takes_calls and self.takes([user(), calling(), result()], [TOOL])

    @cached_property
    def writes_reasoning(self) -> bool:
        """Whether the reasoning of the last turn is part of the ids."""
        plain = self.renderer.render_ids([user(), assistant()])
        return plain != self.renderer.render_ids([user(), assistant(reasoning_content=THOUGHT)])

    @cached_property
    def reasons(self) -> bool:
        """Whether reasoning is written at all: some formats write it only beside calls."""
        if self.writes_reasoning or not self.takes_calls:
            return self.writes_reasoning
        plain = self.renderer.render_ids([user(), calling()], tools=[TOOL])
        return plain != self.renderer.render_ids([user(), calling(reasoning_content=THOUGHT)], tools=[TOOL])

    @cached_property
    def cases(self) -> list[Case]:
        """Generated conversations that the format takes: ordinary ones, and the edges."""
        style = self._fit(Style(markup=self.control_tokens, null=0.1))
        ordinary = self._fit(ORDINARY)
        half = self.fuzzed // 2
        drawn = [
            *generate_conversations(half, seed=11, style=ordinary),
            *generate_conversations(self.fuzzed - half, seed=12, style=style),
        ]
        cases = [Case(one.messages, one.tools, bool(n % 2)) for n, one in enumerate(drawn) if self._accepts(one)]
        expect(
            len(cases) * 4 >= len(drawn), f"refuses {len(drawn) - len(cases)} of {len(drawn)} generated conversations"
        )
        return cases

    @cached_property
    def ordinary_turns(self) -> list[Message]:
        """Assistant turns without odd white space, that the format takes after a user's question."""
        return self._turns(ORDINARY)

    @cached_property
    def edge_turns(self) -> list[Message]:
        """Assistant turns with odd white space and values, that the format takes after a user's question."""
        return self._turns(Style(edge=0.6, parts=0, null=0, inline_reasoning=0, markup=()))

    def _turns(self, style: Style) -> list[Message]:
        drawn = [distinct_calls(generate_assistant(seed, self._fit(style))) for seed in range(self.fuzzed // 2)]
        if not self.takes_calls:
            for turn in drawn:
                turn.pop("tool_calls", None)
        drawn = [turn for turn in drawn if self.tokenizer.is_lossless(json.dumps(turn, ensure_ascii=False))]
        turns = [turn for turn in drawn if self.takes([user(), turn]) and self._is_one_completion(turn)]
        expect(len(turns) * 2 >= len(drawn), f"takes only {len(turns)} of {len(drawn)} generated assistant turns")
        return turns

    def sampled(
        self,
        history: Sequence[Message],
        turn: Message,
        tools: Sequence[ToolSpec] | None = None,
        renderer: Renderer | None = None,
    ) -> Sampled:
        """Return what precedes a turn and what the model samples to write it, read from the render's own mask."""
        whole = (renderer or self.renderer).render([*history, turn], tools=tools)
        mask = whole.sampled_mask
        mine = [n for n, owner in enumerate(whole.message_indices) if owner == len(history) and mask[n]]
        expect(bool(mine), f"no token of an assistant turn is sampled: {self.text(whole.token_ids)!r}")
        start, end = mine[0], mine[-1] + 1
        expect(len(mine) == end - start, "the sampled tokens of one turn are not contiguous")
        return Sampled(whole.token_ids[:start], whole.token_ids[start:end])

    def spoken(self, turn: Message, tools: Sequence[ToolSpec] | None = None) -> Sampled:
        """Return a turn as a model writes it after the generation prompt: encoded apart, so that no border merges."""
        sampled = self.stopped(self.sampled([user()], turn, tools))
        text = self.text([*sampled.prompt, *sampled.completion])
        given = self.renderer.render_ids([user()], tools=tools, add_generation_prompt=True)
        for prompt in (given, self.sampled([user()], assistant(), tools).prompt):
            opening = self.text(prompt)
            if text.startswith(opening):
                return Sampled(prompt, self.tokenizer.encode(text[len(opening) :]))
        return sampled

    def stopped(self, sampled: Sampled, stop: int | None = None) -> Sampled:
        """Return the turn with a stop token at its end."""
        stops = self.renderer.get_stop_token_ids()
        if sampled.completion and sampled.completion[-1] in stops:
            return sampled
        return Sampled(sampled.prompt, [*sampled.completion, stops[0] if stop is None else stop])

    def unstopped(self, sampled: Sampled) -> Sampled:
        """Return the turn without its stop token: as the engine cuts it at its last token."""
        stops = self.renderer.get_stop_token_ids()
        completion = sampled.completion
        return Sampled(sampled.prompt, completion[:-1] if completion and completion[-1] in stops else completion)

    def respelled(self, ids: Sequence[int]) -> list[int]:
        """Return ids of the same text that no tokenizer writes, and a model may sample: one character at a time."""
        added = set(self.tokenizer.added_tokens.values())
        spelled: list[int] = []
        for is_control, run in groupby(ids, key=added.__contains__):
            tokens = list(run)
            spelled += tokens if is_control else chain(*map(self.tokenizer.encode_ordinary, self.text(tokens)))
        return spelled

    def needs(self, condition: bool, what: str) -> None:
        """Skip the check where the format lacks what it is about."""
        if not condition:
            raise NotApplicable(f"the format takes no {what}")

    def _is_one_completion(self, turn: Message) -> bool:
        """Whether a model samples the turn at once: some formats stop after each of several calls."""
        whole = self.renderer.render([user(), turn])
        mine = [n for n, on in enumerate(whole.sampled_mask) if on]
        return bool(mine) and len(mine) == mine[-1] + 1 - mine[0]

    def _fit(self, style: Style) -> Style:
        """Leave out of a style what the format has no place for."""
        changes: dict[str, Any] = {}
        if not self.takes_system:
            changes["system"] = 0.0
        if not self.takes_results:
            changes |= {"calls": 0.0, "tools": 0.0}
        if not self.takes([user(), assistant(), system(), user()]):
            changes["late_system"] = 0.0
        return replace(style, **changes)

    def _accepts(self, one: GeneratedConversation) -> bool:
        return self.takes(one.messages, one.tools)


def two_calls() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two calls of one turn."""
    return call(1), call(2, arguments={"city": "Narvik", "days": 2, "metric": False})


def distinct_calls(turn: Message) -> Message:
    """Give each call of a turn its own name, so that a schema can describe each, and mapping arguments."""
    message: Any = turn
    for number, one in enumerate(message.get("tool_calls") or ()):
        function = one["function"]
        function["name"] += str(number)
        function["arguments"] = as_mapping(function["arguments"])
        one["id"] = call_id(function["name"], number + 1)
    return turn
