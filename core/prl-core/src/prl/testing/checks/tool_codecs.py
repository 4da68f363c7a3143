"""Checks of a tool-call codec: what it writes it reads back, and what it cannot read it keeps."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

from prl.contracts import CallView, ToolCodec
from prl.parse import CompletionParser, Grammar, ReasoningState
from prl.testing.byte_tokenizer import ByteTokenizer
from prl.testing.conversations import ORDINARY, Style, generate_assistant
from prl.tokenizer import Tokenizer, as_tokenizer
from prl.types import ParsedResponse, ToolSpec

from .check import brief, check, expect
from .completions import check_stream, check_usable, is_kept, mixed_ids, parse_whole, random_ids
from .material import ARGUMENTS, NAME, PLACE, SAY, TOOL, as_mapping, schema_of, typed

_BEGIN, _STOP = "<|kit_begin|>", "<|kit_stop|>"
_CALL = CallView(NAME, ARGUMENTS, "call_1")
_TEXTS = ("", "Let me look.", "Two lines:\n- one\n- two", "x = 1 < 2", SAY)
_SPACES = ("", "\n", "\n\n", "\n\n\n", "  \n")


class Pieces:
    """A `PieceWriter` that only collects: (is a control token, text)."""

    def __init__(self) -> None:
        self.written: list[tuple[bool, str]] = []

    def control(self, token: str) -> None:
        """Collect a control token."""
        self.written.append((True, token))

    def text(self, text: str) -> None:
        """Collect text."""
        self.written.append((False, text))

    content = text
    value = text


class Ground(NamedTuple):
    """A vocabulary that has the format's markers as tokens, or spells them in text, and the parser's grammar on it."""

    name: str
    tokenizer: Tokenizer
    grammar: Grammar

    def ids(self, pieces: Sequence[tuple[bool, str]], *, stopped: bool = True) -> list[int]:
        """Encode pieces as a model that writes this format samples them."""
        ids: list[int] = []
        for is_control, text in pieces:
            token = self.tokenizer.token_id(text) if is_control else None
            ids += self.tokenizer.encode_ordinary(text) if token is None else [token]
        return [*ids, *self.tokenizer.encode(_STOP)] if stopped else ids

    def parser(self, tools: Sequence[ToolSpec] | None) -> CompletionParser:
        """Return a parser of a completion that begins with content."""
        return CompletionParser(self.grammar, ReasoningState.CLOSED, tools)

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSpec] | None) -> ParsedResponse:
        """Read ids."""
        return parse_whole(lambda: self.parser(tools), ids)


@dataclass
class ToolCodecSubject:
    """A tool-call codec under check; `quirks` are the checks it cannot pass, with the reason."""

    name: str
    codec: ToolCodec
    quirks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.quirks = self.quirks or getattr(self.codec, "quirks", {})

    def pieces(self, calls: Sequence[CallView], text: str = "") -> list[tuple[bool, str]]:
        """Write a turn: its text, then its calls."""
        out = Pieces()
        out.text(text)
        self.codec.write(out, calls, after_text=bool(text))
        return out.written

    @cached_property
    def grounds(self) -> list[Ground]:
        """The vocabularies to check on."""
        written = [text for is_control, text in self.pieces([_CALL]) if is_control]
        markers = list(dict.fromkeys([*written, self.codec.open, self.codec.close]))
        return [self._ground("markers as tokens", markers), self._ground("markers as text", [])]

    def _ground(self, name: str, markers: Sequence[str]) -> Ground:
        tokenizer = as_tokenizer(ByteTokenizer([_BEGIN, _STOP, *markers]))
        begin, stop = tokenizer.encode(_BEGIN + _STOP)
        grammar = Grammar.build(
            tokenizer, opener=begin, stop_ids=[stop], reasoning=None, tool_codec=self.codec, content_strip=""
        )
        return Ground(name, tokenizer, grammar)


@check("tool_parser")
def the_markers_are_texts(subject: ToolCodecSubject) -> None:
    """The parser finds no call at all."""
    codec = subject.codec
    for label, marker in (("open", codec.open), ("close", codec.close)):
        expect(isinstance(marker, str) and bool(marker.strip()), f"`{label}` is {marker!r}")
    spellings = getattr(codec, "spellings", {})
    expect(all(isinstance(text, str) and text for text in spellings), f"`spellings` are {spellings!r}")


@check("tool_parser")
def calls_come_back_with_their_types(subject: ToolCodecSubject) -> None:
    """A tool gets the text "3" for the number 3, or another call than the model wrote."""
    for style in (ORDINARY, Style(edge=0.5, parts=0, null=0, markup=())):
        for seed in range(40):
            calls, tools = _drawn_calls(seed, style)
            for ground in subject.grounds if calls else ():
                ids = ground.ids(subject.pieces(calls, _TEXTS[seed % len(_TEXTS)]))
                _expect_calls(ground.parse(ids, tools), calls, ground)


@check("tool_parser")
def empty_arguments_are_a_call(subject: ToolCodecSubject) -> None:
    """A tool without parameters can never be called."""
    for ground in subject.grounds:
        for calls in ([CallView("ping", {})], [CallView("ping", {}), CallView("pong", {})]):
            _expect_calls(ground.parse(ground.ids(subject.pieces(calls)), None), calls, ground)


@check("tool_parser")
def the_text_before_calls_is_kept(subject: ToolCodecSubject) -> None:
    """What the model said before a call changes, and the next prompt with it."""
    for ground in subject.grounds:
        for text in (words + space for words in _TEXTS if words for space in _SPACES):
            parsed = ground.parse(ground.ids(subject.pieces([_CALL], text)), [TOOL])
            expect(parsed.content == text, f"{text!r} before a call reads back as {parsed.content!r} ({ground.name})")


@check("tool_parser")
def content_alone_is_no_call(subject: ToolCodecSubject) -> None:
    """An answer without a call is taken apart."""
    for ground in subject.grounds:
        for text in _TEXTS:
            parsed = ground.parse(ground.ids([(False, text)]), [TOOL])
            whole = parsed.content == text and not parsed.tool_calls and not parsed.invalid_tool_calls
            expect(whole, f"{text!r} is read as {brief(parsed)} ({ground.name})")


@check("tool_parser")
def markers_inside_values_are_values(subject: ToolCodecSubject) -> None:
    """A tool that is called with text about calls gets half of it, and the rest becomes the model's answer."""
    codec = subject.codec
    ground = subject.grounds[0]
    for text in (f"a {codec.close} b", f"{codec.close}", f"a {codec.open} b {codec.close} c"):
        calls = [CallView(NAME, {**ARGUMENTS, "city": text})]
        ids = ground.ids(subject.pieces(calls))
        _expect_calls(ground.parse(ids, [TOOL]), calls, ground)
        sampled = ground.tokenizer.encode(ground.tokenizer.decode(ids))  # the model wrote the marker as its token
        _expect_calls(ground.parse(sampled, [TOOL]), calls, ground)


