"""A render against the chat template: every differing token, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from prl.contracts import Renderer
from prl.render.conversation import view_messages
from prl.render.jinja.template import ChatTemplate, template_message
from prl.tokenizer import Tokenizer
from prl.trajectory import RecordedTrajectory
from prl.types import ConfigError

from .tokens import token_text

CONTEXT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One stretch that differs: where it begins on each side, and the (id, text) tokens of both."""

    at_render: int
    at_template: int
    before: Sequence[tuple[int, str]]
    render: Sequence[tuple[int, str]]
    template: Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffView:
    """A conversation rendered twice; equal where `differences` is empty."""

    name: str
    where: str
    renderer: str
    render_tokens: int
    template_tokens: int
    differences: Sequence[Difference]


class TemplateDiff:
    """Compares what a renderer makes of conversations with what the chat template's text is encoded to."""

    def __init__(
        self, tokenizer: Tokenizer, renderer: Renderer, source: str | None, keywords: Mapping[str, Any]
    ) -> None:
        if source is None:
            raise ConfigError(
                "there is no chat template to compare with",
                where=f"tokenizer {tokenizer.name_or_path or '(unnamed)'}",
                next_step="Give one: --chat-template FILE.",
            )
        own = {"bos_token": tokenizer.bos_token or "", "eos_token": tokenizer.eos_token or ""}
        self._template = ChatTemplate(source, {**own, **keywords})
        self._tokenizer = tokenizer
        self._renderer = renderer

    def compare(self, record: RecordedTrajectory, *, generation_prompt: bool = False) -> DiffView:
        """Render a line's messages both ways; raises `ConfigError` where it has none, `RenderError` as either side."""
        if not record.messages:
            raise ConfigError("the line holds no messages", where="the line", next_step="Give a conversation.")
        messages = [template_message(view) for view in view_messages(record.messages)]
        text = self._template.render(messages, record.tools, add_generation_prompt=generation_prompt)
        wanted = self._tokenizer.encode(text)
        found = self._renderer.render_ids(record.messages, tools=record.tools, add_generation_prompt=generation_prompt)
        return DiffView(
            name=record.name,
            where=record.where,
            renderer=self._renderer.name,
            render_tokens=len(found),
            template_tokens=len(wanted),
            differences=_differences(found, wanted, self._tokenizer.token_bytes),
        )


def _differences(found: Sequence[int], wanted: Sequence[int], table: Sequence[bytes]) -> list[Difference]:
    """Align both sides; what they share at either end is set aside first, for speed."""
    shorter = min(len(found), len(wanted))
    head = next((n for n in range(shorter) if found[n] != wanted[n]), shorter)
    tail = next((n for n in range(shorter - head) if found[-1 - n] != wanted[-1 - n]), shorter - head)
    left, right = found[head : len(found) - tail], wanted[head : len(wanted) - tail]
    matcher = SequenceMatcher(None, left, right, autojunk=False)

    def shown(ids: Sequence[int]) -> list[tuple[int, str]]:
        return [(token, token_text(table, token)) for token in ids]

    return [
        Difference(
            at_render=head + start,
            at_template=head + begin,
            before=shown(found[max(head + start - CONTEXT, 0) : head + start]),
            render=shown(left[start:end]),
            template=shown(right[begin:stop]),
        )
        for tag, start, end, begin, stop in matcher.get_opcodes()
        if tag != "equal"
    ]
