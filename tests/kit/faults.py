"""Faults seeded into the sample renderer; each names the check that must see it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kit.sample import CONTROLS, END, TOKENIZER, BrookFormat, JsonCalls, make_brook
from prl.contracts import CallView, PieceWriter, ReadCall
from prl.render import ChatRenderer, Conversation, MessageView, RendererOptions, Writer
from prl.tokenizer import Tokenizer
from prl.types import Kind, ParsedResponse, RenderedTokens, Span


@dataclass(frozen=True)
class Fault:
    """One wrong renderer: how to make it, and the check that fails."""

    name: str
    make: Callable[..., Any]
    caught_by: str

    def __str__(self) -> str:
        return self.name


FAULTS: list[Fault] = []


def in_format(caught_by: str) -> Callable[[type[BrookFormat]], type[BrookFormat]]:
    """Register a faulty format."""

    def register(cls: type[BrookFormat]) -> type[BrookFormat]:
        FAULTS.append(Fault(cls.__name__, partial(make_brook, cls), caught_by))
        return cls

    return register


def in_renderer(caught_by: str) -> Callable[[type[ChatRenderer]], type[ChatRenderer]]:
    """Register a faulty renderer."""

    def register(cls: type[ChatRenderer]) -> type[ChatRenderer]:
        FAULTS.append(Fault(cls.__name__, partial(make_brook, renderer=cls), caught_by))
        return cls

    return register


def in_codec(caught_by: str) -> Callable[[type[JsonCalls]], type[JsonCalls]]:
    """Register a faulty tool codec."""

    def register(cls: type[JsonCalls]) -> type[JsonCalls]:
        chat_format = type(cls.__name__, (BrookFormat,), {"tool_codec": cls()})
        FAULTS.append(Fault(cls.__name__, partial(make_brook, chat_format), caught_by))
        return cls

    return register


# ---------------------------------------------------------------------------------------------- text


@in_format("ids_equal_the_oracle")
class DropsALineFeed(BrookFormat):
    def close(self, out: Writer) -> None:
        out.control(END)
        out.end_sampled()


@in_format("ids_equal_the_oracle")
class StripsUsers(BrookFormat):
    def write_body(self, out: Writer, view: MessageView) -> None:
        out.content(view.text.strip())


@in_format("outer_white_space_is_read_as_it_is_rendered")
class StripsAnswers(BrookFormat):
    def write_assistant(self, out: Writer, view: MessageView, keep: bool) -> None:
        super().write_assistant(out, replace(view, content=view.text.strip()), keep)


@in_format("null_content_writes_nothing")
class WritesNone(BrookFormat):
    def write_body(self, out: Writer, view: MessageView) -> None:
        out.content(str(view.content))


@in_format("bodies_belong_to_their_messages")
class CurlsApostrophes(BrookFormat):
    def write_body(self, out: Writer, view: MessageView) -> None:
        out.content(view.text.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}"))


@in_format("nothing_is_dropped")
class DropsTools(BrookFormat):
    def write_tools(self, out: Writer, conversation: Conversation) -> None:
        if len(conversation.messages) > 1:
            super().write_tools(out, conversation)


@in_format("nothing_is_dropped")
class DropsUnknownRoles(BrookFormat):
    def check(self, conversation: Conversation) -> None:
        pass

    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        if conversation.role(position) != "narrator":
            super().write_message(out, conversation, position)


@in_format("a_bridge_refuses_what_a_render_refuses")
class ChecksRendersAlone(BrookFormat):
    def check(self, conversation: Conversation) -> None:
        if not conversation.is_bridge:
            super().check(conversation)


@in_format("all_text_of_the_last_turn_is_rendered")
class SkipsReasoningBesideCalls(BrookFormat):
    def write_assistant(self, out: Writer, view: MessageView, keep: bool) -> None:
        super().write_assistant(out, view, keep and not view.calls)


@in_renderer("ids_are_one_pass_over_the_text")
class EncodesPiecesApart(ChatRenderer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        whole = self._encoder.assemble

        def apart(pieces: Any, base: int = 0) -> tuple[list[int], list[Span]]:
            ids: list[int] = []
            spans: list[Span] = []
            for piece in pieces:
                new, more = whole([piece], base + len(ids))
                ids, spans = ids + new, spans + more
            return ids, spans

        self._encoder.assemble = apart  # type: ignore[method-assign]


@in_renderer("text_parts_are_one_text")
class TakesTheFirstPart(ChatRenderer):
    def render(self, messages: Any, **how: Any) -> RenderedTokens:
        cut = copy.deepcopy(list(messages))
        for message in cut:
            if isinstance(message, dict) and isinstance(message.get("content"), list):
                message["content"] = message["content"][:1]
        return super().render(cut, **how)


@in_renderer("both_spellings_of_reasoning_are_one")
class ReadsOneSpelling(ChatRenderer):
    def render(self, messages: Any, **how: Any) -> RenderedTokens:
        known = [
            {key: value for key, value in message.items() if key != "reasoning"}
            if isinstance(message, dict)
            else message
            for message in messages
        ]
        return super().render(known, **how)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------- calls


@in_format("null_content_beside_calls_is_empty")
class SeparatesNullFromCalls(BrookFormat):
    def write_body_of(self, view: MessageView) -> MessageView:
        return replace(view, content="\n") if view.content is None and view.calls else view

    def write_assistant(self, out: Writer, view: MessageView, keep: bool) -> None:
        super().write_assistant(out, self.write_body_of(view), keep)


@in_codec("nothing_is_dropped")
class WritesOneCall(JsonCalls):
    def write(self, out: PieceWriter, calls: Sequence[CallView], *, after_text: bool) -> None:
        super().write(out, calls[:1], after_text=after_text)


@in_codec("parse_gives_back_what_was_rendered")
class WritesTextForNumbers(JsonCalls):
    def write_call(self, out: PieceWriter, call: CallView) -> None:
        assert isinstance(call.arguments, dict)
        retyped = {key: str(value) if isinstance(value, int) else value for key, value in call.arguments.items()}
        super().write_call(out, call._replace(arguments=retyped))


@in_codec("malformed_calls_are_never_run")
class RunsMalformedCalls(JsonCalls):
    def read(self, region: str, tools: Any) -> list[ReadCall]:
        return [
            one if one.arguments is not None else ReadCall(one.raw, "get_weather", {})
            for one in super().read(region, tools)
        ]


@in_codec("a_parsed_turn_comes_back_the_same")
class RoundsNumbers(JsonCalls):
    def read(self, region: str, tools: Any) -> list[ReadCall]:
        [call] = super().read(region, tools)
        if call.arguments is None:
            return [call]
        return [call._replace(arguments={key: _rounded(value) for key, value in call.arguments.items()})]


def _rounded(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


@in_format("arguments_may_be_a_json_string")
class QuotesJsonStrings(BrookFormat):
    def write_assistant(self, out: Writer, view: MessageView, keep: bool) -> None:
        assert self.tool_codec is not None
        out.content(view.text)
        if view.calls:
            self.tool_codec.write(out, view.calls, after_text=bool(view.text))


@in_renderer("cut_completions_lose_nothing")
class LosesMalformedCalls(ChatRenderer):
    def parse_response(self, *arguments: Any, **how: Any) -> ParsedResponse:
        return replace(super().parse_response(*arguments, **how), invalid_tool_calls=())


# --------------------------------------------------------------------------------------------- masks


def respanned(rendered: RenderedTokens, change: Callable[[list[Span]], list[Span]]) -> RenderedTokens:
    """Return the render with other spans."""
    return replace(rendered, spans=change(list(rendered.spans or ())))


@in_renderer("the_generation_prompt_is_never_sampled")
class MasksOneTokenEarly(ChatRenderer):
    def render(self, *arguments: Any, **how: Any) -> RenderedTokens:
        def change(spans: list[Span]) -> list[Span]:
            for n in range(1, len(spans)):
                if spans[n].kind & Kind.SAMPLED and not spans[n - 1].kind & Kind.SAMPLED:
                    spans[n - 1] = spans[n - 1]._replace(end=spans[n - 1].end - 1)
                    spans[n] = spans[n]._replace(start=spans[n].start - 1)
            return [span for span in spans if span.end > span.start]

        return respanned(super().render(*arguments, **how), change)


@in_renderer("the_generation_prompt_is_never_sampled")
class SamplesTheOpener(ChatRenderer):
    def render(self, *arguments: Any, **how: Any) -> RenderedTokens:
        rendered = super().render(*arguments, **how)
        owned = {n for n, role in enumerate(rendered.roles) if role == "assistant"}
        return respanned(
            rendered,
            lambda spans: [s._replace(kind=s.kind | Kind.SAMPLED) if s.message in owned else s for s in spans],
        )


@in_format("a_turn_is_sampled_to_its_stop_token")
class StopsUnsampled(BrookFormat):
    def close(self, out: Writer) -> None:
        out.end_sampled()
        super().close(out)


@in_format("scaffold_after_the_stop_is_not_sampled")
class SamplesPastTheStop(BrookFormat):
    def close(self, out: Writer) -> None:
        out.control(END)
        out.text("\n")
        out.end_sampled()


@in_format("the_loss_is_on_assistant_turns")
class SamplesCallsOnly(BrookFormat):
    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        super().write_message(out, conversation, position)
        view = conversation.messages[position]
        if view.role == "assistant" and not view.calls:
            out.pieces[:] = [
                (control, text, owner, kind & ~int(Kind.SAMPLED) if owner == view.index else kind, literal)
                for control, text, owner, kind, literal in out.pieces
            ]


@in_format("spans_cover_the_ids")
class SamplesUsers(BrookFormat):
    def write_body(self, out: Writer, view: MessageView) -> None:
        out.begin_sampled()
        super().write_body(out, view)


@in_renderer("bodies_belong_to_their_messages")
class CountsTheDefaultSystemTurn(ChatRenderer):
    def render(self, *arguments: Any, **how: Any) -> RenderedTokens:
        rendered = super().render(*arguments, **how)
        if rendered.roles[0] == "system":
            return rendered
        last = len(rendered.roles) - 1
        return respanned(
            rendered,
            lambda spans: [s._replace(message=min(s.message + 1, last) if s.message >= 0 else -1) for s in spans],
        )


@in_renderer("spans_cover_the_ids")
class LeavesAGap(ChatRenderer):
    def render(self, *arguments: Any, **how: Any) -> RenderedTokens:
        return respanned(super().render(*arguments, **how), lambda spans: spans[1:])


# -------------------------------------------------------------------------------------------- tokens


@in_format("untrusted_text_makes_no_control_token")
class IgnoresTheLiteralPolicy(BrookFormat):
    def write_body(self, out: Writer, view: MessageView) -> None:
        out.text(view.text)


@in_codec("literal_holds_for_every_role")
class TrustsArguments(JsonCalls):
    def write_call(self, out: PieceWriter, call: CallView) -> None:
        from prl.render import dump_json

        out.text(dump_json({"name": call.name, "arguments": call.arguments}))


@in_format("literal_text_reads_back_as_it_was")
class EscapesMarkup(BrookFormat):
    def write_body(self, out: Writer, view: MessageView) -> None:
        text = view.text
        for token in CONTROLS:
            text = text.replace(token, token.replace("<", "&lt;"))
        out.content(text)


def ignoring(option: str) -> Callable[..., ChatRenderer]:
    """Make a renderer that drops an option."""
    return lambda **options: make_brook(**{key: value for key, value in options.items() if key != option})


FAULTS += [
    Fault("IgnoresTheErrorPolicy", ignoring("content_tokens"), "the_error_policy_refuses"),
    Fault("IgnoresRetention", ignoring("thinking_retention"), "everything_is_bridged_where_all_is_kept"),
    Fault(
        "IgnoresUnknownOptions",
        lambda tokenizer=TOKENIZER, **options: make_brook(
            tokenizer=tokenizer, **{key: options[key] for key in RendererOptions.model_fields if key in options}
        ),
        "unknown_options_are_errors",
    ),
]


@in_renderer("stop_tokens_are_control_tokens")
class StopsOnALineFeed(ChatRenderer):
    def get_stop_token_ids(self) -> list[int]:
        return [*super().get_stop_token_ids(), 10]


@in_renderer("stop_tokens_are_control_tokens")
class HandsOutItsList(ChatRenderer):
    def get_stop_token_ids(self) -> list[int]:
        return self._stop_ids


class Lenient(ChatRenderer):
    """Takes a tokenizer that lacks control tokens."""

    def __init__(self, name: str, tokenizer: Tokenizer, chat_format: Any, control_tokens: Sequence[str]) -> None:
        whole = all(tokenizer.token_id(token) is not None for token in control_tokens)
        super().__init__(name, tokenizer if whole else TOKENIZER, chat_format, control_tokens)


FAULTS.append(Fault("TakesAnyTokenizer", partial(make_brook, renderer=Lenient), "a_missing_control_token_is_an_error"))