@check("tool_parser")
def cut_calls_are_kept_and_not_run(subject: ToolCodecSubject) -> None:
    """A truncated call is run with half its arguments, or is gone without a word."""
    wanted = (NAME, typed(ARGUMENTS))
    for ground in subject.grounds:
        ids = ground.ids(subject.pieces([_CALL], SAY), stopped=False)
        for end in range(len(ids)):
            shown = ground.tokenizer.decode(ids[:end])
            parsed = ground.parse(ids[:end], [TOOL])
            for one in _calls(parsed):
                expect(one == wanted, f"{brief(shown)} runs {one} ({ground.name})")
            for probe in (SAY, NAME, PLACE):
                kept = probe not in shown or is_kept(probe, parsed)
                expect(kept, f"{probe!r} of {brief(shown)} is lost ({ground.name})")


@check("tool_parser")
def damaged_calls_are_kept_and_not_run(subject: ToolCodecSubject) -> None:
    """One wrong character in a call, and a tool runs without arguments."""
    for ground in subject.grounds:
        ids = ground.ids(subject.pieces([_CALL]))
        for place in range(len(ids) - 1):
            damaged = [*ids[:place], *ids[place + 1 :]]
            shown, parsed = ground.tokenizer.decode(damaged), ground.parse(damaged, [TOOL])
            for one in parsed.tool_calls:
                lost = {"days", "metric"} - set(one.arguments)
                expect(bool(one.arguments) and len(lost) <= 1, f"{brief(shown)} runs {one.arguments} ({ground.name})")
            kept = PLACE not in shown or is_kept(PLACE, parsed)
            expect(kept, f"{brief(shown)} leaves {brief(parsed)} ({ground.name})")


