"""A sample format that does everything right, with a chat template written apart from it as the oracle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fixtures.templates import render_template

from prl.contracts import CallView, PieceWriter, ReadCall, ReasoningCodec, ToolCodec
from prl.parse import TaggedReasoning, is_inside_string, read_named_call
from prl.plugin.options import build_model
from prl.render import (
    ChatFormat,
    ChatRenderer,
    Conversation,
    MessageView,
    RendererOptions,
    Writer,
    bad_message,
    dump_json,
    mapping_arguments,
)
from prl.testing import ByteTokenizer
from prl.testing.checks import RendererSubject
from prl.tokenizer import Tokenizer, as_tokenizer

TURN, END, CALL, END_CALL = "<|turn|>", "<|end|>", "<call>", "</call>"
CONTROLS = (TURN, END, CALL, END_CALL, "<think>", "</think>")
TOKENIZER = as_tokenizer(ByteTokenizer(CONTROLS))
GREETING = "You are a brook."
TEMPLATE = (
    """
{%- if messages[0].role != 'system' %}{{ '<|turn|>system\n"""
    + GREETING
    + """<|end|>\n' }}{% endif %}
{%- if tools %}
{{- '<|turn|>tools' }}{% for t in tools %}{{ '\n' + (t | tojson) }}{% endfor %}{{ '<|end|>\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{{- '<|turn|>' + m.role + '\n' }}
{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}
{{- '<think>\n' + m.reasoning_content.strip('\n') + '\n</think>\n\n' }}{{ m.content.lstrip('\n') }}
{%- else %}{{ m.content }}{% endif %}
{%- for c in m.tool_calls or [] %}
{{- '\n' if loop.index0 or m.content }}{{ '<call>' }}
{{- '{"name": ' + (c.function.name | tojson) + ', "arguments": ' + (c.function.arguments | tojson) + '}</call>' }}
{%- endfor %}
{{- '<|end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|turn|>assistant\n' }}{% endif %}"""
)


class JsonCalls:
    """`<call>{"name": ..., "arguments": {...}}</call>`, each behind a line feed where anything stands before it."""

    open, close = CALL, END_CALL

    def write(self, out: PieceWriter, calls: Sequence[CallView], *, after_text: bool) -> None:
        for n, call in enumerate(calls):
            if n or after_text:
                out.text("\n")
            out.control(CALL)
            self.write_call(out, call)
            out.control(END_CALL)

    def write_call(self, out: PieceWriter, call: CallView) -> None:
        out.text('{"name": ')
        out.value(dump_json(call.name))
        out.text(', "arguments": ')
        out.value(dump_json(call.arguments))
        out.text("}")

    def read(self, region: str, tools: Any) -> list[ReadCall]:
        return [read_named_call(region)]

    def is_inside_value(self, region: str) -> bool:
        return is_inside_string(region)

    def trim_before(self, space: str) -> str:
        return space.removesuffix("\n")


class BrookFormat(ChatFormat):
    """Turns with a role line; a default system turn; reasoning kept until the next user message."""

    turn_opener: ClassVar[str] = TURN
    stop_tokens: ClassVar[tuple[str, ...]] = (END,)
    reasoning: ReasoningCodec | None = TaggedReasoning()
    tool_codec: ToolCodec | None = JsonCalls()

    def check(self, conversation: Conversation) -> None:
        for view in conversation.new:
            if view.role not in ("system", "user", "assistant", "tool"):
                raise bad_message(view.index, f"has role {view.role!r}", "use system, user, assistant or tool")

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        out.begin(None)
        if conversation.role(0) != "system":
            out.control(TURN)
            out.text("system\n" + GREETING)
            self.close(out)
        self.write_tools(out, conversation)

    def write_tools(self, out: Writer, conversation: Conversation) -> None:
        if conversation.tools:
            out.control(TURN)
            out.text("tools" + "".join("\n" + dump_json(tool) for tool in conversation.tools))
            self.close(out)

    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        view = conversation.messages[position]
        out.begin(view)
        out.control(TURN)
        out.text(view.role + "\n")
        if view.role == "assistant":
            out.begin_sampled()
            self.write_assistant(out, view, self.keeps_reasoning(conversation, position))
        else:
            self.write_body(out, view)
        self.close(out)

    def write_body(self, out: Writer, view: MessageView) -> None:
        out.content(view.text)

    def keeps_reasoning(self, conversation: Conversation, position: int) -> bool:
        later = conversation.messages[position + 1 :]
        return self.options.thinking_retention == "all" or not any(view.role == "user" for view in later)

    def write_assistant(self, out: Writer, view: MessageView, keep: bool) -> None:
        text = view.text
        if keep and view.reasoning:
            out.control("<think>")
            out.text("\n")
            out.content(view.reasoning.strip("\n"))
            out.text("\n")
            out.control("</think>")
            out.text("\n\n")
            text = text.lstrip("\n")
        out.content(text)
        if view.calls:
            assert self.tool_codec is not None
            calls = [call._replace(arguments=mapping_arguments(call, view.index)) for call in view.calls]
            self.tool_codec.write(out, calls, after_text=bool(view.text))

    def close(self, out: Writer) -> None:
        out.control(END)
        out.end_sampled()
        out.text("\n")

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        out.control(TURN)
        out.text("assistant\n")


def make_brook(
    chat_format: type[BrookFormat] = BrookFormat,
    renderer: type[ChatRenderer] = ChatRenderer,
    tokenizer: Tokenizer = TOKENIZER,
    **options: Any,
) -> ChatRenderer:
    """Create the sample renderer from its parts."""
    checked = build_model(RendererOptions, options, where="options of brook")
    return renderer("brook", tokenizer, chat_format(checked), CONTROLS)


def create(tokenizer: Tokenizer, options: RendererOptions) -> ChatRenderer:
    """Create the sample renderer as a plugin's target."""
    return ChatRenderer("brook", tokenizer, BrookFormat(options), CONTROLS)


class HashOrderedFormat(BrookFormat):
    """Writes the tools in the order of a set: another in each process."""

    def write_tools(self, out: Writer, conversation: Conversation) -> None:
        written = {dump_json(tool) for tool in conversation.tools or ()}
        conversation.tools = [json.loads(text) for text in written]
        super().write_tools(out, conversation)


def create_hash_ordered(tokenizer: Tokenizer, options: RendererOptions) -> ChatRenderer:
    """Create the renderer whose order of tools depends on the process."""
    return ChatRenderer("brook", tokenizer, HashOrderedFormat(options), CONTROLS)


def subject(make: Any = make_brook, **more: Any) -> RendererSubject:
    """Return the sample renderer, or a faulty one, as the kit looks at it."""
    defaults: dict[str, Any] = {"control_tokens": CONTROLS, "make_on": lambda tokenizer: make(tokenizer=tokenizer)}
    return RendererSubject(name="brook", make=make, tokenizer=TOKENIZER, **{**defaults, **more})


def oracle(messages: Sequence[Any], tools: Any, add_generation_prompt: bool) -> list[int] | None:
    """Render by the template; it takes text contents and mapping arguments, as templates do."""
    plain = [_plain(message) for message in messages]
    text = render_template(TEMPLATE, plain, tools=tools or None, add_generation_prompt=add_generation_prompt)
    return TOKENIZER.encode(text)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(message)
    content = plain.get("content") or ""
    plain["content"] = content if isinstance(content, str) else "".join(part["text"] for part in content)
    if "reasoning" in plain:
        plain["reasoning_content"] = plain.pop("reasoning")
    if plain.get("tool_calls"):
        plain["tool_calls"] = [{"function": _with_mapping(call["function"])} for call in plain["tool_calls"]]
    return plain


def _with_mapping(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    return {**function, "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments}
