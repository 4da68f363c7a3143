"""Ids that a model may sample, and what must hold for parsing any of them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from prl.contracts import StreamParser
from prl.types import ParseDelta, ParsedResponse

from .check import brief, expect
from .material import flat

MakeParser = Callable[[], StreamParser]


def random_ids(rng: random.Random, controls: Sequence[int], vocab_size: int, length: int) -> list[int]:
    """Draw ids as a young policy samples them: many control tokens, and ids outside the vocabulary."""
    outside = (-1, vocab_size, vocab_size + 77)
    ids: list[int] = []
    for _ in range(length):
        draw = rng.random()
        ids.append(rng.choice(outside if draw < 0.03 else controls) if draw < 0.4 else rng.randrange(vocab_size))
    return ids


def mixed_ids(rng: random.Random, completions: Sequence[Sequence[int]], controls: Sequence[int]) -> list[int]:
    """Cut, join and damage real completions."""
    mixed: list[int] = []
    for _ in range(rng.randint(1, 3)):
        ids = rng.choice(completions)
        start = rng.randrange(len(ids) + 1) if rng.random() < 0.3 else 0
        mixed += ids[start : rng.randint(start, len(ids))]
        if rng.random() < 0.3:
            mixed.append(rng.choice(controls))
        if mixed and rng.random() < 0.3:
            del mixed[rng.randrange(len(mixed))]
    return mixed


def chunkings(rng: random.Random, ids: Sequence[int]) -> Iterator[list[Sequence[int]]]:
    """Yield ways to cut ids into chunks: one by one, and at random, empty chunks included."""
    yield [ids[n : n + 1] for n in range(len(ids))]
    for _ in range(2):
        edges = sorted([0, len(ids), *(rng.randrange(len(ids) + 1) for _ in range(4))])
        yield [ids[start:end] for start, end in pairwise(edges)]


def check_stream(make: MakeParser, ids: Sequence[int], rng: random.Random, shown: str) -> ParsedResponse:
    """Fail where a chunking ends in another message than the whole, or the deltas do not add up to it."""
    whole = parse_whole(make, ids)
    for chunks in chunkings(rng, ids):
        stream = make()
        deltas = [delta for chunk in chunks for delta in stream.feed(chunk)]
        final = stream.finish()
        expect(final == whole, f"{brief(shown)} streams to {brief(final)}, parses to {brief(whole)}")
        _check_deltas([*deltas, *stream.last_deltas], final, shown)
    return whole


def parse_whole(make: MakeParser, ids: Sequence[int]) -> ParsedResponse:
    """Read ids in one chunk."""
    parser = make()
    parser.feed(ids)
    return parser.finish()


def check_usable(parsed: ParsedResponse, shown: str) -> None:
    """Fail where a parse result cannot be sent on as a message."""
    message: Any = parsed.to_message()
    expect(isinstance(message["content"], str), f"{brief(shown)} gives content {message['content']!r}")
    try:
        json.dumps(message, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except ValueError as error:
        expect(False, f"{brief(shown)} gives a message that is no JSON: {error}")
    for one in parsed.tool_calls:
        expect(bool(one.id) and bool(one.name), f"{brief(shown)} gives a call without id or name: {brief(one)}")
    ids = [one.id for one in parsed.tool_calls]
    expect(len(set(ids)) == len(ids), f"{brief(shown)} gives two calls one id: {ids}")
    for bad in parsed.invalid_tool_calls:
        expect(bool(bad.raw) and bool(bad.error), f"{brief(shown)} gives an invalid call without text or error: {bad}")


def is_kept(probe: str, parsed: ParsedResponse) -> bool:
    """Whether a text of the completion is somewhere in the result."""
    return flat(probe) in flat(
        json.dumps(
            [
                parsed.content,
                parsed.reasoning_content,
                [[one.name, one.arguments] for one in parsed.tool_calls],
                [one.raw for one in parsed.invalid_tool_calls],
            ],
            ensure_ascii=False,
        )
    )


def _check_deltas(deltas: Sequence[ParseDelta], final: ParsedResponse, shown: str) -> None:
    for kind, wanted in (("content", final.content), ("reasoning", final.reasoning_content or "")):
        text = "".join(delta.text for delta in deltas if delta.kind == kind)
        expect(text == wanted, f"{brief(shown)}: the deltas' {kind} is {text!r}, not {wanted!r}")
    for kind, calls in (("tool_call", final.tool_calls), ("invalid_tool_call", final.invalid_tool_calls)):
        streamed = [delta.call for delta in deltas if delta.kind == kind]
        expect(
            streamed == list(calls), f"{brief(shown)}: the deltas' {kind}s are {brief(streamed)}, not {brief(calls)}"
        )
