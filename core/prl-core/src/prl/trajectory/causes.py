"""Tell why a turn's prompt was not an extension of an earlier sample.

A cause is a reading of the first difference, made for people who look for the fault; it is evidence, not proof. Each
rule looks at one thing only, and the first that fits wins, from the most to the least specific.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from prl.types import BreakCause, ParsedToolCall, Turn

Decode = Callable[[list[int]], str]

_RESYNC_WINDOW = 48
"""How many tokens after the first difference two spellings of one text may take to end on a common border."""
_WORD = re.compile(r"[\"']?(\w+)[\"']?")
_LITERALS = {"true": "true", "false": "false", "null": "null", "none": "null"}
_THINK_TAG = re.compile(r"<[^<>]*(?:think|reason)[^<>]*>|<\|channel\|>analysis", re.IGNORECASE)
_TOOL_TAG = re.compile(r"<[^<>]*(?:tool|function|invoke|parameter|arg_)[^<>]*>", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """Where a turn's completion lies in its sample: tokens `start <= i < end`."""

    start: int
    end: int
    turn: Turn


@dataclass(frozen=True)
class Divergence:
    """The closest earlier sample, the prompt that does not extend it, and the first differing token."""

    old_ids: Sequence[int]
    new_ids: Sequence[int]
    position: int
    turns: Sequence[TurnSpan] = ()

    @cached_property
    def is_rollback(self) -> bool:
        """Whether the new prompt is a proper prefix of the sample: the history was cut, not changed."""
        return self.position == len(self.new_ids)

    @cached_property
    def affected(self) -> TurnSpan | None:
        """The first turn whose completion ends after the difference."""
        return next((span for span in self.turns if span.end > self.position), None)

    @cached_property
    def is_sampled(self) -> bool:
        """Whether the first differing token of the sample was sampled by the model."""
        return any(span.start <= self.position < span.end for span in self.turns)


@dataclass(frozen=True)
class _Texts:
    """Both sides as text; `at` is the first differing character."""

    old: str
    new: str

    @cached_property
    def at(self) -> int:
        return common_prefix(self.old, self.new)


def common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    """Return how many leading entries, or characters, are equal."""
    low, high = 0, min(len(left), len(right))
    while low < high:  # slices compare in C: a binary search beats a loop over long prompts
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def classify_break(divergence: Divergence, decode: Decode | None = None) -> BreakCause:
    """Return the most specific cause that fits; without `decode` only what ids and parse results show."""
    if divergence.is_rollback:
        return BreakCause.HISTORY_REWRITTEN
    if decode is None:
        return _classify_ids(divergence)
    if _is_bpe_drift(divergence, decode):
        return BreakCause.BPE_DRIFT
    texts = _Texts(decode(list(divergence.old_ids)), decode(list(divergence.new_ids)))
    return _classify_texts(divergence, texts)


def _classify_texts(divergence: Divergence, texts: _Texts) -> BreakCause:
    if _is_boolean_round_trip(texts):
        return BreakCause.BOOLEAN_ROUND_TRIP
    if _in_truncated_turn(divergence):
        return BreakCause.TRUNCATION
    if _is_thinking_stripped(divergence, texts):
        return BreakCause.THINKING_STRIPPED
    if _in_tool_call(divergence) or _in_tool_markup(divergence, texts):
        return BreakCause.TOOL_MARKUP_DRIFT
    if _is_compaction(divergence, texts):
        return BreakCause.COMPACTION
    if _differs_in_white_space_only(texts):
        return BreakCause.OTHER
    return BreakCause.HISTORY_REWRITTEN


def _classify_ids(divergence: Divergence) -> BreakCause:
    if _in_truncated_turn(divergence):
        return BreakCause.TRUNCATION
    if _in_tool_call(divergence):
        return BreakCause.TOOL_MARKUP_DRIFT
    if not divergence.is_sampled and len(divergence.new_ids) >= len(divergence.old_ids):
        return BreakCause.HISTORY_REWRITTEN
    return BreakCause.OTHER


def _is_bpe_drift(divergence: Divergence, decode: Decode) -> bool:
    """Whether both sides spell the same text with other tokens, up to a border that both share."""
    start = divergence.position
    old_ends = _text_ends(divergence.old_ids[start : start + _RESYNC_WINDOW], decode)
    new_ends = _text_ends(divergence.new_ids[start : start + _RESYNC_WINDOW], decode)
    return bool(old_ends & new_ends)


def _text_ends(ids: Sequence[int], decode: Decode) -> set[str]:
    """Return the texts of all non-empty leading parts that end on a whole character."""
    texts = (decode(list(ids[:count])) for count in range(1, len(ids) + 1))
    return {text for text in texts if text and not text.endswith("�")}


