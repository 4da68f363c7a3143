"""Qwen3, Qwen3-2507 and Qwen3-VL: ChatML turns, JSON calls. FORMAT.md is the grammar in prose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from prl.contracts import CallView, ReasoningCodec, ToolCodec
from prl.parse import TaggedReasoning
from prl.render import ChatFormat, ChatRenderer, Conversation, MessageView, Writer, bad_message, dump_json
from prl.tokenizer import Tokenizer
from prl_renderer_qwen.options import QwenOptions, QwenThinkingOptions, QwenVisionOptions
from prl_renderer_qwen.tokens import CONTROL_TOKENS, VISION_TOKENS
from prl_renderer_qwen.tools import HermesCodec

START, END = "<|im_start|>", "<|im_end|>"
_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided "
    "with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    'within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
    "<args-json-object>}\n</tool_call>"
)


class ChatMlFormat(ChatFormat):
    """ChatML turns with tool results grouped into user turns: what all Qwen formats share."""

    turn_opener: ClassVar[str] = START
    stop_tokens: ClassVar[tuple[str, ...]] = (END, "<|endoftext|>")
    roles: ClassVar[frozenset[str]] = frozenset({"system", "user", "assistant", "tool"})

    def check(self, conversation: Conversation) -> None:
        """Refuse roles that the template does not know (it would drop such messages without a word)."""
        for view in conversation.new:
            if view.role not in self.roles:
                raise bad_message(
                    view.index,
                    f"has role {view.role!r}, which Qwen does not know",
                    f"use one of {', '.join(sorted(self.roles))}",
                )

    def body(self, view: MessageView) -> str:
        """A message's text as the template takes it."""
        return view.text

    def write_body(self, out: Writer, conversation: Conversation, view: MessageView) -> None:
        """Write a user's, system's or tool's body."""
        out.content(self.body(view))

    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write one turn; adjacent tool results share one user turn."""
        view = conversation.messages[position]
        out.begin(view)
        if view.role == "assistant":
            self.write_assistant(out, conversation, position)
        elif view.role == "tool":
            if self.opens_tool_turn(conversation, position):
                out.control(START)
                out.text("user")
            self._write_tool_result(out, conversation, view)
            if conversation.role(position + 1) != "tool":
                self._end_turn(out)
        elif view.role == "user" or self.writes_system(position):
            out.control(START)
            out.text(view.role + "\n")
            self.write_body(out, conversation, view)
            self._end_turn(out)

    def writes_system(self, position: int) -> bool:
        """Whether a system message at this position is a turn of its own (the first one is in the preamble)."""
        return position > 0

    def opens_tool_turn(self, conversation: Conversation, position: int) -> bool:
        """Whether a tool result begins a user turn."""
        return conversation.role(position - 1) != "tool"

    def write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write an assistant turn without reasoning."""
        view = conversation.messages[position]
        self._open_assistant(out)
        out.content(view.text)
        self._close_assistant(out, view.calls, after_text=bool(view.text))

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn."""
        out.control(START)
        out.text("assistant\n")

    def _open_assistant(self, out: Writer) -> None:
        out.control(START)
        out.text("assistant\n")
        out.begin_sampled()

    def _close_assistant(self, out: Writer, calls: Sequence[CallView], *, after_text: bool) -> None:
        if calls and self.tool_codec is not None:
            self.tool_codec.write(out, calls, after_text=after_text)
        out.control(END)
        out.end_sampled()
        out.text("\n")

    def _write_tool_result(self, out: Writer, conversation: Conversation, view: MessageView) -> None:
        out.text("\n")
        out.control("<tool_response>")
        out.text("\n")
        self.write_body(out, conversation, view)
        out.text("\n")
        out.control("</tool_response>")

    def _end_turn(self, out: Writer) -> None:
        out.control(END)
        out.text("\n")


class Qwen3InstructFormat(ChatMlFormat):
    """Qwen3-Instruct-2507: no reasoning, ever."""

    tool_codec: ToolCodec | None = HermesCodec()

    @property
    def is_prefix_stable(self) -> bool:
        """Nothing of an earlier turn ever changes."""
        return True

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        """Write the first system message and the tools."""
        system = conversation.messages[0] if conversation.role(0) == "system" else None
        if system is None and conversation.tools is None:
            return
        out.begin(system)
        out.control(START)
        out.text("system\n")
        if system is not None:
            self.write_body(out, conversation, system)
        if conversation.tools is not None:
            out.text(("\n\n" if system is not None else "") + _TOOLS_HEAD)
            for tool in conversation.tools:
                out.text("\n" + dump_json(tool))
            out.text(_TOOLS_TAIL)
        self._end_turn(out)


class Qwen3Format(Qwen3InstructFormat):
    """Qwen3 (hybrid): reasoning in `<think>`, kept after the last user query only."""

    reasoning: ReasoningCodec | None = TaggedReasoning()
    options: QwenThinkingOptions

    @property
    def is_prefix_stable(self) -> bool:
        """The last turn has a think block that may go when another turn follows."""
        return False

    def is_query(self, message: MessageView) -> bool:
        """A user message that is not a tool result in disguise; null content is none for the template."""
        if message.role != "user" or message.content is None:
            return False
        text = self.body(message)
        return not (text.startswith("<tool_response>") and text.endswith("</tool_response>"))

    def last_query(self, conversation: Conversation) -> int:
        """Position of the last query, or of the last message where there is none (template: `last_query_index`)."""
        if "last_query" not in conversation.memo:
            messages = conversation.messages
            found = (n for n in range(len(messages) - 1, -1, -1) if self.is_query(messages[n]))
            conversation.memo["last_query"] = next(found, len(messages) - 1)
        return int(conversation.memo["last_query"])

    def write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write an assistant turn; the last one always has a think block, earlier ones where they reasoned."""
        view = conversation.messages[position]
        reasoning, text = split_reasoning(view, view.text)
        is_last = position == len(conversation.messages) - 1
        in_cycle = position > self.last_query(conversation)
        keeps = self.options.thinking_retention == "all" and bool(reasoning)
        self._open_assistant(out)
        if keeps or (in_cycle and (is_last or reasoning)):
            write_think_block(out, reasoning.strip("\n"))
            out.content(text.lstrip("\n"))
        else:
            out.content(text)
        self._close_assistant(out, view.calls, after_text=bool(text))

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn; with thinking off, behind an empty think block."""
        super().write_generation_prompt(out, conversation)
        if self.options.enable_thinking is False:
            write_think_block(out, "")


class Qwen3ThinkingFormat(Qwen3Format):
    """Qwen3-Thinking-2507: as Qwen3, but the generation prompt always opens reasoning."""

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn inside reasoning."""
        ChatMlFormat.write_generation_prompt(self, out, conversation)
        out.control("<think>")
        out.text("\n")


