"""The completion parser: one state machine for whole and streamed completions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Literal

from prl.parse.grammar import Grammar, Mark, ReasoningState
from prl.parse.lexer import Event, Lexer
from prl.parse.region import CallRegion
from prl.parse.trim import TrimmedText
from prl.types import InvalidToolCall, ParseDelta, ParsedResponse, ParsedToolCall, ToolSpec


class _State(Enum):
    UNDECIDED = "undecided"
    REASONING = "reasoning"
    CONTENT = "content"
    CALL = "call"
    DRAFT = "draft"
    DONE = "done"


# Bound once: an attribute of an enum costs as much as a step's own work.
_UNDECIDED, _REASONING, _CONTENT, _IN_CALL, _DRAFT, _DONE = _State
_THINK, _END_THINK, _BEGIN_CALL, _END_CALL, _STOP = Mark

_BEGIN = {
    ReasoningState.OPEN: _REASONING,
    ReasoningState.CLOSED: _CONTENT,
    ReasoningState.UNDECIDED: _UNDECIDED,
}


class CompletionParser:
    """Reads one completion. `feed` returns what became certain; `finish` returns the whole message.

    While it is not known whether text is reasoning (the prompt opened none, no marker came yet) the text is withheld:
    a later end marker makes it reasoning, anything else content. A call that opens inside reasoning ends it, unless an
    end marker follows: models draft calls while they think, and a draft is never executed. Until that is known, what
    follows the opening is withheld too.
    `is_inside`: the prompt holds more of open reasoning than its marker, so the template's white space behind that too.
    """

    def __init__(
        self,
        grammar: Grammar,
        begin: ReasoningState,
        tools: Sequence[ToolSpec] | None = None,
        *,
        offset: int = 0,
        is_inside: bool = False,
    ) -> None:
        self._grammar = grammar
        self._lexer = Lexer(grammar)
        self._tools = tools
        self._offset = offset
        self._state = _BEGIN[begin]
        self._pending: list[str] = []
        codec = grammar.reasoning
        strip = codec.strip if codec is not None else ""
        self._reasoning = TrimmedText(left=strip, right=strip)
        if codec is not None and strip == "" and begin is ReasoningState.OPEN and not is_inside:
            self._reasoning.lead = codec.after_open
        ends = None if grammar.strips_content_end else grammar.content_strip
        self._content = TrimmedText(left=grammar.content_strip, right=ends)
        self._reasoned = begin is ReasoningState.OPEN
        self._complete = begin is not ReasoningState.OPEN
        self._region: CallRegion | None = None
        self._draft: list[Event] = []
        self._calls: list[ParsedToolCall] = []
        self._invalid: list[InvalidToolCall] = []
        self._queue: deque[Event] = deque()
        self._deltas: list[ParseDelta] = []
        self.last_deltas: list[ParseDelta] = []

    def feed(self, ids: Sequence[int]) -> list[ParseDelta]:
        """Take the next ids; return what became certain."""
        if self._state is not _DONE:
            self._handle(self._lexer.feed(ids))
        return self._take_deltas()

    def finish(self) -> ParsedResponse:
        """End the completion; return the whole message. Deltas that only the end decides are in `last_deltas`."""
        if self._state is not _DONE:
            self._handle(self._lexer.finish())
            self._end()
        self.last_deltas = self._take_deltas()
        return ParsedResponse(
            content=self._content.value,
            reasoning_content=self._reasoning.value or None,
            tool_calls=tuple(self._calls),
            invalid_tool_calls=tuple(self._invalid),
            reasoning_complete=self._complete,
        )

    def _handle(self, events: Iterable[Event]) -> None:
        for event in events:
            self._step(event)
            while self._queue:
                self._step(self._queue.popleft())

    def _step(self, event: Event) -> None:
        if self._state is _DONE:
            return
        if self._state is _IN_CALL:
            self._in_call(event)
        elif self._state is _DRAFT:
            self._in_draft(event)
        elif event.mark is None:
            self._text(event.text)
        elif event.mark is _STOP:
            self._end()
        elif event.mark is _BEGIN_CALL and self._may_call():
            self._open_call(event)
        elif event.mark is _THINK and self._may_think():
            self._open_reasoning()
        elif event.mark is _THINK and self._state is _REASONING and not self._reasoning:
            self._restart_reasoning()
        elif event.mark is _END_THINK and self._state in (_REASONING, _UNDECIDED):
            self._close_reasoning()
        else:
            self._text(event.text)

    def _text(self, text: str) -> None:
        if self._state is _UNDECIDED:
            self._pending.append(text)
        elif self._state is _REASONING:
            self._emit("reasoning", self._reasoning.add(text))
        else:
            self._emit("content", self._content.add(text))

    def _may_think(self) -> bool:
        """Reasoning may begin once: at the start of the turn, or where nothing has been decided yet."""
        return not self._reasoned and (self._state is _UNDECIDED or not (self._content or self._calls))

    def _may_call(self) -> bool:
        """Whether a marker opens a call: not where it is ordinary text, and the model still reasons."""
        codec = self._grammar.tool_codec
        return codec is not None and not (self._state is _REASONING and hasattr(codec, "is_call"))

    def _open_reasoning(self) -> None:
        """Begin reasoning. Text before it is content; mere white space there belongs to nobody."""
        before = "".join(self._pending)
        self._pending.clear()
        if before.strip():
            self._emit("content", self._content.add(before))
        else:
            self._content.drop_space()
        self._restart_reasoning()
        self._state = _REASONING
        self._reasoned, self._complete = True, False

    def _restart_reasoning(self) -> None:
        """Expect the template's white space again: behind the marker, also where the prompt had written one already."""
        self._reasoning.drop_space()
        codec = self._grammar.reasoning
        if codec is not None and codec.strip == "":
            self._reasoning.lead = codec.after_open

    def _close_reasoning(self) -> None:
        """End reasoning by its marker; text that came without a beginning marker becomes reasoning."""
        if self._state is _UNDECIDED:
            self._emit("reasoning", self._reasoning.add("".join(self._pending)))
            self._pending.clear()
        self._leave_reasoning()
        self._state = _CONTENT

    def _leave_reasoning(self) -> None:
        codec = self._grammar.reasoning
        self._emit("reasoning", self._reasoning.end(codec.before_close if codec is not None else "", blank=False))
        self._reasoned = self._complete = True
        if codec is not None and not self._content:
            self._content.strip_left(codec.content_strip)
            if codec.content_strip == "":
                self._content.lead = codec.after_close

    def _open_call(self, event: Event) -> None:
        codec = self._grammar.tool_codec
        assert codec is not None
        if self._state is _REASONING:
            self._draft.append(event)
            self._state = _DRAFT
            return
        self._decide_content()
        self._region = CallRegion(codec, event)
        self._state = _IN_CALL

    def _in_draft(self, event: Event) -> None:
        """Hold what follows a call's opening inside reasoning; the end marker makes all of it reasoning."""
        if event.mark is _END_THINK:
            held, self._draft = self._draft, []
            for part in held:
                self._emit("reasoning", self._reasoning.add(part.text))
            self._close_reasoning()
            return
        self._draft.append(event)
        if event.mark is _STOP:
            self._settle_draft()

    def _settle_draft(self) -> None:
        """No end marker came: the call was meant, and ended the reasoning as it ends content."""
        codec = self._grammar.tool_codec
        if self._reasoning and codec is not None:
            self._emit("reasoning", self._reasoning.before_call(codec.trim_before))
        self._leave_reasoning()
        self._state = _CONTENT
        self._queue.extend(self._draft)
        self._draft = []

    def _in_call(self, event: Event) -> None:
        region = self._region
        assert region is not None
        if event.mark is _STOP:
            self._settle_call(then=event)
        elif event.mark is _END_CALL:
            if region.quotes_call(self._tools):
                region.add(event)
            elif region.ends_here(self._tools):
                self._read_call(region, closed=event)
            elif not region.defer(event):
                self._settle_call(then=None)
        elif event.mark is _BEGIN_CALL and region.ends_at_opening(self._tools):
            self._read_call(region, closed=None, end=event.position)
            self._queue.appendleft(event)
        elif event.mark is _BEGIN_CALL:
            region.open_inner(event)
        else:
            region.add(event)

    def _settle_call(self, then: Event | None) -> None:
        """End a region that was never properly closed: up to its first close marker if it had one, else whole."""
        region = self._region
        assert region is not None
        rest = region.settle(self._tools)
        if then is not None:
            rest.append(then)
        end = then.position if then is not None else self._lexer.position
        self._read_call(region, closed=region.closed_by, end=end)
        self._queue.extendleft(reversed(rest))

    def _read_call(self, region: CallRegion, *, closed: Event | None, end: int = 0) -> None:
        """Turn a region into calls, or back into the text it is, and go back to content."""
        self._region, self._state = None, _CONTENT
        if not region.is_call:
            self._text(region.spelled(closed))
            return
        codec = self._grammar.tool_codec
        assert codec is not None
        self._emit("content", self._content.before_call(codec.trim_before))
        stop = closed.end if closed is not None else end
        for call in region.calls(closed, stop, self._offset):
            if isinstance(call, ParsedToolCall):
                self._calls.append(call)
                self._deltas.append(ParseDelta("tool_call", call=call))
            else:
                self._invalid.append(call)
                self._deltas.append(ParseDelta("invalid_tool_call", call=call))
        self._content.after_call()

    def _end(self) -> None:
        """End the turn: by a stop token, or because the ids ran out."""
        while self._state in (_IN_CALL, _DRAFT):
            if self._state is _DRAFT:
                self._settle_draft()
            else:
                self._settle_call(then=None)
            while self._queue:
                self._step(self._queue.popleft())
        self._decide_content()
        if self._state is _REASONING:
            self._emit("reasoning", self._reasoning.end(blank=False))
        self._emit("content", self._content.end())
        self._queue.clear()
        self._state = _DONE

    def _decide_content(self) -> None:
        if self._state is _UNDECIDED:
            self._state = _CONTENT
            self._emit("content", self._content.add("".join(self._pending)))
            self._pending.clear()

    def _emit(self, kind: Literal["reasoning", "content"], text: str) -> None:
        if text:
            self._deltas.append(ParseDelta(kind, text))

    def _take_deltas(self) -> list[ParseDelta]:
        deltas, self._deltas = self._deltas, []
        return deltas