@check("tool_parser")
def reading_never_raises(subject: ToolCodecSubject) -> None:
    """One odd sample ends the run."""
    codec = subject.codec
    rng = random.Random(8)
    written = "".join(text for _, text in subject.pieces([_CALL, CallView("f", {"x": [1, {"y": None}]})]))
    alphabet = [*"{}[]()<>\"'\\:,= \n\t", "\ud800", "é", "null", "True", codec.open, codec.close, NAME]
    regions = ["", " ", *(written[: rng.randrange(len(written))] for _ in range(60))]
    regions += ["".join(rng.choices(alphabet, k=rng.randrange(30))) for _ in range(300)]
    regions += ["[" * 100_000, '{"a":' * 50_000, "(" * 100_000]
    for region in regions:
        calls = codec.read(region, [TOOL])
        expect(len(calls) >= 1, f"{brief(region)} reads as no call: its text is lost")
        for one in calls:
            whole = bool(one.name) if one.arguments is not None else bool(one.error)
            expect(whole, f"{brief(region)} reads as {brief(one)}")
        expect(isinstance(codec.is_inside_value(region), bool), f"is_inside_value({brief(region)}) is no bool")


@check("tool_parser")
def a_stream_of_calls_ends_in_the_same_message(subject: ToolCodecSubject) -> None:
    """What is called depends on how the network cut the tokens."""
    rng = random.Random(9)
    for ground in subject.grounds:
        drawn = [_drawn_calls(seed, ORDINARY) for seed in range(20)]
        completions = [ground.ids(subject.pieces(calls, _TEXTS[n % len(_TEXTS)])) for n, (calls, _) in enumerate(drawn)]
        controls = sorted(ground.tokenizer.added_tokens.values())
        mixed = [mixed_ids(rng, completions, controls) for _ in range(60)]
        mixed += [random_ids(rng, controls, ground.tokenizer.vocab_size, rng.randrange(24)) for _ in range(60)]
        for ids in [*completions, *mixed]:
            shown = ground.tokenizer.decode(ids)
            check_usable(check_stream(partial(ground.parser, [TOOL]), ids, rng, shown), shown)


def _drawn_calls(seed: int, style: Style) -> tuple[list[CallView], list[ToolSpec]]:
    """Return generated calls, each with its own name, and tools that declare their types."""
    message: Any = generate_assistant(seed, style)
    calls = message.get("tool_calls") or []
    for number, one in enumerate(calls):
        one["function"]["name"] = f"f_{number}"
    tools = schema_of({"tool_calls": calls})
    mappings = (as_mapping(one["function"]["arguments"]) for one in calls)
    return [CallView(f"f_{n}", arguments, f"call_{n}") for n, arguments in enumerate(mappings)], tools


def _expect_calls(parsed: ParsedResponse, calls: Sequence[CallView], ground: Ground) -> None:
    wanted = [(one.name, typed(one.arguments)) for one in calls]
    read = _calls(parsed)
    expect(read == wanted, f"calls {brief(wanted)} read back as {brief(read or parsed)} ({ground.name})")
    expect(not parsed.invalid_tool_calls, f"a well-formed call is called malformed: {brief(parsed)} ({ground.name})")


def _calls(parsed: ParsedResponse) -> list[Any]:
    return [(one.name, typed(one.arguments)) for one in parsed.tool_calls]