class VisionBodies(ChatFormat):
    """Bodies with image and video placeholders, where the caller put them and one for each."""

    media: ClassVar[frozenset[str]] = frozenset({"image", "video"})
    options: QwenVisionOptions

    def body(self, view: MessageView) -> str:
        """A message's text with placeholders spelled out, as the template sees it."""
        if view.parts is None:
            return view.text
        pads = {
            "image": "<|vision_start|><|image_pad|><|vision_end|>",
            "video": "<|vision_start|><|video_pad|><|vision_end|>",
        }
        return "".join(part.text if part.kind == "text" else pads[part.kind] for part in view.parts)

    def write_body(self, out: Writer, conversation: Conversation, view: MessageView) -> None:
        """Write text parts as content and media parts as control tokens."""
        if view.parts is None:
            out.content(self.trim_body(view.text))
            return
        last = len(view.parts) - 1
        for n, part in enumerate(view.parts):
            if part.kind == "text":
                out.content(self.trim_body(part.text, left=n == 0, right=n == last))
                continue
            if self.options.add_vision_id:
                out.text(f"{'Picture' if part.kind == 'image' else 'Video'} {self._number(conversation, view, n)}: ")
            out.control("<|vision_start|>")
            out.control(f"<|{part.kind}_pad|>")
            out.control("<|vision_end|>")

    def trim_body(self, text: str, *, left: bool = True, right: bool = True) -> str:
        """Trim a body's outer text as the template does (Qwen3-VL: not at all)."""
        return text

    @property
    def reads_history(self) -> bool:
        """Numbered media need the numbers that came before."""
        return self.options.add_vision_id

    def can_bridge(self, conversation: Conversation, stop: str | None) -> bool:
        """Numbered media need the numbers that came before."""
        if not self.options.add_vision_id or conversation.messages[0].index >= 0:
            return True
        return all(view.parts is None for view in conversation.new)

    def _number(self, conversation: Conversation, view: MessageView, part: int) -> int:
        """Count media of one kind up to this part, over the whole conversation."""
        assert view.parts is not None
        kind = view.parts[part].kind
        position = next(n for n, other in enumerate(conversation.messages) if other is view)
        earlier = sum(p.kind == kind for other in conversation.messages[:position] for p in other.parts or ())
        return earlier + sum(p.kind == kind for p in view.parts[: part + 1])


