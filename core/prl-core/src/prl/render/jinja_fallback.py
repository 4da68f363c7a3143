"""The `default` renderer: any chat template, with explicit parsers; what cannot be proven is absent, never guessed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from prl.contracts import StreamParser
from prl.parse import CompletionParser, Grammar, ReasoningState
from prl.render.base import BaseRenderer, Tail
from prl.render.conversation import MessageView, refuse_media, view_messages, view_tools
from prl.render.jinja.attribution import Segment, attribute, sentinel
from prl.render.jinja.bridge import joint
from prl.render.jinja.probe import probe_turns
from prl.render.jinja.template import ChatTemplate, template_message
from prl.render.options import RendererOptions
from prl.render.runs import RunEncoder
from prl.render.writer import Writer
from prl.tokenizer import Tokenizer
from prl.types import (
    ConfigError,
    Message,
    RenderedTokens,
    RenderError,
    ToolSpec,
)

_log = logging.getLogger("prl.render")


class JinjaOptions(RendererOptions):
    """Options of the `default` renderer.

    chat_template: the template's text; unset: the tokenizer's own.
    tool_parser, reasoning_parser: names of parser plugins (`prl plugins list --kind tool_parser`); unset: calls and
    reasoning
        stay text.
    template_kwargs: the template's own keywords, such as `enable_thinking`.
    """

    chat_template: str | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    template_kwargs: dict[str, Any] = Field(default_factory=dict)


def create(tokenizer: Tokenizer, options: JinjaOptions) -> JinjaRenderer:
    """Create the `default` renderer; a tokenizer without chat template is a `ConfigError`."""
    return JinjaRenderer(tokenizer, options)


class JinjaRenderer(BaseRenderer):
    """Renders through the model's own chat template. Thread-safe; holds no conversation."""

    name = "default"

    def __init__(self, tokenizer: Tokenizer, options: JinjaOptions) -> None:
        from prl.plugin import create as create_plugin

        source = options.chat_template or tokenizer.chat_template
        if not source:
            raise ConfigError(
                "the tokenizer has no chat template",
                where=f"tokenizer {tokenizer.name_or_path or '(unnamed)'}",
                next_step="give one with chat_template=..., or use the model family's renderer plugin",
            )
        self.tokenizer = tokenizer
        self.options = options
        variables = {"bos_token": tokenizer.bos_token or "", "eos_token": tokenizer.eos_token or ""}
        self._template = ChatTemplate(source, {**variables, **options.template_kwargs})
        self._shape = probe_turns(self._template, tokenizer.added_pattern)
        self._encoder = RunEncoder(tokenizer)
        codec = create_plugin("reasoning_parser", options.reasoning_parser) if options.reasoning_parser else None
        calls = create_plugin("tool_parser", options.tool_parser) if options.tool_parser else None
        opener = next((token for token in tokenizer.encode(self._shape.opener) if token in self._added_ids()), -1)
        self._grammar = Grammar.build(
            tokenizer,
            opener=opener,
            stop_ids=self.get_stop_token_ids(),
            reasoning=codec,
            tool_codec=calls,
            content_strip="",
        )
        self._prompt_state = self._grammar.state_after(tokenizer.encode(self._shape.prompt))

    @property
    def is_prefix_stable(self) -> bool:
        """False: a template promises nothing about earlier turns."""
        return False

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """Render through the template; `spans` is None where ownership cannot be proven."""
        views = view_messages(messages)
        if not views:
            raise RenderError(
                "there are no messages to render", where="messages", next_step="give at least one message"
            )
        refuse_media(self.name, views)
        tools = view_tools(tools)
        text = self._text(views, tools, add_generation_prompt=add_generation_prompt)
        marked = self._text([_marked(view) for view in views], tools, add_generation_prompt=add_generation_prompt)
        roles = tuple(view.role for view in views)
        segments = attribute(text, marked, views, self._shape)
        if segments is None:
            self._warn_unproven(views)
            return RenderedTokens(self.tokenizer.encode(text), None, roles)
        return RenderedTokens(*self._encoder.assemble(self._write(segments).pieces), roles)

    def _bridge(
        self,
        sampled: tuple[Sequence[int], Sequence[int]],
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec] | None,
        history: Sequence[Message] | None,
        base: int,
    ) -> Tail | None:
        """Splice what the template adds to a short closed conversation, if that conversation stays as it was."""
        prompt_ids, completion_ids = sampled
        views = view_messages(new_messages)
        if not views or any(view.role == "assistant" for view in views):
            return None
        refuse_media(self.name, views)
        keep_all = self.options.thinking_retention == "all"
        reasoned = any(marker in completion_ids or marker in prompt_ids for marker in self._grammar.reasoning_ids)
        codec = self._grammar.reasoning if reasoned and not keep_all else None
        pair = joint(self._template, views, view_tools(tools), self._shape, codec, keep_all=keep_all)
        if pair is None:
            return None
        text, marked = pair
        segments = attribute(text, marked, views, self._shape)
        if segments is None:
            return None
        out = self._write([Segment(self._closing(prompt_ids, completion_ids), None), *segments])
        return Tail(*self._encoder.assemble(out.pieces, base), tuple([view.role for view in views]))

    def create_parser(
        self, begin: ReasoningState, tools: Sequence[ToolSpec] | None, prompt_ids: Sequence[int] | None
    ) -> StreamParser:
        """Return a parser for the chosen codecs."""
        offset = len(prompt_ids) if prompt_ids is not None else 0
        return CompletionParser(self._grammar, begin, tools, offset=offset)

    def get_stop_token_ids(self) -> list[int]:
        """Return the template's own stop token, then the tokenizer's end-of-sequence token."""
        stops = [*self.tokenizer.encode(self._shape.stop)[-1:]]
        eos = self.tokenizer.token_id(self.tokenizer.eos_token) if self.tokenizer.eos_token else None
        return list(dict.fromkeys([*stops, *([] if eos is None else [eos])]))

    def _added_ids(self) -> set[int]:
        return set(self.tokenizer.added_tokens.values())

    def _text(
        self, views: Sequence[MessageView], tools: Sequence[ToolSpec] | None, *, add_generation_prompt: bool
    ) -> str:
        messages = [template_message(view) for view in views]
        return self._template.render(messages, tools, add_generation_prompt=add_generation_prompt)

    def _write(self, segments: Sequence[Segment]) -> Writer:
        """Turn segments into pieces, under the control-token policy for bodies."""
        out = Writer({}, self.options.content_tokens, self.tokenizer.added_pattern)
        for segment in segments:
            out.begin(segment.owner)
            if segment.sampled:
                out.begin_sampled()
            (out.content if segment.body else out.text)(segment.text)
        return out

    def _closing(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> str:
        """Return the text between the completion and the next message: one close where the turn was cut, never two."""
        if completion_ids and completion_ids[-1] in self.get_stop_token_ids():
            return self._shape.after_stop
        codec = self._grammar.reasoning
        text = self._shape.stop + self._shape.after_stop
        if codec is not None and self._grammar.state_after(prompt_ids, completion_ids) is ReasoningState.OPEN:
            text = codec.before_close + codec.close + codec.after_close + text
        return text

    def _warn_unproven(self, views: Sequence[MessageView]) -> None:
        """Without proven bodies the policy cannot hold.

        Refuse where it was asked for, say so where text looks forged.
        """
        if self.options.content_tokens in ("literal", "error"):
            raise RenderError(
                f"content_tokens={self.options.content_tokens!r} cannot be kept: bodies cannot be told from scaffold",
                where="the default renderer, on this model's chat template",
                next_step="use the model family's renderer plugin, or content_tokens='template'",
            )
        pattern = self.tokenizer.added_pattern
        for view in views:
            if pattern is not None and view.role in ("user", "tool") and pattern.search(view.text):
                _log.warning("message %d spells a control token, and this template makes it one", view.index)


def _marked(view: MessageView) -> MessageView:
    """Return the message with a sentinel as its body, if it has one."""
    content = sentinel(view) if view.text.strip() else view.content
    return MessageView(view.index, view.role, content, None, view.reasoning, view.calls, view.tool_call_id, view.name)
