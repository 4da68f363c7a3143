"""DeepSeek-V4: what the vendor's encoder writes. FORMAT.md is the grammar in prose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, ClassVar

from prl.contracts import CallView, ReasoningCodec, ToolCodec
from prl.render import ChatFormat, ChatRenderer, Conversation, MessageView, Writer, bad_message
from prl.tokenizer import Tokenizer
from prl.types import RenderError
from prl_renderer_deepseek.dsml import DsmlCodec, arguments_of, dump_value
from prl_renderer_deepseek.options import V4Options
from prl_renderer_deepseek.reasoning import tight_reasoning
from prl_renderer_deepseek.tokens import ASSISTANT, BOS, DSML, END_THINK, EOS, REMINDER, THINK, USER, V4_TOKENS
from prl_renderer_deepseek.v4_order import sorted_calls, written_order
from prl_renderer_deepseek.v4_texts import EFFORTS, TOOLS_HEAD, TOOLS_TAIL

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "latest_reminder"})
_QUERIES = ("user", "developer")


class V4Format(ChatFormat):
    """V4: user text and results share user turns; reasoning stays where tools are declared."""

    turn_opener: ClassVar[str] = ASSISTANT
    stop_tokens: ClassVar[tuple[str, ...]] = (EOS,)
    reasoning: ReasoningCodec | None = tight_reasoning()
    tool_codec: ToolCodec | None = DsmlCodec()
    quirks: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("parse_gives_back_what_was_rendered", "a_parsed_turn_comes_back_the_same"),
        "the vendor's encoder puts the calls of a turn into the order of their ids; call_order='given' leaves them",
    )
    options: V4Options

    @property
    def thinks(self) -> bool:
        """Whether the generation prompt opens reasoning."""
        return self.options.thinking_mode == "thinking"

    def check(self, conversation: Conversation) -> None:
        """Refuse roles that the encoder does not know."""
        for view in conversation.new:
            if view.role not in _ROLES:
                raise bad_message(
                    view.index,
                    f"has role {view.role!r}, which DeepSeek-V4 does not know",
                    f"use one of {', '.join(sorted(_ROLES))}",
                )

    def is_query(self, message: MessageView) -> bool:
        """A user's or developer's message."""
        return message.role in _QUERIES

    def write_preamble(self, out: Writer, conversation: Conversation) -> None:
        """Write BOS, the effort, all system messages wherever they stand, and the tools."""
        out.begin(None)
        out.control(BOS)
        if self.thinks:
            out.text(EFFORTS.get(self.options.reasoning_effort or "", ""))
        systems = [view for view in conversation.messages if view.role == "system" and view.text]
        for n, view in enumerate(systems):
            out.begin(view)
            if n:
                out.text("\n\n")
            out.content(view.text)
        if conversation.tools:
            out.begin(None)
            schemas = [dump_value(_schema(tool, n)) for n, tool in enumerate(conversation.tools)]
            out.text(TOOLS_HEAD + "\n".join(schemas) + TOOLS_TAIL)

    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write the message whose turn it is: results may change places among themselves."""
        if conversation.role(position) == "system":
            return  # in the preamble
        caller, order = self._order(conversation)
        place = caller.index(position)
        view = conversation.messages[order[place]]
        before = [conversation.messages[n] for n in order[:place]]
        out.begin(view)
        if view.role == "assistant":
            self.write_assistant(out, conversation, order[place])
            out.end_sampled()
        elif view.role == "latest_reminder":
            out.control(REMINDER)
            out.content(view.text)
        else:
            self.write_part(out, view, before)

    def write_part(self, out: Writer, view: MessageView, before: Sequence[MessageView]) -> None:
        """Write a result, or a user's or developer's text, in the user turn that is open or in one of its own.

        A text may follow a result or a text, a result only a result.
        """
        last = before[-1].role if before else ""
        if view.role == "developer" or (last != "tool" and (last, view.role) != ("user", "user")):
            out.control(USER)
        elif last == "tool" or (view.text and _has_text(before)):
            out.text("\n\n")
        if view.role == "tool":
            out.text("<tool_result>")
            out.content(view.text)
            out.text("</tool_result>")
        else:
            out.content(view.text)

    def write_assistant(self, out: Writer, conversation: Conversation, position: int) -> None:
        """Write an assistant turn. What the generation prompt would have written is not sampled."""
        view = conversation.messages[position]
        out.control(ASSISTANT)
        if self.writes_reasoning(conversation, position):
            out.control(THINK)
            out.begin_sampled()
            out.content(view.reasoning or "")
            out.control(END_THINK)
        else:
            out.control(END_THINK)
            out.begin_sampled()
        out.content(view.text)
        if view.calls and self.tool_codec is not None:
            by_id = self.options.call_order == "id"
            self.tool_codec.write(out, sorted_calls(view.calls) if by_id else view.calls, after_text=bool(view.text))
        out.control(EOS)

    def writes_reasoning(self, conversation: Conversation, position: int) -> bool:
        """Whether a turn has a think block.

        With tools, where it reasoned. In thinking mode also where the retention keeps it, and in the turn that is
        trained: there the block may be empty, as it is sampled.
        """
        later = conversation.messages[position + 1 :]
        retention, has_query = self.options.thinking_retention, any(map(self.is_query, later))
        keeps = retention == "all" or (retention == "tool_cycle" and not has_query)
        is_trained = not conversation.has_prompt and not has_query and all(view.role != "tool" for view in later)
        if self.thinks and (keeps or is_trained):
            return True
        return (keeps or bool(conversation.tools)) and conversation.messages[position].reasoning is not None

    def write_generation_prompt(self, out: Writer, conversation: Conversation) -> None:
        """Open the assistant turn."""
        out.control(ASSISTANT)
        out.control(THINK if self.thinks else END_THINK)

    @property
    def is_prefix_stable(self) -> bool:
        """Only without reasoning is nothing dropped in any conversation."""
        return not self.thinks or self.options.thinking_retention == "all"

    def can_bridge(self, conversation: Conversation, stop: str | None) -> bool:
        """A system message would have to go before everything else."""
        return all(view.role != "system" for view in conversation.new)

    def rewrites_history(self, conversation: Conversation) -> bool:
        """Without tools any new message drops reasoning; with them the block of a turn that did not reason goes.

        Calls whose ids are not in order change places.
        """
        sampled, retention = conversation.sampled, self.options.thinking_retention
        if sampled is None or retention == "all":
            return False
        if self.options.call_order == "id" and not self._calls_are_in_order(conversation):
            return True
        think, end = (sampled.grammar.controls[token] for token in (THINK, END_THINK))
        if not sampled.prompt_ids or sampled.prompt_ids[-1] != think:
            return False
        if retention == "tool_cycle" and not any(map(self.is_query, conversation.new)):
            return False
        ids = [*sampled.prompt_ids, *sampled.completion_ids]
        return not conversation.tools or any(pair == (think, end) for pair in pairwise(ids))

    def _order(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        """Return the positions of what is written, in the caller's order and in the order of writing.

        In a bridge both begin with the sampled turn.
        """
        if "order" not in conversation.memo:
            first = max(conversation.first - 1, 0)
            caller = [n for n in range(first, len(conversation.messages)) if conversation.role(n) != "system"]
            order = caller
            if self.options.call_order == "id":
                sizes = [len(self._calls(conversation, n)) for n in caller]
                order = written_order(conversation.messages, caller, sizes)
            conversation.memo["order"] = caller, order
        found: tuple[list[int], list[int]] = conversation.memo["order"]
        return found

    def _calls(self, conversation: Conversation, position: int) -> Sequence[CallView]:
        is_sampled = conversation.is_bridge and position == conversation.first - 1
        return self._sampled_calls(conversation) if is_sampled else conversation.messages[position].calls

    def _calls_are_in_order(self, conversation: Conversation) -> bool:
        """Whether a render would write the sampled calls as they were sampled."""
        calls = self._sampled_calls(conversation)
        by_id = sorted_calls(calls)
        if by_id == list(calls):
            return True
        read = [(call.name, call.arguments) for call in self._read_calls(conversation)]
        return read == [(call.name, arguments_of(call)) for call in by_id]

    def _sampled_calls(self, conversation: Conversation) -> Sequence[CallView]:
        """Return the calls of the sampled turn: as the caller describes them, else as they are read from its ids."""
        view = conversation.messages[conversation.first - 1]
        return view.calls if view.index >= 0 else self._read_calls(conversation)

    def _read_calls(self, conversation: Conversation) -> Sequence[CallView]:
        sampled = conversation.sampled
        if sampled is None or sampled.grammar.controls[DSML] not in sampled.completion_ids:
            return ()
        if "calls" not in conversation.memo:
            begin = sampled.grammar.state_after(sampled.prompt_ids)
            parser = self.create_parser(sampled.grammar, begin, None, offset=len(sampled.prompt_ids))
            parser.feed(sampled.completion_ids)
            found = parser.finish().tool_calls
            conversation.memo["calls"] = [CallView(call.name, call.arguments, call.id) for call in found]
        calls: list[CallView] = conversation.memo["calls"]
        return calls


class V4GivenFormat(V4Format):
    """V4 with calls and results in the order in which the caller gives them."""

    quirks: ClassVar[Mapping[str, str]] = {}


def _has_text(before: Sequence[MessageView]) -> bool:
    """Whether the texts at the end of `before` hold anything; empty ones leave no trace among them."""
    return any(view.text for view in takewhile(lambda view: view.role == "user", reversed(before)))


def _schema(tool: Any, number: int) -> dict[str, Any]:
    """Return a tool as the encoder writes it: name, description and parameters, nothing else."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RenderError(
            f"tool {number} has no function with a name",
            where=f"tools[{number}]",
            next_step="give each tool as {'type': 'function', 'function': {'name': ..., 'description': ...}}",
        )
    return {
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": function.get("parameters"),
    }


def create_v4(tokenizer: Tokenizer, options: V4Options) -> ChatRenderer:
    """Create the `deepseek-v4` renderer."""
    formats = {"id": V4Format, "given": V4GivenFormat}
    return ChatRenderer("deepseek-v4", tokenizer, formats[options.call_order](options), V4_TOKENS)
