"""Rollouts of an external teacher: what is sent to a stranger's server, and what our model learns of its answers."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from prl.contracts import ChatSession, ClientMode
from prl.trajectory import interleave_rollout
from prl.types import EngineError, MalformedResponseError, Message, RenderError, Rollout, SamplingParams, ToolSpec
from prl_train.teacher import TeacherRolloutsSection
from prl_train.teacher.filter import TeacherFilter

HI: Message = {"role": "user", "content": "Find it."}
MORE: Message = {"role": "user", "content": "And now?"}
RESULT: Message = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
STUDENTS = SamplingParams(max_tokens=7, temperature=0.3, top_k=5, stop_token_ids=(9,))
TOOLS: list[ToolSpec] = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]


def rollout_of(*turns: Any, **fields: Any) -> Rollout:
    return Rollout(trajectory_id="t", turns=turns, reward=1.0, **fields)


async def test_only_what_every_server_knows_is_sent(teacher: Any, stranger: Any, answers: Any) -> None:
    """No ids, no salt, none of the student's sampling: a stranger's server refuses fields that it does not know."""
    stranger.answers = [answers.said("ok")]
    mode = teacher(sampling={"max_tokens": 50, "temperature": 0.6}, extra_body={"reasoning_effort": "low"})
    session = mode.session(model="student", tools=TOOLS, cache_salt="weights-3", seed=5)
    await session.turn([HI], STUDENTS)
    [body] = stranger.bodies
    assert body == {
        "model": "big",
        "messages": [{"role": "user", "content": "Find it."}],
        "tools": TOOLS,
        "max_tokens": 50,
        "temperature": 0.6,
        "reasoning_effort": "low",
    }
    assert isinstance(mode, ClientMode)
    assert isinstance(session, ChatSession)


async def test_what_was_said_becomes_the_students_tokens_without_log_probabilities(
    teacher: Any, stranger: Any, answers: Any, tokenizer: Any
) -> None:
    stranger.answers = [answers.said("It is 42.", reasoning_content="Easy.")]
    turn = await teacher().session(model="m").turn([HI], STUDENTS)
    assert tokenizer.decode(turn.prompt_ids) == "<|im_start|>user\nFind it.<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(turn.completion_ids) == "<think>\nEasy.\n</think>\n\nIt is 42.<|im_end|>"
    assert turn.logprobs is None
    assert turn.finish_reason == "stop"
    [sample] = interleave_rollout(rollout_of(turn)).samples
    assert sample.completion_logprobs is None
    assert sample.completion_mask == [True] * len(turn.completion_ids)


async def test_a_teachers_rollout_crosses_to_another_process(teacher: Any, stranger: Any, answers: Any) -> None:
    from prl_train.executor.codec import decode_rollout, encode_rollout

    stranger.answers = [answers.called("find", q="x")]
    turn = await teacher().session(model="m", tools=TOOLS).turn([HI], STUDENTS)
    rollout = rollout_of(turn)
    assert decode_rollout(encode_rollout(rollout)) == rollout


async def test_reasoning_can_be_left_out_of_what_is_learned(
    teacher: Any, stranger: Any, answers: Any, tokenizer: Any, render: Any
) -> None:
    stranger.answers = [answers.said("It is 42.", reasoning="Easy.")]
    mode = teacher(render(enable_thinking=False), keep_reasoning=False)
    turn = await mode.session(model="m").turn([HI], STUDENTS)
    assert tokenizer.decode(turn.completion_ids) == "It is 42.<|im_end|>"
    assert turn.message["reasoning_content"] == "Easy.", "the environment and the log still see it"


async def test_a_tool_loop_is_one_sample_whose_mask_is_the_renderers(
    teacher: Any, stranger: Any, answers: Any, render: Any, tokenizer: Any
) -> None:
    stranger.answers = [answers.called("find", q="x"), answers.said("It is 42.")]
    session = teacher().session(model="m", tools=TOOLS)
    first = await session.turn([HI], STUDENTS)
    assert first.parsed is not None
    assert [(call.name, call.arguments) for call in first.parsed.tool_calls] == [("find", {"q": "x"})]
    second = await session.turn([RESULT], STUDENTS)
    assert second.prompt_ids[: len(first.prompt_ids) + len(first.completion_ids)] == [
        *first.prompt_ids,
        *first.completion_ids,
    ]
    result = interleave_rollout(rollout_of(first, second))
    [sample] = result.samples
    trained = [token for token, flag in zip(sample.completion_ids, sample.completion_mask, strict=True) if flag]
    assert trained == [*first.completion_ids, *second.completion_ids]
    assert sample.completion_logprobs is None
    sent = stranger.bodies[1]["messages"]
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"q": "x"}', "as the teacher wrote it"
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]


async def test_a_template_that_rewrites_history_starts_a_sample_for_each_turn(
    teacher: Any, stranger: Any, answers: Any, tokenizer: Any, render: Any
) -> None:
    """Qwen3 drops earlier reasoning at a new question: the student must see each turn as it will be asked."""
    stranger.answers = [answers.said("One.", reasoning_content="first thoughts"), answers.said("Two.")]
    session = teacher().session(model="m")
    turns = [await session.turn([message], STUDENTS) for message in (HI, MORE)]
    result = interleave_rollout(rollout_of(*turns), decode=tokenizer.decode)
    assert [len(group) for group in result.turns] == [1, 1]
    assert [str(found.cause) for found in result.breaks] == ["thinking_stripped"]
    assert "first thoughts" in tokenizer.decode(result.samples[0].completion_ids)
    assert "first thoughts" not in tokenizer.decode(result.samples[1].prompt_ids)
    kept = teacher(render(thinking_retention="all")).session(model="m")
    stranger.answers = [answers.said("One.", reasoning_content="first thoughts"), answers.said("Two.")]
    turns = [await kept.turn([message], STUDENTS) for message in (HI, MORE)]
    assert len(interleave_rollout(rollout_of(*turns)).samples) == 1


async def test_reasoning_goes_back_to_the_teacher_only_where_its_server_takes_it(
    teacher: Any, stranger: Any, answers: Any
) -> None:
    stranger.answers = [answers.said("One.", reasoning_content="hm"), answers.said("Two.")]
    session = teacher().session(model="m")
    await session.turn([HI], STUDENTS)
    await session.turn([MORE], STUDENTS)
    assert stranger.bodies[1]["messages"][1] == {"role": "assistant", "content": "One."}
    stranger.answers = [answers.said("One.", reasoning_content="hm")]
    session = teacher(return_reasoning=True).session(model="m")
    await session.turn([HI], STUDENTS)
    with pytest.raises(EngineError, match="unknown field reasoning_content"):
        await session.turn([MORE], STUDENTS)


async def test_a_cut_answer_is_not_learned_to_its_stop_token(
    teacher: Any, stranger: Any, answers: Any, render: Any, tokenizer: Any
) -> None:
    stranger.answers = [answers.said("It is", finish="length")]
    turn = await teacher(render(enable_thinking=False)).session(model="m").turn([HI], STUDENTS)
    assert turn.finish_reason == "length"
    assert tokenizer.decode(turn.completion_ids) == "It is"


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        ({"choices": []}, MalformedResponseError, "0 came"),
        ({"no": 1}, MalformedResponseError, "choices"),
        ("refused", EngineError, "content_filter"),
        ("silent", MalformedResponseError, "said nothing"),
        ("legacy", MalformedResponseError, "replaced by tool_calls"),
        ("typed", MalformedResponseError, "not a chat completion"),
    ],
)
async def test_an_answer_that_is_none_is_an_error_and_the_session_can_go_on(
    teacher: Any, stranger: Any, answers: Any, answer: Any, kind: type[Exception], message: str
) -> None:
    made = {
        "refused": answers.said("no", finish="content_filter"),
        "silent": answers.said(""),
        "legacy": answers.said("Let me see.", function_call={"name": "find", "arguments": "{}"}),
        "typed": answers.said("Let me see.", tool_calls=["find"]),
    }
    stranger.answers = [made.get(answer, answer) if isinstance(answer, str) else answer, answers.said("ok")]
    session = teacher().session(model="m")
    with pytest.raises(kind, match=message):
        await session.turn([HI], STUDENTS)
    assert session.messages == []
    await session.turn([HI], STUDENTS)
    assert [one["role"] for one in session.messages] == ["user", "assistant"]


async def test_what_the_students_format_cannot_write_is_an_error_of_the_rollout(
    teacher: Any, stranger: Any, answers: Any
) -> None:
    stranger.answers = [answers.said("ok")]
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    picture: Message = {"role": "user", "content": [part]}
    with pytest.raises(RenderError):
        await teacher().session(model="m").turn([picture], STUDENTS)


async def test_a_try_that_failed_is_repeated_under_the_same_key(teacher: Any, stranger: Any, answers: Any) -> None:
    """A provider that knows the key bills one answer, however often the connection breaks."""
    stranger.answers = [429, answers.said("ok"), answers.said("again")]
    session = teacher().session(model="m")
    await session.turn([HI], STUDENTS)
    await session.turn([MORE], STUDENTS)
    keys = [headers["Idempotency-Key"] for headers in stranger.headers]
    assert keys[0] == keys[1] != keys[2]


async def test_the_api_key_is_sent_and_told_nowhere_else(
    teacher: Any, stranger: Any, answers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    stranger.answers = [500]
    mode = teacher(retries=0)
    with pytest.raises(EngineError) as caught:
        await mode.session(model="m").turn([HI], STUDENTS)
    assert stranger.headers[0]["Authorization"] == f"Bearer {answers.key}"
    told = f"{caught.value}{caught.value!r}{caplog.text}{mode.section.model_dump_json()}"
    assert answers.key not in told


def test_rollouts_that_are_not_worth_imitating_are_dropped_with_their_reason() -> None:
    section = TeacherRolloutsSection(base_url="http://h/v1", model="m", min_reward=0.5)
    turn: Any = object()
    good = rollout_of(turn)
    poor, cut, empty = replace(good, reward=0.4), replace(good, is_truncated=True), replace(good, turns=())
    assert TeacherFilter(section).judge([good, poor, cut, empty]) == [None, "reward", "truncated", "empty"]
    every = section.model_copy(update={"min_reward": None, "keep_truncated": True})
    assert TeacherFilter(every).judge([good, poor, cut]) == [None, None, None]
