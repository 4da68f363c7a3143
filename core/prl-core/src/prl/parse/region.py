"""The text between a call's markers, and where it really ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prl.contracts import ReadCall, ToolCodec
from prl.parse.grammar import Mark
from prl.parse.lexer import Event
from prl.types import InvalidToolCall, ParsedToolCall, ToolSpec

_MAX_DEFERRALS = 16


class CallRegion:
    """One open region. A close marker inside a value does not end it, if a later one does."""

    def __init__(self, codec: ToolCodec, opened: Event) -> None:
        self._codec = codec
        self._opened = opened
        self._events: list[Event] = []
        self._calls: list[ReadCall] = []
        self._closes = 0
        self._openings = 0
        self._inner: list[int] = []  # places of opening markers that are part of a value
        self.start = opened.position
        self.closed_by: Event | None = None

    @property
    def text(self) -> str:
        """The text inside, markers spelled out."""
        return "".join([event.text for event in self._events])

    @property
    def is_call(self) -> bool:
        """Whether it is a call at all; only a codec whose markers are also ordinary text says that it is not."""
        judge = getattr(self._codec, "is_call", None)
        return judge is None or bool(judge(self.text))

    def spelled(self, closed: Event | None) -> str:
        """The text with its markers."""
        return self._opened.text + self.text + (closed.text if closed is not None else "")

    def add(self, event: Event) -> None:
        """Take text, or a marker that is part of a value."""
        self._events.append(event)

    def open_inner(self, event: Event) -> None:
        """Take an opening marker that is part of a value."""
        self._inner.append(len(self._events))
        self._events.append(event)

    def quotes_call(self, tools: Sequence[ToolSpec] | None) -> bool:
        """Whether a close marker that comes now belongs to a whole call that a value quotes."""
        if not self._inner:
            return False
        quoted = self._events[self._inner.pop() + 1 :]
        return _well_formed(self._codec.read("".join([event.text for event in quoted]), tools))

    def ends_here(self, tools: Sequence[ToolSpec] | None) -> bool:
        """Whether a marker that comes now ends the region.

        It is well-formed, or no value is open that could hold the marker.
        """
        self._calls = self._codec.read(self.text, tools)
        return _well_formed(self._calls) or (not self._closes and not self._codec.is_inside_value(self.text))

    def ends_at_opening(self, tools: Sequence[ToolSpec] | None) -> bool:
        """As `ends_here`, of a marker that opens another call.

        Each answer reads the whole region, so after some markers that were part of a value it is looked for ever more
        rarely: a model that has collapsed writes thousands.
        """
        self._openings += 1
        if self._openings > _MAX_DEFERRALS and self._openings.bit_count() > 1:
            return False
        return self.ends_here(tools)

    def defer(self, event: Event) -> bool:
        """Take a close marker as part of a value; False when that was assumed too often to go on."""
        self._events.append(event)
        self._closes += 1
        return self._closes < _MAX_DEFERRALS

    def settle(self, tools: Sequence[ToolSpec] | None) -> list[Event]:
        """Give up waiting: if the text is not whole, end at the first close marker. Return the events after it."""
        self._calls = self._codec.read(self.text, tools)
        if not self._closes or _well_formed(self._calls):
            return []
        first = next(n for n, event in enumerate(self._events) if event.mark is Mark.END_CALL)
        rest = self._events[first + 1 :]
        self.closed_by = self._events[first]
        self._events = self._events[:first]
        self._calls = self._codec.read(self.text, tools)
        return rest

    def calls(self, closed: Event | None, end: int, offset: int) -> Iterator[ParsedToolCall | InvalidToolCall]:
        """Yield the calls. `end` is the token after the region, `offset` the tokens before the completion.

        Ids come from the position of the call in the conversation, so that they are unique in a rollout and the same
        in every chunking.
        """
        span = (self.start, end)
        if closed is None and getattr(self._codec, "needs_close", False):
            yield InvalidToolCall(self._opened.text + self.text, f"{self._codec.close} is missing", span)
            return
        for n, call in enumerate(self._calls):
            if call.arguments is not None:
                suffix = f"_{n}" if n else ""
                yield ParsedToolCall(call.id or f"call_{offset + self.start}{suffix}", call.name, call.arguments, span)
            else:
                raw = call.raw
                if len(self._calls) == 1:
                    raw = self.spelled(closed)
                yield InvalidToolCall(raw, call.error or "malformed call", span)


def _well_formed(calls: Sequence[ReadCall]) -> bool:
    return all(call.arguments is not None for call in calls)