class Qwen3VlFormat(VisionBodies, Qwen3InstructFormat):
    """Qwen3-VL-Instruct: as 2507, with media; a system message that is not the first is dropped by the template."""

    quirks: ClassVar[Mapping[str, str]] = {
        "nothing_is_dropped": "the vendor's template has no branch for a system message that is not the first"
    }
    options: QwenVisionOptions

    def check(self, conversation: Conversation) -> None:
        """Refuse media where the template would drop them."""
        super().check(conversation)
        for view in conversation.new:
            if view.parts is not None and view.role not in ("user", "tool"):
                raise bad_message(
                    view.index,
                    f"is a {view.role} message with media, which Qwen3-VL drops",
                    "put images into user or tool messages",
                )

    def writes_system(self, position: int) -> bool:
        """The template has no branch for a later system message."""
        return False


class Qwen3VlThinkingFormat(VisionBodies, Qwen3ThinkingFormat):
    """Qwen3-VL-Thinking: Qwen3-Thinking turns with media in any message."""

    options: QwenVisionOptions  # type: ignore[assignment]

    def is_query(self, message: MessageView) -> bool:
        """As Qwen3, but media count as text and null as empty text."""
        text = self.body(message)
        return message.role == "user" and not (text.startswith("<tool_response>") and text.endswith("</tool_response>"))


def split_reasoning(view: MessageView, text: str) -> tuple[str, str]:
    """Return reasoning and content; without a reasoning field, the content before `</think>` is reasoning."""
    if view.reasoning is not None:
        return view.reasoning, text
    if "</think>" not in text:
        return "", text
    before = text.split("</think>")[0].rstrip("\n")
    return before.split("<think>")[-1].lstrip("\n"), text.split("</think>")[-1].lstrip("\n")


def write_think_block(out: Writer, reasoning: str) -> None:
    """Write a closed think block; empty reasoning leaves one blank line."""
    out.control("<think>")
    out.text("\n")
    out.content(reasoning)
    out.text("\n")
    out.control("</think>")
    out.text("\n\n")


def create_qwen3(tokenizer: Tokenizer, options: QwenThinkingOptions) -> ChatRenderer:
    """Create the `qwen3` renderer."""
    return ChatRenderer("qwen3", tokenizer, Qwen3Format(options), CONTROL_TOKENS)


def create_qwen3_instruct(tokenizer: Tokenizer, options: QwenOptions) -> ChatRenderer:
    """Create the `qwen3-instruct-2507` renderer."""
    return ChatRenderer("qwen3-instruct-2507", tokenizer, Qwen3InstructFormat(options), CONTROL_TOKENS)


def create_qwen3_thinking(tokenizer: Tokenizer, options: QwenThinkingOptions) -> ChatRenderer:
    """Create the `qwen3-thinking-2507` renderer."""
    return ChatRenderer("qwen3-thinking-2507", tokenizer, Qwen3ThinkingFormat(options), CONTROL_TOKENS)


def create_qwen3_vl(tokenizer: Tokenizer, options: QwenVisionOptions) -> ChatRenderer:
    """Create the `qwen3-vl` renderer."""
    return ChatRenderer("qwen3-vl", tokenizer, Qwen3VlFormat(options), CONTROL_TOKENS + VISION_TOKENS)


def create_qwen3_vl_thinking(tokenizer: Tokenizer, options: QwenVisionOptions) -> ChatRenderer:
    """Create the `qwen3-vl-thinking` renderer."""
    return ChatRenderer("qwen3-vl-thinking", tokenizer, Qwen3VlThinkingFormat(options), CONTROL_TOKENS + VISION_TOKENS)
