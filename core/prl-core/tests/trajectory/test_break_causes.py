"""The recorded cause of a break must point at the real fault: people fix what it names."""

from __future__ import annotations

from typing import Any

import pytest

from prl.trajectory import interleave_rollout
from prl.types import BreakCause, InvalidToolCall, ParsedResponse, ParsedToolCall, Rollout, Turn


class Words:
    """A toy vocabulary: the test says where the tokens end, the ids follow."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def ids(self, *texts: str) -> list[int]:
        for text in texts:
            if text not in self.texts:
                self.texts.append(text)
        return [self.texts.index(text) for text in texts]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.texts[index] for index in ids)


PROMPT = ("<user>", "turn on the lamp", "<end>", "<bot>")
NEXT = ("<user>", "go on", "<end>", "<bot>")


def cause(
    completion: tuple[str, ...],
    rewritten: tuple[str, ...],
    *,
    parsed: ParsedResponse | None = None,
    finish_reason: str = "stop",
    prompt: tuple[str, ...] = PROMPT,
    new_prompt: tuple[str, ...] = PROMPT,
    with_decode: bool = True,
    after: tuple[str, ...] = NEXT,
) -> BreakCause:
    """Return the cause for a second turn whose prompt repeats the first completion as `rewritten`."""
    words = Words()
    fields: dict[str, Any] = {"weight_version": 0, "message": {"role": "assistant", "content": ""}}
    answer = words.ids(*completion)
    first = Turn(
        prompt_ids=words.ids(*prompt),
        completion_ids=answer,
        logprobs=[-1.0] * len(answer),
        finish_reason=finish_reason,
        parsed=parsed,
        **fields,
    )
    last = words.ids("ok")
    second = Turn(
        prompt_ids=words.ids(*new_prompt, *rewritten, *after),
        completion_ids=last,
        logprobs=[-1.0],
        finish_reason="stop",
        **fields,
    )
    result = interleave_rollout(
        Rollout(trajectory_id="t", turns=(first, second), reward=0.0), decode=words.decode if with_decode else None
    )
    assert len(result.samples) == 2
    (found,) = result.breaks
    assert found.turn == 1
    return found.cause


CALL = ParsedResponse("", tool_calls=(ParsedToolCall("c", "lamp", {"on": True}, span=(0, 5)),))


@pytest.mark.parametrize(
    ("sampled", "rendered"),
    [("true", "True"), ("True", "true"), ("null", "None"), ('"false"', "false"), ("none", "null")],
)
def test_a_literal_that_changed_its_spelling_is_a_boolean_round_trip(sampled: str, rendered: str) -> None:
    """Also inside a tool call, where the more general cause would hide it."""
    call = ("<tool_call>", '{"on": ', sampled, "}", "</tool_call>")
    again = ("<tool_call>", '{"on": ', rendered, "}", "</tool_call>")
    assert cause(call, again, parsed=CALL) == BreakCause.BOOLEAN_ROUND_TRIP


def test_the_same_text_in_other_tokens_is_bpe_drift() -> None:
    assert cause(("hel", "lo", "<end>"), ("hello", "<end>")) == BreakCause.BPE_DRIFT


def test_bpe_drift_is_found_although_the_text_changes_later() -> None:
    """The first difference decides: the later one is its own fault."""
    assert cause(("hel", "lo", " a", "<end>"), ("hell", "o", " b", "<end>")) == BreakCause.BPE_DRIFT


def test_another_spacing_inside_a_call_is_tool_markup_drift() -> None:
    call = ("<tool_call>", '{"level":', "20", "}", "</tool_call>", "<end>")
    again = ("<tool_call>", '{"level": ', "20", "}", "</tool_call>", "<end>")
    assert cause(call, again, parsed=CALL) == BreakCause.TOOL_MARKUP_DRIFT


def test_tool_markup_drift_is_seen_without_a_parse_result() -> None:
    call = ("<tool_call>", '{"level":', "20", "}", "</tool_call>", "<end>")
    again = ("<tool_call>", '{"level": ', "20", "}", "</tool_call>", "<end>")
    assert cause(call, again) == BreakCause.TOOL_MARKUP_DRIFT


def test_a_malformed_call_that_was_written_anew_is_tool_markup_drift() -> None:
    broken = ParsedResponse("", invalid_tool_calls=(InvalidToolCall("[lamp", "no end", span=(0, 2)),))
    assert cause(("[", "lamp", "<end>"), ("[]", "<end>"), parsed=broken) == BreakCause.TOOL_MARKUP_DRIFT


def test_lost_reasoning_before_a_kept_answer_is_thinking_stripped() -> None:
    parsed = ParsedResponse("The Danube.", reasoning_content="Vienna lies on it.")
    sampled = ("<think>", "\nVienna lies on it.\n", "</think>", "\n\n", "The Danube.", "<end>")
    assert cause(sampled, ("The Danube.", "<end>"), parsed=parsed) == BreakCause.THINKING_STRIPPED


def test_lost_reasoning_before_a_kept_call_is_thinking_stripped_not_tool_markup_drift() -> None:
    parsed = ParsedResponse(
        "", reasoning_content="Use the lamp.", tool_calls=(ParsedToolCall("c", "lamp", {}, span=(3, 6)),)
    )
    sampled = ("<think>", "Use the lamp.", "</think>", "<tool_call>", "lamp", "</tool_call>", "<end>")
    again = ("<tool_call>", "lamp", "</tool_call>", "<end>")
    assert cause(sampled, again, parsed=parsed) == BreakCause.THINKING_STRIPPED


def test_a_lost_empty_think_block_is_thinking_stripped() -> None:
    """Templates put an empty block before an answer without reasoning, and drop it from history."""
    opener = ("<user>", "hi", "<end>", "<bot>", "<think>", "\n\n", "</think>")
    assert (
        cause(("Hello.", "<end>"), ("Hello.", "<end>"), prompt=opener, new_prompt=opener[:4])
        == BreakCause.THINKING_STRIPPED
    )


@pytest.mark.parametrize("with_decode", [True, False])
def test_a_difference_in_a_cut_off_completion_is_truncation(with_decode: bool) -> None:
    sampled, again = ("<tool_call>", '{"lev'), ('&lt;tool_call&gt;{"lev', "<end>")
    assert cause(sampled, again, finish_reason="length", with_decode=with_decode) == BreakCause.TRUNCATION


def test_a_shorter_prompt_in_place_of_the_history_is_compaction() -> None:
    parsed = ParsedResponse("a long answer")
    summary = ("<sys>", "summary: lamp is on", "<end>")
    long = ("<sys>", "be kind", "<end>", *PROMPT)
    found = cause(
        ("a long answer", *["." for _ in range(9)], "<end>"), (), parsed=parsed, prompt=long, new_prompt=summary
    )
    assert found == BreakCause.COMPACTION


@pytest.mark.parametrize("with_decode", [True, False])
def test_an_edited_user_message_is_history_rewritten(with_decode: bool) -> None:
    edited = ("<user>", "turn OFF the lamp", "<end>", "<bot>")
    found = cause(("done", "<end>"), ("done", "<end>"), new_prompt=edited, with_decode=with_decode)
    assert found == BreakCause.HISTORY_REWRITTEN


def test_a_prompt_that_stops_earlier_is_history_rewritten() -> None:
    assert cause(("done", "<end>"), (), after=()) == BreakCause.HISTORY_REWRITTEN


def test_lost_white_space_at_the_end_of_an_answer_is_other() -> None:
    assert cause(("done", " \n", "<end>"), ("done", "<end>")) == BreakCause.OTHER


def test_without_a_decoder_a_changed_answer_is_other_rather_than_a_guess() -> None:
    assert cause(("done", "<end>"), ("finished", "<end>"), with_decode=False) == BreakCause.OTHER
