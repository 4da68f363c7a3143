"""Checks of a reasoning codec: its white space is that of the template, and a thought is never taken for an answer."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

from prl.contracts import ReasoningCodec
from prl.parse import CompletionParser, Grammar, ReasoningState
from prl.testing.byte_tokenizer import ByteTokenizer
from prl.tokenizer import Tokenizer, as_tokenizer
from prl.types import ParsedResponse

from .check import brief, check, expect
from .completions import check_stream, check_usable, mixed_ids, parse_whole, random_ids
from .material import SAY, THOUGHT

_BEGIN, _STOP = "<|kit_begin|>", "<|kit_stop|>"
_THOUGHTS = (THOUGHT, "One.\n\nTwo.", "a < b, not c", "東京 🙂")
_SAID = (SAY, "Two lines:\n- one\n- two", "x")


class Ground(NamedTuple):
    """A vocabulary with the markers as tokens, or as text, and the parser's grammar on it."""

    name: str
    tokenizer: Tokenizer
    grammar: Grammar

    def ids(self, text: str) -> list[int]:
        """Encode text; markers become their tokens where the vocabulary has them."""
        return self.tokenizer.encode(text)

    def parser(self, begin: ReasoningState) -> CompletionParser:
        """Return a parser of a completion that begins in a state."""
        return CompletionParser(self.grammar, begin)

    def parse(self, text: str, begin: ReasoningState) -> ParsedResponse:
        """Read a completion."""
        return parse_whole(partial(self.parser, begin), self.ids(text))


@dataclass
class ReasoningCodecSubject:
    """A reasoning codec under check; `quirks` are the checks it cannot pass, with the reason."""

    name: str
    codec: ReasoningCodec
    quirks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.quirks = self.quirks or getattr(self.codec, "quirks", {})

    @cached_property
    def grounds(self) -> list[Ground]:
        """The vocabularies to check on."""
        markers = (self.codec.open, self.codec.close)
        return [self._ground("markers as tokens", markers), self._ground("markers as text", ())]

    def inner(self, thought: str, said: str) -> str:
        """Write a turn as a template does, from behind the opening marker on."""
        codec = self.codec
        return codec.after_open + thought + codec.before_close + codec.close + codec.after_close + said

    def _ground(self, name: str, markers: Sequence[str]) -> Ground:
        tokenizer = as_tokenizer(ByteTokenizer([_BEGIN, _STOP, *markers]))
        begin, stop = tokenizer.encode(_BEGIN + _STOP)
        grammar = Grammar.build(
            tokenizer, opener=begin, stop_ids=[stop], reasoning=self.codec, tool_codec=None, content_strip=""
        )
        return Ground(name, tokenizer, grammar)


@check("reasoning_parser")
def the_markers_differ(subject: ReasoningCodecSubject) -> None:
    """Reasoning never ends, or never begins."""
    codec = subject.codec
    for label, marker in (("open", codec.open), ("close", codec.close)):
        expect(isinstance(marker, str) and bool(marker.strip()), f"`{label}` is {marker!r}")
    expect(codec.open != codec.close, f"both markers are {codec.open!r}")


@check("reasoning_parser")
def the_white_space_is_stripped_again(subject: ReasoningCodecSubject) -> None:
    """Reasoning and answer grow by a line feed with every turn."""
    codec = subject.codec
    for label, space, strip in (
        ("after_open", codec.after_open, codec.strip),
        ("before_close", codec.before_close, codec.strip),
        ("after_close", codec.after_close, codec.content_strip),
    ):
        expect(not space.strip(), f"`{label}` is {space!r}, which is not only white space")
        if strip != "":  # where nothing is stripped, the engine removes the template's own white space once
            expect(not space.strip(strip), f"`{label}` {space!r} is not stripped by {strip!r}")


@check("reasoning_parser")
def reasoning_comes_back(subject: ReasoningCodecSubject) -> None:
    """The thought is shown to the user, or the answer is lost in the thought."""
    for ground in subject.grounds:
        for thought in _THOUGHTS:
            for said in _SAID:
                inner = subject.inner(thought, said) + _STOP
                for text, begin in (
                    (subject.codec.open + inner, ReasoningState.UNDECIDED),
                    (subject.codec.open + inner, ReasoningState.CLOSED),
                    (inner, ReasoningState.OPEN),
                ):
                    parsed = ground.parse(text, begin)
                    got = (parsed.reasoning_content, parsed.content, parsed.reasoning_complete)
                    expect(got == (thought, said, True), f"{text!r} is read as {got} ({ground.name})")


@check("reasoning_parser")
def empty_reasoning_is_none(subject: ReasoningCodecSubject) -> None:
    """A model that did not think is reported as having thought nothing."""
    for ground in subject.grounds:
        for thought in ("", "\n"):
            parsed = ground.parse(subject.codec.open + subject.inner(thought, SAY) + _STOP, ReasoningState.UNDECIDED)
            got = (parsed.reasoning_content, parsed.content)
            expect(got == (None, SAY), f"an empty thought is read as {got} ({ground.name})")


@check("reasoning_parser")
def an_answer_alone_is_content(subject: ReasoningCodecSubject) -> None:
    """The answer of a model that did not think is taken for a thought."""
    for ground in subject.grounds:
        for begin in (ReasoningState.UNDECIDED, ReasoningState.CLOSED):
            parsed = ground.parse(SAY + _STOP, begin)
            expect((parsed.reasoning_content, parsed.content) == (None, SAY), f"{SAY!r} is read as {brief(parsed)}")


@check("reasoning_parser")
def a_cut_thought_is_reported(subject: ReasoningCodecSubject) -> None:
    """Half a thought is taken for an answer."""
    for ground in subject.grounds:
        inside = subject.codec.after_open + THOUGHT[:12]
        for text, begin in (
            (inside, ReasoningState.OPEN),
            (subject.codec.open + inside, ReasoningState.UNDECIDED),
        ):
            parsed = ground.parse(text, begin)
            got = (parsed.content, parsed.reasoning_content, parsed.reasoning_complete)
            expect(got == ("", THOUGHT[:12].rstrip(), False), f"{text!r} is read as {got} ({ground.name})")


@check("reasoning_parser")
def a_stream_of_thoughts_ends_in_the_same_message(subject: ReasoningCodecSubject) -> None:
    """What counts as a thought depends on how the network cut the tokens."""
    rng = random.Random(10)
    for ground in subject.grounds:
        texts = [subject.codec.open + subject.inner(thought, said) + _STOP for thought in _THOUGHTS for said in _SAID]
        completions = [ground.ids(text) for text in texts]
        controls = sorted(ground.tokenizer.added_tokens.values())
        mixed = [mixed_ids(rng, completions, controls) for _ in range(60)]
        mixed += [random_ids(rng, controls, ground.tokenizer.vocab_size, rng.randrange(24)) for _ in range(60)]
        for ids in [*completions, *mixed]:
            shown = ground.tokenizer.decode(ids)
            begin = rng.choice(list(ReasoningState))
            check_usable(check_stream(partial(ground.parser, begin), ids, rng, shown), shown)