def _is_boolean_round_trip(texts: _Texts) -> bool:
    """Whether a literal changed its spelling: `true` and `True`, `null` and `None`, `"true"` and `true`."""
    old, new = (_word_at(text, texts.at) for text in (texts.old, texts.new))
    if old is None or new is None or old.group(0) == new.group(0):
        return False
    spelled = [_LITERALS.get(word.group(1).lower()) for word in (old, new)]
    return spelled[0] is not None and spelled[0] == spelled[1]


def _word_at(text: str, at: int) -> re.Match[str] | None:
    start = at
    while start > 0 and (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    if start > 0 and text[start - 1] in "\"'":
        start -= 1
    return _WORD.match(text, start)


def _in_truncated_turn(divergence: Divergence) -> bool:
    """Whether the difference lies in, or right at the end of, a completion that hit its length limit."""
    return any(
        span.turn.finish_reason == "length" and span.start <= divergence.position <= span.end
        for span in divergence.turns
    )


def _is_thinking_stripped(divergence: Divergence, texts: _Texts) -> bool:
    """Whether reasoning went missing while what the turn said after it is still there."""
    rest_old, rest_new = texts.old[texts.at :], texts.new[texts.at :]
    span = divergence.affected
    parsed = span.turn.parsed if span else None
    reasoning = (parsed.reasoning_content or "").strip() if parsed else ""
    if parsed is not None and reasoning:
        kept = parsed.content.strip() or (parsed.tool_calls[0].name if parsed.tool_calls else "")
        return reasoning not in texts.new and (not kept or kept in rest_new)
    tag = _tag_over(texts.old, texts.at, _THINK_TAG)
    return (
        tag is not None and tag in rest_old + texts.old[max(texts.at - len(tag), 0) :] and not _starts_tag(texts, tag)
    )


def _starts_tag(texts: _Texts, tag: str) -> bool:
    """Whether the new text has the same tag at the place of the difference."""
    start = texts.old.rfind(tag, 0, texts.at + len(tag))
    return texts.new.startswith(tag, start)


def _tag_over(text: str, at: int, pattern: re.Pattern[str]) -> str | None:
    """Return the tag that covers position `at`, or starts right there after white space."""
    line_start = max(text.rfind("<", 0, at + 1), 0)
    for start in (line_start, at):
        match = pattern.match(text, start)
        if match and match.end() > at:
            return match.group(0)
    skipped = len(text) - len(text[at:].lstrip())
    match = pattern.match(text, skipped)
    return match.group(0) if match else None


def _in_tool_call(divergence: Divergence) -> bool:
    """Whether the difference lies in a call that the parser found, malformed ones included."""
    span = divergence.affected
    if span is None or span.turn.parsed is None:
        return False
    offset = divergence.position - span.start
    parsed = span.turn.parsed
    spans = [call.span for call in parsed.tool_calls] + [call.span for call in parsed.invalid_tool_calls]
    return any(start <= offset < end for start, end in spans)


def _in_tool_markup(divergence: Divergence, texts: _Texts) -> bool:
    """Whether the differing token stands in a sampled turn inside tool tags that are still open, or is such a tag."""
    if not divergence.is_sampled:
        return False
    if any(_tag_over(text, texts.at, _TOOL_TAG) for text in (texts.old, texts.new)):
        return True
    tags = [match.group(0) for match in _TOOL_TAG.finditer(texts.old, 0, texts.at)]
    depth = 0
    for tag in tags:
        depth = max(depth + (-1 if tag.startswith("</") else 1), 0)
    return depth > 0


def _is_compaction(divergence: Divergence, texts: _Texts) -> bool:
    """Whether a shorter text replaced the history: the prompt shrank, and no answer after the difference is left."""
    if len(divergence.new_ids) >= len(divergence.old_ids):
        return False
    later = [span for span in divergence.turns if span.end > divergence.position]
    rest = texts.new[texts.at :]
    answers = [_said(span.turn) for span in later]
    return bool(later) and not any(answer and answer in rest for answer in answers)


def _said(turn: Turn) -> str:
    """Return what the turn said, as the text that a re-render would repeat."""
    if turn.parsed is None:
        content = turn.message.get("content")
        return content.strip() if isinstance(content, str) else ""
    calls: tuple[ParsedToolCall, ...] = turn.parsed.tool_calls
    return turn.parsed.content.strip() or (calls[0].name if calls else "")


def _differs_in_white_space_only(texts: _Texts) -> bool:
    """Whether the new prompt would extend the sample if white space did not count."""
    old, new = ("".join(text[texts.at :].split()) for text in (texts.old, texts.new))
    return new.startswith(old)
