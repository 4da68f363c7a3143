"""GLM-5.1 and 5.2: reasoning verbatim, tools as bare functions, a reasoning-effort line (5.2)."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

from prl.contracts import ReasoningCodec
from prl.render import ChatRenderer, Conversation, MessageView, SampledTurn, Writer, dump_json
from prl.tokenizer import Tokenizer
from prl.types import ToolSpec
from prl_renderer_glm.format import ASSISTANT, CONTROL_TOKENS, END_THINK, SYSTEM, THINK, USER, Glm47Format, last_user
from prl_renderer_glm.options import Glm47Options, Glm52Options
from prl_renderer_glm.reasoning import bare_think

_UNSEEN = (
    "<reminder>You are unable to process this {} because you don't have multi-modal input ability. "
    "Try different methods.</reminder>"
)


class VerbatimFormat(Glm47Format):
    """What GLM-5.1 and 5.2 share."""

    reasoning: ReasoningCodec | None = bare_think(strip="")

    def tool_line(self, tool: ToolSpec) -> str:
        """A tool's function without the fields that are no business of the model's; nothing where it is deferred."""
        function = tool.get("function", tool)
        if function.get("defer_loading"):
            return ""
        fields = [
            f'"{key}": {dump_json(value)}' for key, value in function.items() if key not in ("defer_loading", "strict")
        ]
        return "{" + ", ".join(fields) + "}\n"

    def split(self, view: MessageView) -> tuple[str | None, str]:
        """As before, but nothing is stripped from reasoning."""
        text = self.body(view)
        if view.reasoning is not None or END_THINK not in text:
            return view.reasoning, text
        return text.split(END_THINK)[0].split(THINK)[-1], text.split(END_THINK)[-1]

    def thought(self, conversation: Conversation, position: int, reasoning: str | None) -> str | None:
        """The reasoning to write, also where it is empty; None for the placeholder."""
        return reasoning if self.is_kept(conversation, position) else None


class Glm51Format(VerbatimFormat):
    """GLM-5.1: a turn without reasoning has an empty think block where its user turn is one that is thought about."""

    def thought(self, conversation: Conversation, position: int, reasoning: str | None) -> str | None:
        """The reasoning to write, also where it is empty; None for the placeholder."""
        if reasoning is None and self._is_thought_about(conversation, position):
            reasoning = ""
        return super().thought(conversation, position, reasoning)

    def _is_thought_about(self, conversation: Conversation, position: int) -> bool:
        """Whether thinking is on; before the last user message: whether any turn after the same user message reasoned.

        The second is the template's `thinking_indices`, which looks ahead from each user message.
        """
        if position > last_user(conversation) or self.options.thinking_retention == "all":
            return self.options.enable_thinking is not False
        begin = end = position
        while begin > 0 and conversation.role(begin) != "user":
            begin -= 1
        while conversation.role(end) not in ("user", ""):
            end += 1
        if conversation.role(begin) != "user":
            return False
        return any(view.reasoning is not None for view in conversation.messages[begin:end] if view.role == "assistant")

    def rewrites_history(self, conversation: Conversation) -> bool:
        """With `clear_thinking=False`, a new user message can still turn empty blocks into placeholders, or back."""
        if super().rewrites_history(conversation):
            return True
        sampled = conversation.sampled
        has_query = any(self.is_query(view) for view in conversation.new)
        if sampled is None or not has_query or self.options.thinking_retention == "all":
            return False
        reasoned, empty, bare = _blocks_since_last_user(sampled)
        return bare if reasoned else empty

    @property
    def is_prefix_stable(self) -> bool:
        """As before, and only where the template's look-ahead has no say."""
        return super().is_prefix_stable and self.options.thinking_retention == "all"


class Glm52Format(VerbatimFormat):
    """GLM-5.2: a line with the reasoning effort first; media are replaced by a reminder."""

    reasoning_placeholder: ClassVar[tuple[str, ...]] = (THINK, END_THINK)
    media: ClassVar[frozenset[str]] = frozenset({"image", "video"})
    options: Glm52Options

    def write_effort(self, out: Writer) -> None:
        """Write the reasoning effort, in a system turn of its own."""
        if self.options.enable_thinking is not False:
            out.control(SYSTEM)
            out.text(f"Reasoning Effort: {'High' if self.options.reasoning_effort == 'high' else 'Max'}")

    def body(self, view: MessageView) -> str:
        """A message's text with the reminders in it, as the template sees it."""
        if view.parts is None:
            return view.text
        return "".join(part.text if part.kind == "text" else _UNSEEN.format(part.kind) for part in view.parts)

    def write_body(self, out: Writer, view: MessageView) -> None:
        """Write text as content, and for each image or video the template's reminder."""
        if view.parts is None:
            out.content(view.text)
            return
        for part in view.parts:
            if part.kind == "text":
                out.content(part.text)
            else:
                out.text(_UNSEEN.format(part.kind))

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn inside reasoning; with thinking off, behind an empty think block."""
        out.control(ASSISTANT)
        out.control(THINK)
        if self.options.enable_thinking is False:
            out.control(END_THINK)


def _blocks_since_last_user(sampled: SampledTurn) -> tuple[bool, bool, bool]:
    """Whether the assistant turns since the last user message hold reasoning, empty blocks, bare end markers."""
    spelled = {token: name for token, (_, name) in sampled.grammar.marks.items()}
    ids = [*sampled.prompt_ids, *sampled.completion_ids]
    names = [spelled.get(token, "") for token in ids]
    if names and names[-1] == USER:
        names.pop()  # the stop, which opens the next turn
    start = max((n for n, name in enumerate(names) if name == USER), default=0)
    pairs = list(pairwise([*names[start:], ""]))
    reasoned = any(name == THINK and after != END_THINK for name, after in pairs)
    empty = (THINK, END_THINK) in pairs
    markers = [name for name in names[start:] if name in (THINK, END_THINK)]
    bare = any(name == END_THINK and before != THINK for before, name in pairwise(["", *markers]))
    return reasoned, empty, bare


def create_glm51(tokenizer: Tokenizer, options: Glm47Options) -> ChatRenderer:
    """Create the `glm-5.1` renderer."""
    return ChatRenderer("glm-5.1", tokenizer, Glm51Format(options), CONTROL_TOKENS)


def create_glm52(tokenizer: Tokenizer, options: Glm52Options) -> ChatRenderer:
    """Create the `glm-5.2` renderer."""
    return ChatRenderer("glm-5.2", tokenizer, Glm52Format(options), CONTROL_TOKENS)
