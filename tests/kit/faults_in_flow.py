"""More faults seeded into the sample renderer: in its inputs and state, in parsing, and in the bridge."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kit.faults import in_format, in_renderer, respanned
from kit.sample import TOKENIZER, BrookFormat
from prl.contracts import StreamParser
from prl.render import ChatRenderer, Conversation, Writer
from prl.types import Kind, ParsedResponse, RenderedTokens, Span

# ----------------------------------------------------------------------------------- inputs and state


@in_renderer("the_callers_input_is_not_changed")
class ChangesTheInput(ChatRenderer):
    def render(self, messages: Any, **how: Any) -> RenderedTokens:
        rendered = super().render(messages, **how)
        for message in messages:
            message.setdefault("name", None)
        return rendered


@in_renderer("bad_messages_are_named")
class RaisesKeyErrors(ChatRenderer):
    def render(self, messages: Any, **how: Any) -> RenderedTokens:
        for message in messages:
            message["role"]
        return super().render(messages, **how)


@in_renderer("an_empty_conversation_is_an_error")
class RendersNothing(ChatRenderer):
    def render(self, messages: Any, **how: Any) -> RenderedTokens:
        return super().render(messages, **how) if messages else RenderedTokens([], [], ())


@in_renderer("render_ids_are_the_ids_of_render")
class RendersIdsDifferently(ChatRenderer):
    def render_ids(self, *arguments: Any, **how: Any) -> list[int]:
        return [*super().render_ids(*arguments, **how), 10]


@in_format("same_input_gives_the_same_ids")
class ShufflesTools(BrookFormat):
    def write_tools(self, out: Writer, conversation: Conversation) -> None:
        tools = list(conversation.tools or ())
        random.shuffle(tools)
        conversation.tools = tools
        super().write_tools(out, conversation)


@in_renderer("threads_give_the_same_ids")
class KeepsAConversation(ChatRenderer):
    current: Any = None

    def render(self, messages: Any, **how: Any) -> RenderedTokens:
        self.current = messages
        time.sleep(0.0002)
        return super().render(self.current, **how)


@in_format("completed_turns_stay_prefixes_where_promised")
class PromisesTooMuch(BrookFormat):
    is_prefix_stable = True


# ------------------------------------------------------------------------------------------- parsing


class DropsBlankChunks:
    """A stream that passes over chunks of white space."""

    def __init__(self, inner: StreamParser) -> None:
        self.inner = inner

    def feed(self, ids: Sequence[int]) -> Any:
        return self.inner.feed(ids) if TOKENIZER.decode(list(ids)).strip() else []

    def finish(self) -> ParsedResponse:
        return self.inner.finish()

    @property
    def last_deltas(self) -> Any:
        return self.inner.last_deltas


@in_renderer("a_stream_ends_in_the_same_message")
class StreamsDifferently(ChatRenderer):
    def stream_parser(self, **how: Any) -> Any:
        return DropsBlankChunks(super().stream_parser(**how))

    def parse_response(self, ids: Any, **how: Any) -> ParsedResponse:
        parser = super().stream_parser(**how)
        parser.feed(ids)
        return parser.finish()


@in_renderer("any_ids_can_be_parsed")
class RaisesOnUnknownIds(ChatRenderer):
    def parse_response(self, ids: Any, **how: Any) -> ParsedResponse:
        assert all(self.tokenizer.token_bytes[token] for token in ids)
        return super().parse_response(ids, **how)


@in_renderer("nothing_counts_after_the_stop_token")
class ReadsPastTheStop(ChatRenderer):
    def parse_response(self, ids: Any, **how: Any) -> ParsedResponse:
        return super().parse_response([token for token in ids if token not in self._stop_ids], **how)


@in_renderer("a_call_drafted_in_reasoning_is_not_run")
class RunsDrafts(ChatRenderer):
    def parse_response(self, ids: Any, **how: Any) -> ParsedResponse:
        """End reasoning where a call opens, whatever follows."""
        opening, close = TOKENIZER.encode("<call></think>")
        is_draft = opening in ids and close in ids[ids.index(opening) :]
        return super().parse_response([token for token in ids if token != close] if is_draft else ids, **how)


@in_renderer("cut_reasoning_is_reported")
class CallsCutReasoningWhole(ChatRenderer):
    def parse_response(self, *arguments: Any, **how: Any) -> ParsedResponse:
        return replace(super().parse_response(*arguments, **how), reasoning_complete=True)


@in_renderer("parse_gives_back_what_was_rendered")
class GrowsReasoning(ChatRenderer):
    def parse_response(self, *arguments: Any, **how: Any) -> ParsedResponse:
        parsed = super().parse_response(*arguments, **how)
        return replace(parsed, reasoning_content=parsed.reasoning_content and parsed.reasoning_content + "\n")


# -------------------------------------------------------------------------------------------- bridge


@in_renderer("a_bridge_extends_the_exact_ids")
class RendersAgain(ChatRenderer):
    def bridge_to_next_turn(
        self, prompt: Any, completion: Any, new: Any, *, tools: Any = None, history: Any = None
    ) -> Any:
        if super().bridge_to_next_turn(prompt, completion, new, tools=tools, history=history) is None:
            return None
        whole = self.render([*history, *new], tools=tools, add_generation_prompt=True) if history else None
        if whole is None:
            return None
        start = len(history)
        spans = [s._replace(message=max(-1, s.message - start), kind=s.kind & ~Kind.SAMPLED) for s in whole.spans or ()]
        return RenderedTokens(whole.token_ids, spans, tuple(message["role"] for message in new))


class Rebridging(ChatRenderer):
    """Changes what a right bridge adds: `tail` are the ids after prompt and completion."""

    def tail(self, tail: list[int], completion: Sequence[int], stop: int) -> list[int]:
        return tail

    def bridge_to_next_turn(self, prompt: Any, completion: Any, new: Any, **how: Any) -> Any:
        bridged = super().bridge_to_next_turn(prompt, completion, new, **how)
        if bridged is None:
            return None
        end = len(prompt) + len(completion)
        tail = self.tail(bridged.token_ids[end:], completion, self.get_stop_token_ids()[0])
        ids = [*prompt, *completion, *tail]
        grown = len(ids) - len(bridged.token_ids)
        spans = [
            span
            if span.end <= end
            else span._replace(start=max(end, span.start + grown), end=max(end, span.end + grown))
            for span in bridged.spans or ()
        ]
        if grown > 0:
            spans.append(Span(end, end + grown, -1, Kind.SCAFFOLD))
        return replace(bridged, token_ids=ids, spans=sorted(span for span in spans if span.end > span.start))


@in_renderer("a_bridge_equals_the_full_render")
class ClosesTwice(Rebridging):
    def tail(self, tail: list[int], completion: Sequence[int], stop: int) -> list[int]:
        return tail if tail[0] == stop else [stop, *tail]


@in_renderer("a_cut_turn_is_closed_once")
class NeverCloses(Rebridging):
    def tail(self, tail: list[int], completion: Sequence[int], stop: int) -> list[int]:
        return tail[1:] if tail[0] == stop else tail


@in_renderer("cut_reasoning_is_closed_once")
class LeavesReasoningOpen(Rebridging):
    def tail(self, tail: list[int], completion: Sequence[int], stop: int) -> list[int]:
        [close] = TOKENIZER.encode("</think>")
        return tail[tail.index(stop) :] if close in tail and close not in completion else tail


@in_renderer("a_bridge_extends_the_exact_ids")
class TrainsTheClose(ChatRenderer):
    def bridge_to_next_turn(self, prompt: Any, completion: Any, new: Any, **how: Any) -> Any:
        bridged = super().bridge_to_next_turn(prompt, completion, new, **how)
        end = len(prompt) + len(completion)
        return bridged and respanned(
            bridged, lambda spans: [s._replace(kind=Kind.SAMPLED) if s.start == end else s for s in spans]
        )


@in_renderer("a_bridge_extends_the_exact_ids")
class BridgesListsOnly(ChatRenderer):
    def bridge_to_next_turn(self, prompt: Any, *arguments: Any, **how: Any) -> Any:
        return super().bridge_to_next_turn(prompt, *arguments, **how) if isinstance(prompt, list) else None


@in_renderer("a_bridge_refuses_assistant_messages")
class BridgesAssistants(ChatRenderer):
    def bridge_to_next_turn(self, prompt: Any, completion: Any, new: Any, **how: Any) -> Any:
        return super().bridge_to_next_turn(
            prompt, completion, [{**one, "role": "user"} for one in new] or [{"role": "user"}], **how
        )


@in_format("a_bridge_equals_the_full_render")
class BridgesOverDroppedReasoning(BrookFormat):
    def rewrites_history(self, *_: Any) -> bool:
        return False


@in_renderer("an_empty_completion_is_handled")
class ReadsTheLastToken(ChatRenderer):
    def parse_response(self, ids: Any, **how: Any) -> ParsedResponse:
        _ = ids[-1]
        return super().parse_response(ids, **how)


@in_renderer("history_only_informs_a_bridge")
class WritesAnotherPromptWithHistory(ChatRenderer):
    def bridge_to_next_turn(self, *arguments: Any, history: Any = None, **how: Any) -> Any:
        bridged = super().bridge_to_next_turn(*arguments, history=history, **how)
        if bridged is None or history is not None:
            return bridged
        end = len(bridged.token_ids)
        spans = [*(bridged.spans or ()), Span(end, end + 1, -1, Kind.SCAFFOLD)]
        return replace(bridged, token_ids=[*bridged.token_ids, 10], spans=spans)


@in_renderer("a_bridge_extends_the_exact_ids")
class CountsFromTheBeginning(ChatRenderer):
    def bridge_to_next_turn(self, *arguments: Any, **how: Any) -> Any:
        bridged = super().bridge_to_next_turn(*arguments, **how)
        return bridged and respanned(
            bridged, lambda spans: [s._replace(message=0) if s.kind & Kind.SAMPLED else s for s in spans]
        )
