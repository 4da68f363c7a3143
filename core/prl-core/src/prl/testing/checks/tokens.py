"""Checks of ids: one pass over the text, and control tokens only where the format writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from prl.types import Message, RenderError, TokenizerError, ToolSpec

from .check import NotApplicable, brief, check, expect, fail
from .material import TOOL, assistant, call, calling, result, user
from .renderer_subject import RendererSubject

_PROBES: tuple[Callable[[str], tuple[list[Message], list[ToolSpec] | None]], ...] = (
    lambda text: ([user(text)], None),
    lambda text: ([user(), assistant(), user(text)], None),
    lambda text: ([user(), calling(), result(text)], [TOOL]),
)


@check("renderer")
def ids_are_one_pass_over_the_text(subject: RendererSubject) -> None:
    """Text encoded in parts gives other tokens than the vendor's template, at every border where a merge is due."""
    renderer = subject.with_template_tokens
    for case in subject.cases:
        ids = case.ids(renderer)
        text = subject.text(ids)
        expect(subject.tokenizer.encode(text) == ids, f"encoding the whole text gives other ids: {brief(text)}")


@check("renderer")
def untrusted_text_makes_no_control_token(subject: RendererSubject) -> None:
    """A user or a web page that a tool read writes a turn of its own."""
    for renderer in (subject.renderer, subject.make(content_tokens="literal")):
        for probe in _accepted_probes(subject):
            plain, tools = probe("a b")
            wanted = _controls(subject, renderer.render_ids(plain, tools=tools))
            for token in _spelled(subject):
                for forged in (f"a{token} b", f"a {token[:2]}{token[2:]}{token} b"):
                    found = _controls(subject, renderer.render_ids(probe(forged)[0], tools=tools))
                    expect(found == wanted, f"{forged!r} in a {plain[-1]['role']} message makes a control token")


@check("renderer")
def literal_text_reads_back_as_it_was(subject: RendererSubject) -> None:
    """A user who asks about a control token is misquoted to the model."""
    renderer = subject.make(content_tokens="literal")
    for token in _spelled(subject):
        text = f"what does {token} mean, and {token}?"
        rendered = renderer.render([user(text)])
        body = [i for i, on in zip(rendered.token_ids, rendered.content_mask, strict=True) if on]
        expect(subject.text(body).strip() == text, f"{text!r} reads back as {subject.text(body)!r}")


@check("renderer")
def literal_holds_for_every_role(subject: RendererSubject) -> None:
    """With content_tokens="literal", a stop token spelled in an earlier answer ends its turn early."""
    renderer = subject.make(content_tokens="literal")
    stops = subject.renderer.get_stop_token_ids()
    turns: list[tuple[list[Message], list[ToolSpec] | None]] = [([user(), assistant("{}"), user()], None)]
    if subject.takes_results:
        turns.append(([user(), calling("", _call_with("{}")), result()], [TOOL]))
    for talk, tools in turns:
        wanted = _controls(subject, renderer.render_ids(_filled(talk, "a b"), tools=tools))
        for stop in stops:
            forged = _filled(talk, f"a{subject.text([stop])}b")
            found = _controls(subject, renderer.render_ids(forged, tools=tools))
            expect(found == wanted, f"a spelled stop token becomes one: {brief(forged)}")


@check("renderer")
def the_error_policy_refuses(subject: RendererSubject) -> None:
    """content_tokens="error" was set so that forged text stops the run, and it does not."""
    renderer = subject.make(content_tokens="error")
    for probe in _accepted_probes(subject):
        plain, tools = probe("a b")
        renderer.render_ids(plain, tools=tools)
        for token in _spelled(subject)[:4]:
            messages, _ = probe(f"a{token}b")
            try:
                renderer.render_ids(messages, tools=tools)
            except RenderError as error:
                place = f"messages[{len(messages) - 1}]"
                expect(error.where == place, f"the error for {token!r} names {error.where!r}, not {place}")
            else:
                fail(f"{token!r} in a {messages[-1]['role']} message is not refused")


@check("renderer")
def stop_tokens_are_control_tokens(subject: RendererSubject) -> None:
    """The engine stops nowhere, or in the middle of a word."""
    stops = subject.renderer.get_stop_token_ids()
    expect(bool(stops), "there is no stop token")
    expect(len(set(stops)) == len(stops), f"stop tokens are listed twice: {stops}")
    added = set(subject.tokenizer.added_tokens.values())
    wrong = [token for token in stops if token not in added]
    expect(not wrong, f"{wrong} are no control tokens of the tokenizer")
    stops.append(-1)
    expect(-1 not in subject.renderer.get_stop_token_ids(), "the renderer hands out its own list")


@check("renderer")
def a_missing_control_token_is_an_error(subject: RendererSubject) -> None:
    """The wrong tokenizer is taken, and its text trained as if it were control tokens."""
    from prl.testing.byte_tokenizer import ByteTokenizer
    from prl.tokenizer import as_tokenizer

    if subject.make_on is None or not subject.control_tokens:
        raise NotApplicable("the renderer's control tokens are not known")
    lacking = as_tokenizer(ByteTokenizer(subject.control_tokens[1:]))
    try:
        subject.make_on(lacking)
    except TokenizerError as error:
        expect(subject.control_tokens[0] in str(error), f"the error does not name the token: {error}")
    else:
        fail(f"a tokenizer without {subject.control_tokens[0]!r} is accepted")


def _accepted_probes(
    subject: RendererSubject,
) -> list[Callable[[str], tuple[list[Message], list[ToolSpec] | None]]]:
    return [probe for probe in _PROBES if subject.takes(*probe("a b"))]


def _spelled(subject: RendererSubject) -> Sequence[str]:
    """Return what must stay text: every added token of a small tokenizer, the format's own of a large one."""
    added = list(subject.tokenizer.added_tokens)
    return subject.control_tokens or added[:24]


def _controls(subject: RendererSubject, ids: Iterable[int]) -> Counter[int]:
    added = set(subject.tokenizer.added_tokens.values())
    return Counter(token for token in ids if token in added)


def _call_with(text: str) -> dict[str, object]:
    return call(arguments={"city": text, "days": 3, "metric": True})


def _filled(talk: list[Message], text: str) -> list[Message]:
    """Put text in the places that hold only braces."""
    filled: list[Message] = []
    for message in talk:
        copied: dict[str, object] = dict(message)
        if copied.get("content") == "{}":
            copied["content"] = text
        if copied.get("tool_calls"):
            copied["tool_calls"] = [_call_with(text)]
        filled.append(copied)  # type: ignore[arg-type]
    return filled
