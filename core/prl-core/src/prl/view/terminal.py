"""A view as lines of text: plain words first, colour only on top of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from .diff import DiffView
from .tokens import RolloutView, SampleView, TokenView, mask_letters, segments

Line = list[tuple[str, str]]
"""Texts with their styles (names of `rich`); the texts alone are the plain line."""

LEGEND = "Masks: S sampled by the model, C a message's own content, L in the loss; . not, ? not known."
_SURPRISES = ((-0.1, "green"), (-1.0, "yellow"), (-3.0, "magenta"))


def rollout_lines(view: RolloutView, *, by_token: bool = False) -> Iterator[Line]:
    """Yield a rollout: facts, breaks, then each sample by stretches of one owner, or token by token."""
    yield [(f"{view.name}", "bold"), (f"  ({view.where})", "dim")]
    if view.facts:
        yield [("  " + " · ".join(f"{key} {visible(value)}" for key, value in view.facts), "")]
    for one in view.breaks:
        yield [("  break ", "bold red"), (one, "")]
    for number, sample in enumerate(view.samples):
        yield [(f"sample {number}: {_counts(sample)}", "bold")]
        yield from _token_lines(view, sample) if by_token else _segment_lines(view, sample)
    if not view.samples:
        yield [("  nothing to show", "dim")]


def _counts(sample: SampleView) -> str:
    parts = [f"{len(sample.tokens)} tokens"]
    for flag, told in (("sampled", "sampled"), ("content", "content"), ("loss", "in the loss")):
        count = sample.count(flag)
        parts.append(f"{'?' if count is None else count} {told}")
    turns = ", ".join(str(one.turn) for one in sample.turns)
    return ", ".join(parts) + (f"; turns {turns}" if turns else "")


def _segment_lines(view: RolloutView, sample: SampleView) -> Iterator[Line]:
    for tokens in segments(sample.tokens):
        first, last = tokens[0], tokens[-1]
        place = f"{first.position}-{last.position + 1}"
        head = f"  {place:>11}  {view.owner(first.owner):<12} {mask_letters(first)}  {_logprobs(tokens):<12}  "
        yield [(head, "dim"), *[(visible(text), style) for text, style in _joined(tokens)]]


def _joined(tokens: Sequence[TokenView]) -> Iterator[tuple[str, str]]:
    for token in tokens:
        yield token.text, _style(token)


def _token_lines(view: RolloutView, sample: SampleView) -> Iterator[Line]:
    for token in sample.tokens:
        value = "" if token.logprob is None else f"{token.logprob:.3f}"
        head = f"  {token.position:>6}  {token.token_id:>7}  {view.owner(token.owner):<12} {mask_letters(token)}  "
        yield [(f"{head}{value:>8}  ", "dim"), (visible(token.text), _style(token))]


def _logprobs(tokens: Sequence[TokenView]) -> str:
    """Return mean and lowest log-probability of a stretch, empty where none is known."""
    values = [token.logprob for token in tokens if token.logprob is not None]
    return f"{sum(values) / len(values):.2f}/{min(values):.2f}" if values else ""


def _style(token: TokenView) -> str:
    """Return a colour: dim scaffold, plain content, sampled tokens by surprise."""
    if token.sampled:
        if token.logprob is None:
            return "green"
        return next((style for limit, style in _SURPRISES if token.logprob > limit), "bold red")
    return "" if token.content else "dim"


def diff_lines(view: DiffView) -> Iterator[Line]:
    """Yield a comparison: equal, or every differing stretch with the tokens of both sides."""
    yield [(view.name, "bold"), (f"  ({view.where})", "dim")]
    if not view.differences:
        yield [(f"  equal: {view.render_tokens} tokens", "green")]
        return
    count = len(view.differences)
    first = view.differences[0]
    yield [
        (f"  {count} difference{'' if count == 1 else 's'}, the first at token {first.at_render}", "red"),
        (f"; renderer {view.renderer} {view.render_tokens} tokens, template {view.template_tokens}", ""),
    ]
    for one in view.differences:
        yield [(f"  after {_tokens(one.before)}", "dim")]
        yield [(f"    renderer at {one.at_render}: ", ""), (_tokens(one.render), "green")]
        yield [(f"    template at {one.at_template}: ", ""), (_tokens(one.template), "yellow")]


def _tokens(shown: Sequence[tuple[int, str]]) -> str:
    return " ".join(f"{token}:{json.dumps(text, ensure_ascii=False)}" for token, text in shown) or "(nothing)"


def visible(text: str) -> str:
    """Return a text in one line, with line feeds and control characters as escapes."""
    escaped = json.dumps(text, ensure_ascii=False)[1:-1].replace('\\"', '"')
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in escaped)


def plain(line: Line) -> str:
    """Return a line without colour."""
    return "".join(text for text, _ in line).rstrip()
