"""A view as one HTML page: no script, nothing fetched, every text escaped, every colour also told in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby

from .diff import Difference, DiffView
from .tokens import RolloutView, SampleView, TokenView

_SURPRISES = (-0.1, -1.0, -3.0)
"""Log-probabilities below which a sampled token counts as a little, rather, and very surprising."""
_TOLD_BELOW = -3.0
_MARKS = {"\n": "↵\n", "\t": "→\t", " ": "·", "\r": "␍"}
_ROLES = ("system", "developer", "user", "assistant", "tool")


def page_head(title: str) -> str:
    """Return the page up to its first rollout."""
    style = files("prl.view").joinpath("style.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<header><span class="mark">prl</span><h1>{escape(title)}</h1></header>
<main>
{_LEGEND}
"""


PAGE_END = "</main>\n</body>\n</html>\n"

_LEGEND = """<p class="legend">
<span class="t s l">sampled, in the loss: underlined</span>
<span class="t s">sampled, not in the loss: dashed</span>
<span class="t c">content of a message: upright</span>
<span class="t">scaffold of the template: slanted</span>
<span class="t u">not known: dotted</span>
<span class="t s l q1">a little</span><span class="t s l q2">rather</span>
<span class="t s l q3">very surprising<sub>-4.2</sub></span>
with its log-probability below -3. Each token tells its id, owner, masks and log-probability when pointed at.
</p>"""


def rollout_html(view: RolloutView) -> Iterator[str]:
    """Yield a rollout's section in pieces."""
    yield f'<section class="rollout">\n<h2>{escape(view.name)} <small>{escape(view.where)}</small></h2>\n'
    if view.facts:
        facts = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in view.facts)
        yield f"<dl>{facts}</dl>\n"
    if view.breaks:
        yield '<ul class="breaks">' + "".join(f"<li>break {escape(one)}</li>" for one in view.breaks) + "</ul>\n"
    for number, sample in enumerate(view.samples):
        yield f"<h3>sample {number}: {_counts(sample)}</h3>\n"
        yield from _blocks(view, sample)
    yield "</section>\n"


def _counts(sample: SampleView) -> str:
    turns = ", ".join(str(one.turn) for one in sample.turns)
    shown = [f"{len(sample.tokens)} tokens"]
    for flag, told in (("sampled", "sampled"), ("content", "content"), ("loss", "in the loss")):
        count = sample.count(flag)
        shown.append(f"{'?' if count is None else count} {told}")
    return ", ".join(shown) + (f"; turns {turns}" if turns else "")


def _blocks(view: RolloutView, sample: SampleView) -> Iterator[str]:
    """Yield one block per stretch of one owner."""
    for owner, group in groupby(sample.tokens, lambda token: token.owner):
        told = view.owner(owner)
        role = told.partition(":")[2]
        kind = role if role in _ROLES else "other"
        tokens = "".join(_token(view, token) for token in group)
        yield f'<div class="block {kind}"><em>{escape(told)}</em><div class="tokens">{tokens}</div></div>\n'


def _token(view: RolloutView, token: TokenView) -> str:
    low = token.logprob is not None and token.logprob < _TOLD_BELOW
    below = f"<sub>{token.logprob:.1f}</sub>" if low else ""
    classes = " ".join(_classes(token))
    return f'<span class="{classes}" title="{escape(told_token(view, token))}">{_text(token.text)}{below}</span>'


def _classes(token: TokenView) -> Iterator[str]:
    yield "t"
    if token.sampled:
        yield "s"
    if token.loss:
        yield "l"
    if token.content:
        yield "c"
    if token.content is None and not token.sampled:
        yield "u"
    if token.logprob is not None:
        level = sum(token.logprob < limit for limit in _SURPRISES)
        if level:
            yield f"q{level}"


def told_token(view: RolloutView, token: TokenView) -> str:
    """Return all that is known of a token, in words."""
    parts = [f"token {token.position}", f"id {token.token_id}", f"owner {view.owner(token.owner)}"]
    for flag, yes, no in (
        (token.sampled, "sampled", "not sampled"),
        (token.content, "content", "scaffold"),
        (token.loss, "in the loss", "not in the loss"),
    ):
        parts.append(f"{yes}: not known" if flag is None else yes if flag else no)
    if token.logprob is not None:
        parts.append(f"log-probability {token.logprob:.4f}")
    return ", ".join(parts)


def _text(text: str) -> str:
    """Return a token's text with white space to be seen."""
    if not text:
        return '<span class="w">∅</span>'
    return "".join(f'<span class="w">{_MARKS[char]}</span>' if char in _MARKS else escape(char) for char in text)


def diff_html(view: DiffView) -> Iterator[str]:
    """Yield a comparison's section."""
    yield f'<section class="rollout">\n<h2>{escape(view.name)} <small>{escape(view.where)}</small></h2>\n'
    if not view.differences:
        yield f"<p>equal: {view.render_tokens} tokens</p>\n</section>\n"
        return
    yield f"<p>{len(view.differences)} differences, the first at token {view.differences[0].at_render}</p>\n<table>\n"
    yield f"<tr><th>token</th><th>after</th><th>renderer {escape(view.renderer)}</th><th>chat template</th></tr>\n"
    for one in view.differences:
        yield _diff_row(one)
    yield "</table>\n</section>\n"


def _diff_row(one: Difference) -> str:
    cells = [escape(f"{one.at_render} / {one.at_template}"), *map(_cell, (one.before, one.render, one.template))]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n"


def _cell(tokens: Sequence[tuple[int, str]]) -> str:
    return "".join(f'<span class="t c" title="id {token}">{_text(text)}</span>' for token, text in tokens) or "nothing"
