"""Reads harmony completions: several messages, each with a header, in any chunking. Never raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum

from prl.parse import Event, Grammar, Lexer, Mark
from prl.types import InvalidToolCall, ParseDelta, ParsedResponse, ParsedToolCall
from prl_renderer_gpt_oss.header import Header, read_header, unmarked_body
from prl_renderer_gpt_oss.tokens import CHANNEL, CONSTRAIN, CONTROL_TOKENS, END, MESSAGE, START, STOP_TOKENS
from prl_renderer_gpt_oss.tools import read_call


class _Place(Enum):
    HEADER = "header"
    BODY = "body"
    DONE = "done"


def message_grammar(grammar: Grammar) -> Grammar:
    """Return a grammar in which every control token of harmony is a marker, told apart by its spelling."""
    marks = {grammar.controls[token]: (Mark.STOP, token) for token in CONTROL_TOKENS}
    return replace(grammar, marks=marks, lowest_mark=min(marks))


class HarmonyParser:
    """Reads one completion.

    Text of the channel `analysis` is reasoning, that of the others content, and a message to a recipient is a call.
    Messages of one kind are joined by a line feed. What is no well-formed message is kept: its text as content, what
    cannot be placed as an invalid call.
    """

    def __init__(self, grammar: Grammar, prompt_tail: Sequence[int], *, offset: int) -> None:
        self._lexer = Lexer(grammar)
        self._offset = offset
        self._steps: dict[str, Callable[[Event], None]] = {
            START: self._start,
            CHANNEL: self._channel,
            CONSTRAIN: self._text,
            MESSAGE: self._message,
            END: self._end,
            **dict.fromkeys(STOP_TOKENS, self._stop),
        }
        self._events: list[Event] = []
        self._body: list[str] = []
        self._reset("", 0)
        self._texts: dict[str, list[str]] = {"reasoning": [], "content": []}
        self._calls: list[ParsedToolCall] = []
        self._invalid: list[InvalidToolCall] = []
        self._complete = True
        self._deltas: list[ParseDelta] = []
        self.last_deltas: list[ParseDelta] = []
        self._read_prompt(grammar, prompt_tail)

    def feed(self, ids: Sequence[int]) -> list[ParseDelta]:
        """Take the next ids; return what became certain."""
        if self._place is not _Place.DONE:
            self._handle(self._lexer.feed(ids))
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(self) -> ParsedResponse:
        """End the completion; return the whole message. Deltas that only the end decides are in `last_deltas`."""
        if self._place is not _Place.DONE:
            self._handle(self._lexer.finish())
        if self._place is not _Place.DONE:
            self._complete = self._place is _Place.HEADER or self._kind() != "reasoning"
            self._finish_message(self._lexer.position)
        self.last_deltas, self._deltas = self._deltas, []
        return ParsedResponse(
            content="".join(self._texts["content"]),
            reasoning_content="".join(self._texts["reasoning"]) or None,
            tool_calls=tuple(self._calls),
            invalid_tool_calls=tuple(self._invalid),
            reasoning_complete=self._complete,
        )

    def _read_prompt(self, grammar: Grammar, prompt_tail: Sequence[int]) -> None:
        """Take the message that the prompt opened; what it holds already is not part of the completion."""
        lexer = Lexer(grammar)
        for event in [*lexer.feed(prompt_tail), *lexer.finish()]:
            if self._place is not _Place.DONE:
                self._steps[event.text](event) if event.mark else self._text(event)
        self._opened = "" if self._place is _Place.BODY else "".join(event.text for event in self._events)
        self._opened = self._opened.removeprefix(START)
        self._events, self._texts = [], {"reasoning": [], "content": []}
        self._deltas, self._invalid, self._calls = [], [], []
        self._began = 0
        if self._place is _Place.DONE:
            self._reset("", 0)

    def _handle(self, events: Sequence[Event]) -> None:
        for event in events:
            if self._place is _Place.DONE:
                return
            if event.mark is None:
                self._text(event)
            else:
                self._steps[event.text](event)

    def _reset(self, opened: str, began: int) -> None:
        """Begin a message at a token. `opened` is what the header holds without being part of the completion."""
        self._place = _Place.HEADER
        self._began = began
        self._opened = opened
        self._events = []
        self._header = Header("assistant")
        self._body = []
        self._begun = False

    def _text(self, event: Event) -> None:
        """Take text, or a marker that stands for itself."""
        self._events.append(event)
        if self._place is _Place.BODY:
            self._body.append(event.text)
            if self._kind() in self._texts:
                self._emit(self._kind(), event.text)

    def _start(self, event: Event) -> None:
        self._finish_message(event.position)
        self._reset("", event.position)
        self._events.append(event)

    def _channel(self, event: Event) -> None:
        """A channel inside a body begins a message whose start was left out."""
        if self._place is _Place.BODY:
            self._finish_message(event.position)
            self._reset("", event.position)
        self._events.append(event)

    def _message(self, event: Event) -> None:
        if self._place is _Place.BODY:
            self._text(event)
            return
        text = self._opened + "".join(part.text for part in self._events)
        self._header = read_header(text.removeprefix(START))
        self._place = _Place.BODY
        if self._header.fault and self._kind() == "content":
            self._keep(self._header.fault, event.position)
        self._events.append(event)

    def _end(self, event: Event) -> None:
        self._events.append(event)
        self._finish_message(event.end)
        self._reset("", event.end)

    def _stop(self, event: Event) -> None:
        self._events.append(event)
        self._finish_message(event.end)
        self._place = _Place.DONE

    def _kind(self) -> str:
        """Return what the current body is: "reasoning", "content", "call", or "foreign" for another role's message."""
        if self._header.role != "assistant":
            return "foreign"
        if self._header.recipient:
            return "call"
        return "reasoning" if self._header.channel == "analysis" else "content"

    def _finish_message(self, end: int) -> None:
        """End the message before token `end`."""
        if self._place is _Place.HEADER:
            self._finish_header(end)
        elif self._kind() == "call":
            self._read_call(end)
        elif self._kind() == "foreign":
            self._keep(f"the model wrote a message of role {self._header.role!r}", end)

    def _finish_header(self, end: int) -> None:
        """Keep what stands where a header should be; a role or a channel alone is nothing to keep.

        Text behind a channel that nothing marks as a message is what the channel holds.
        """
        text = "".join(event.text for event in self._events if event.text not in (END, *STOP_TOKENS))
        plain = text.removeprefix(START)
        if CHANNEL not in plain and CONSTRAIN not in plain and "to=" not in self._opened + plain:
            if text.startswith(START):
                plain = plain.partition(" ")[2]
            if plain.strip():
                self._emit("content", plain)
            return
        self._header, body = read_header(self._opened + plain), unmarked_body(self._opened + plain)
        if not text or (body == "" and not self._header.recipient):
            return
        if body is None or self._kind() not in self._texts:
            self._keep("the message ends in its header", end)
        else:
            self._emit(self._kind(), body)

    def _read_call(self, end: int) -> None:
        name, arguments, error = read_call(self._header.recipient, "".join(self._body))
        if arguments is None:
            self._keep(error, end)
            return
        call = ParsedToolCall(f"call_{self._offset + self._began}", name, arguments, (self._began, end))
        self._calls.append(call)
        self._deltas.append(ParseDelta("tool_call", call=call))

    def _keep(self, error: str, end: int) -> None:
        """Keep what was read of the message, verbatim."""
        raw = "".join(event.text for event in self._events)
        call = InvalidToolCall(raw, error, (self._began, end))
        self._invalid.append(call)
        self._deltas.append(ParseDelta("invalid_tool_call", call=call))

    def _emit(self, kind: str, text: str) -> None:
        """Add text; the first of a further message of its kind comes after a line feed."""
        texts = self._texts[kind]
        if not self._begun and texts:
            text = "\n" + text
        self._begun = True
        texts.append(text)
        self._deltas.append(ParseDelta("reasoning" if kind == "reasoning" else "content", text))
