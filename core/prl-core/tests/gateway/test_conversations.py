"""What an agent sends back is recognised, and what the model said is never rendered again."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from prl.gateway.export import rollout_record
from prl.types import BreakCause, RenderedTokens, RenderError

from .conftest import Served
from .small import ASK, TOKENIZER, WEATHER, small_renderer

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather?"}]


def breaks(served: Served) -> list[str]:
    """The causes of the only session's breaks."""
    record = rollout_record(served.session, model="small", renderer="small", decode=TOKENIZER.decode)
    assert record["samples_per_rollout"] == len(record["breaks"]) + 1
    return [one["cause"] for one in record["breaks"]]


def extends_all(served: Served) -> bool:
    """Whether each prompt begins with all that was sent and sampled before it."""
    turns = served.session.turns
    return all(
        later.prompt_ids[: len(earlier.prompt_ids) + len(earlier.completion_ids)]
        == [*earlier.prompt_ids, *earlier.completion_ids]
        for earlier, later in pairwise(turns)
    )


async def test_a_tool_loop_is_one_sample(served: Served) -> None:
    """The whole promise: three turns of an append-only agent, no break, each prompt the last one's exact extension."""
    served.engine.lines = [f"<think>\nlook it up\n</think>\n{ASK}", f"again {ASK}", "Rain."]
    messages: list[dict[str, Any]] = list(ASKED)
    for _ in range(2):
        answer = await served.chat(messages, tools=[WEATHER])
        [call] = answer.message["tool_calls"]
        assert answer.body["choices"][0]["finish_reason"] == "tool_calls"
        assert json.loads(call["function"]["arguments"]) == {"city": "Bern", "days": 2}
        messages += [answer.message, {"role": "tool", "tool_call_id": call["id"], "content": "rain"}]
    answer = await served.chat(messages, tools=[WEATHER])
    assert answer.message == {"role": "assistant", "content": "Rain."}
    assert answer.body["choices"][0]["finish_reason"] == "stop"
    assert breaks(served) == []
    assert extends_all(served)
    assert [message["role"] for message in served.session.messages] == [
        *("system", "user", "assistant", "tool", "assistant", "tool", "assistant")
    ]


async def test_what_the_model_wrote_is_never_written_anew(served: Served) -> None:
    """The model's own spelling of a call: rendering it again would normalise it, and train what nobody sampled."""
    odd = '<call>{"name":"weather",   "arguments":{"days":2.0,"city":"Bern"}}</call>'
    served.engine.lines = [f"{odd} ", "ok"]
    first = (await served.chat(ASKED, tools=[WEATHER])).message
    reply = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "rain"}
    await served.chat([*ASKED, first, reply], tools=[WEATHER])
    assert f"{odd} </s>" in served.engine.prompt()
    assert breaks(served) == []


async def test_a_recorded_turn_is_what_the_engine_saw_and_sampled(served: Served) -> None:
    """Ids, log-probabilities, version and temperature are the engine's own."""
    served.engine.lines = ["\n\nHi.\n"]
    await served.chat(ASKED, temperature=0.5)
    [turn] = served.session.turns
    [request] = served.engine.requests
    assert turn.prompt_ids == request.prompt_token_ids
    assert turn.completion_ids == TOKENIZER.encode("\n\nHi.\n</s>")
    assert turn.logprobs is not None
    assert len(turn.logprobs) == len(turn.completion_ids)
    assert (turn.weight_version, turn.temperature, turn.finish_reason) == (3, 0.5, "stop")


def sdk_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as `message.model_dump()` of an SDK writes it."""
    nulls = {"refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": None}
    return {**nulls, **message}


def without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != "reasoning_content"}


def other_spacing(message: dict[str, Any]) -> dict[str, Any]:
    copy = json.loads(json.dumps(message))
    function = copy["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(json.loads(function["arguments"]), indent=2, sort_keys=True)
    return dict(copy)


def mapped_arguments(message: dict[str, Any]) -> dict[str, Any]:
    copy = json.loads(json.dumps(message))
    function = copy["tool_calls"][0]["function"]
    function["arguments"] = json.loads(function["arguments"])
    return dict(copy)


def empty_content(message: dict[str, Any]) -> dict[str, Any]:
    assert message["content"] is None
    return {**message, "content": ""}


def parts(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"] or ""}]}


def escaped(message: dict[str, Any]) -> dict[str, Any]:
    copy = json.loads(json.dumps(message))
    function = copy["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(json.loads(function["arguments"]), ensure_ascii=True)
    return dict(copy)


def numbers_of_javascript(message: dict[str, Any]) -> dict[str, Any]:
    copy = json.loads(json.dumps(message))
    function = copy["tool_calls"][0]["function"]
    assert function["arguments"].count("2.0") == 1
    function["arguments"] = function["arguments"].replace("2.0", "2").replace("9007199254740993", "9007199254740992")
    return dict(copy)


def named(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "name": "helper"}


def spaced_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "reasoning_content": message["reasoning_content"] + "\n"}


def other_field(message: dict[str, Any]) -> dict[str, Any]:
    return {**without_reasoning(message), "reasoning": message["reasoning_content"]}


@pytest.mark.parametrize(
    "change",
    [
        sdk_message,
        without_reasoning,
        other_spacing,
        mapped_arguments,
        empty_content,
        parts,
        escaped,
        numbers_of_javascript,
        named,
        spaced_reasoning,
        other_field,
    ],
)
async def test_trifles_are_no_change_of_history(served: Served, change: Any) -> None:
    """Each of these came from a real SDK or agent; taking it for a rewrite would break every rollout of that agent."""
    ask = '<call>{"name": "weather", "arguments": {"city": "Zürich", "days": 2.0, "id": 9007199254740993}}</call>'
    served.engine.lines = [f"<think>\nhm\n</think>\n{ask}", "done"]
    first = (await served.chat(ASKED, tools=[WEATHER])).message
    call = first["tool_calls"][0]["id"]
    reply = {"role": "tool", "tool_call_id": call, "content": [{"type": "text", "text": "rain"}]}
    await served.chat([*ASKED, change(first), reply], tools=[WEATHER])
    assert breaks(served) == []
    assert extends_all(served)


@pytest.mark.parametrize(
    "change",
    [
        {"content": "Something else"},
        {"tool_calls": [{"id": "mine", "type": "function", "function": {"name": "weather", "arguments": "{}"}}]},
        {"reasoning_content": "other thoughts"},
    ],
    ids=["content", "calls", "reasoning"],
)
async def test_a_changed_answer_is_a_rewritten_history(served: Served, change: dict[str, Any]) -> None:
    """An agent that edits what the model said must not get the model's own ids put in its mouth."""
    served.engine.lines = [f"<think>\nhm\n</think>\n{ASK}", "done"]
    first = (await served.chat(ASKED, key="client-key:one", tools=[WEATHER])).message
    reply = {"role": "tool", "tool_call_id": "mine", "content": "rain"}
    await served.chat([*ASKED, {**first, **change}, reply], key="client-key:one", tools=[WEATHER])
    assert len(breaks(served)) == 1
    assert str(next(iter(change.values()))) in served.engine.prompt() or "tool_calls" in change


async def test_white_space_around_what_the_model_said_is_a_trifle(served: Served) -> None:
    """Agents strip what they keep; inside the text it is the model's own."""
    served.engine.lines = [" Well,  yes. \n", "one", "two"]
    first = (await served.chat(ASKED)).message
    more = {"role": "user", "content": "So?"}
    await served.chat([*ASKED, {**first, "content": first["content"].strip()}, more])
    assert extends_all(served)
    assert "Well,  yes. \n</s>" in served.engine.prompt()
    await served.chat([*ASKED, {**first, "content": "Well, yes."}, more])
    assert [len(session.turns) for session in served.sessions()] == [2, 1]


@pytest.mark.parametrize("change", [{"city": "Basel"}, {"days": 2.5}, {"days": True}, {"days": "2"}])
async def test_other_arguments_are_a_rewritten_history(served: Served, change: dict[str, Any]) -> None:
    """An agent that repairs a call changes what the model said, however little."""
    served.engine.lines = [ASK, "done"]
    first = (await served.chat(ASKED, key="client-key:one", tools=[WEATHER])).message
    [call] = first["tool_calls"]
    call["function"]["arguments"] = json.dumps({"city": "Bern", "days": 2, **change})
    reply = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
    await served.chat([*ASKED, first, reply], key="client-key:one", tools=[WEATHER])
    assert len(breaks(served)) == 1


async def test_results_of_parallel_calls_in_any_order(served: Served) -> None:
    """Agents send results as they finish: the model's calls stay as sampled, the results as sent."""
    served.engine.lines = [f"{ASK}{ASK}", "done"]
    first = (await served.chat(ASKED, tools=[WEATHER])).message
    ids = [call["id"] for call in first["tool_calls"]]
    assert len(set(ids)) == 2
    replies = [{"role": "tool", "tool_call_id": name, "content": f"of {name}"} for name in reversed(ids)]
    await served.chat([*ASKED, first, *replies], tools=[WEATHER])
    assert breaks(served) == []
    prompt = served.engine.prompt()
    assert prompt.index(f"of {ids[1]}") < prompt.index(f"of {ids[0]}")


async def test_an_assistant_message_at_the_end_is_answered(served: Served) -> None:
    """A prefill, or an answer sent back as it was: a further turn is sampled behind it, and nothing is lost."""
    served.engine.lines = ["one", "two"]
    first = (await served.chat(ASKED)).message
    await served.chat([*ASKED, first])
    assert served.engine.prompt().endswith("one</s>\n<s>assistant\n")
    assert len(served.session.turns) == 2


async def test_an_agent_goes_on_after_the_gateway_was_restarted(serve: Any) -> None:
    """What was said before is rendered, as of a stranger; from then on ids are exact again."""
    first = await serve()
    first.engine.lines = ["before"]
    messages = [*ASKED, (await first.chat(ASKED)).message, {"role": "user", "content": "And?"}]
    second = await serve()
    second.engine.lines = ["after", "later"]
    messages += [(await second.chat(messages)).message, {"role": "user", "content": "And?"}]
    await second.chat(messages)
    assert "before</s>" in second.engine.prompt()
    assert breaks(second) == []


async def test_developers_speak_as_the_system_where_the_family_knows_none(serve: Any) -> None:
    """OpenAI's name for the system's instructions: a family that lacks it would refuse, or drop, them."""
    renderer = small_renderer()
    instructed = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    own: Served = await serve(renderer)
    await own.chat(instructed)
    assert own.engine.prompt().startswith("<s>developer\nBe brief.</s>")

    def refuse(conversation: Any) -> None:
        for view in conversation.messages:
            if view.role == "developer":
                raise RenderError("role 'developer' is not known")

    renderer = small_renderer()
    renderer.format.check = refuse  # type: ignore[method-assign]
    other: Served = await serve(renderer)
    other.engine.lines = ["ok", "ok"]
    more = [*instructed, (await other.chat(instructed)).message, {"role": "developer", "content": "Briefer."}]
    await other.chat(more)
    assert other.engine.prompt().startswith("<s>system\nBe brief.</s>")
    assert other.engine.prompt().count("<s>system\n") == 2
    assert breaks(other) == []


async def test_a_rewritten_user_message_breaks_with_its_cause(served: Served) -> None:
    """The history that was changed is named as such, at the token where it begins to differ."""
    served.engine.lines = ["One.", "Two.", "Three."]
    messages = [*ASKED, (await served.chat(ASKED)).message, {"role": "user", "content": "And then?"}]
    messages += [(await served.chat(messages)).message, {"role": "user", "content": "Go on."}]
    messages[3] = {"role": "user", "content": "But why?"}
    await served.chat(messages)
    assert breaks(served) == [BreakCause.HISTORY_REWRITTEN]
    assert served.engine.prompt().count("But why?") == 1


async def test_compaction_is_told_apart(served: Served) -> None:
    """An agent that replaces its history by a summary pays with a second sample, and is told why."""
    served.engine.lines = ["A long answer.", "Short."]
    name = {"X-PRL-Session": "one"}
    messages = [*ASKED, (await served.chat(ASKED, headers=name)).message, {"role": "user", "content": "Go on." * 9}]
    await served.chat(messages, headers=name)
    await served.chat([ASKED[0], {"role": "user", "content": "Summary: it rains."}], headers=name)
    assert breaks(served) == [BreakCause.COMPACTION]


async def test_reasoning_that_the_template_drops_is_a_break(served: Served) -> None:
    """A new question makes this template drop earlier reasoning: the prompt is what the template means, no splice."""
    served.engine.lines = ["<think>\nsecret\n</think>\nSun.", "ok"]
    first = (await served.chat(ASKED)).message
    assert first == {"role": "assistant", "content": "Sun.", "reasoning_content": "secret"}
    await served.chat([*ASKED, first, {"role": "user", "content": "Sure?"}])
    assert breaks(served) == [BreakCause.THINKING_STRIPPED]
    assert "secret" not in served.engine.prompt()


async def test_a_truncated_turn_is_closed_once_and_extended(served: Served) -> None:
    served.engine.lines = ["I was going to...", "ok"]
    answer = await served.chat(ASKED)
    assert answer.body["choices"][0]["finish_reason"] == "length"
    await served.chat([*ASKED, answer.message, {"role": "user", "content": "Go on."}])
    assert breaks(served) == []
    assert served.engine.prompt().endswith("I was going to</s>\n<s>user\nGo on.</s>\n<s>assistant\n")


async def test_a_call_before_the_cut_is_a_call_and_the_turn_is_cut(served: Served) -> None:
    """An agent that sees "tool_calls" there would not know that the turn hit its limit."""
    served.engine.lines = [f"{ASK} and then..."]
    answer = await served.chat(ASKED, tools=[WEATHER])
    assert len(answer.message["tool_calls"]) == 1
    assert answer.body["choices"][0]["finish_reason"] == "length"


async def test_a_bridge_that_changes_what_was_sampled_is_caught(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renderer's fault: neither sampled from, nor recorded, nor the agent's to mend."""
    said = (await served.chat(ASKED)).message
    wrong = RenderedTokens([5, 6], None)
    monkeypatch.setattr(served.gateway._sampler.renderer, "bridge_to_next_turn", lambda *args, **kwargs: wrong)
    answer = await served.chat([*ASKED, said, {"role": "user", "content": "Go on."}])
    assert (answer.status, answer.error["code"]) == (502, "engine_error")
    assert "does not begin with" in answer.error["message"]
    assert (len(served.engine.requests), len(served.session.turns)) == (1, 1)


async def test_other_tools_are_rendered_anew(served: Served) -> None:
    """The prompt shows the tools; ids that show others would be a lie."""
    served.engine.lines = [ASK, "ok"]
    first = (await served.chat(ASKED, tools=[WEATHER])).message
    other = {"type": "function", "function": {"name": "search"}}
    reply = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "rain"}
    await served.chat([*ASKED, first, reply], tools=[WEATHER, other])
    assert "search" in served.engine.prompt()
    assert len(breaks(served)) == 1


async def test_reasoning_that_the_agent_left_out_is_rendered_where_the_template_keeps_it(served: Served) -> None:
    """Also where the prompt has to be rendered anew: the model did think so, in the turn it is still in."""
    served.engine.lines = [f"<think>\nlook it up\n</think>\n{ASK}", "ok"]
    first = without_reasoning((await served.chat(ASKED, tools=[WEATHER])).message)
    reply = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "rain"}
    await served.chat([*ASKED, first, reply], tools=[WEATHER, WEATHER])
    assert "look it up" in served.engine.prompt()


async def test_several_agents_take_turns_in_one_session(served: Served) -> None:
    """A main agent and a helper under one name: two samples, and each goes on from its own ids."""
    name = {"X-PRL-Session": "pair"}
    served.engine.lines = ["m1", "h1", "m2", "h2"]
    talks: dict[str, list[dict[str, Any]]] = {who: [{"role": "user", "content": who}] for who in ("main", "helper")}
    for _ in range(2):
        for talk in talks.values():
            answer = await served.chat(talk, headers=name)
            talk += [answer.message, {"role": "user", "content": "next"}]
    assert len(served.session.turns) == 4
    assert len(breaks(served)) == 1  # the helper's beginning
    assert [message["content"] for message in talks["helper"]] == ["helper", "h1", "next", "h2", "next"]


async def test_every_choice_is_a_branch_that_can_be_gone_on_from(served: Served) -> None:
    served.engine.lines = ["left", "right", "l2", "r2"]
    answer = await served.chat(ASKED, n=2)
    messages = [choice["message"] for choice in answer.body["choices"]]
    assert [message["content"] for message in messages] == ["left", "right"]
    for message in reversed(messages):
        await served.chat([*ASKED, message, {"role": "user", "content": "go on"}])
    turns = served.session.turns
    assert [turn.message["content"] for turn in turns] == ["left", "right", "l2", "r2"]
    for branch, later in ((1, 2), (0, 3)):
        before = [*turns[branch].prompt_ids, *turns[branch].completion_ids]
        assert turns[later].prompt_ids[: len(before)] == before
    assert [turns[later].prompt_ids.shares(turns[0].prompt_ids) for later in (2, 3)] == [True, False]
    assert answer.body["usage"]["completion_tokens"] == len(turns[0].completion_ids) + len(turns[1].completion_ids)


async def test_of_answers_that_differ_in_trifles_the_letter_decides(served: Served) -> None:
    """Branches whose answers differ in white space, or in reasoning alone: each goes on from its own ids."""
    lines = ["Yes.", " Yes.\n", "<think>\na\n</think>\nNo", "<think>\nb\n</think>\nNo"]
    served.engine.lines = [*lines, "1", "2", "3", "4"]
    answer = await served.chat(ASKED, n=4)
    messages = [choice["message"] for choice in answer.body["choices"]]
    for message in reversed(messages):
        await served.chat([*ASKED, message, {"role": "tool", "tool_call_id": "x", "content": "go on"}])
    prompts = [served.engine.prompt(number) for number in (-1, -2, -3, -4)]
    assert [f"assistant\n{line}</s>" in prompt for line, prompt in zip(lines, prompts, strict=True)] == [True] * 4


async def test_equal_answers_go_on_apart(served: Served) -> None:
    """Two rollouts of one task under one key that got the same answer stay two rollouts."""
    served.engine.lines = ["same", "same", "a", "b"]
    firsts = [(await served.chat(ASKED)).message for _ in range(2)]
    for first in firsts:
        await served.chat([*ASKED, first, {"role": "user", "content": "go on"}])
    assert [len(session.turns) for session in served.sessions()] == [2, 2]


async def test_without_calls_a_call_is_text(served: Served) -> None:
    """`tool_choice` "none" gives no calls; the model's ids stay, and the conversation goes on from them."""
    served.engine.lines = [f"Let me look. {ASK}", "ok"]
    answer = await served.chat(ASKED, tools=[WEATHER], tool_choice="none")
    assert answer.message == {"role": "assistant", "content": f"Let me look. {ASK}"}
    assert answer.body["choices"][0]["finish_reason"] == "stop"
    more = [*ASKED, answer.message, {"role": "user", "content": "Go on."}]
    await served.chat(more, tools=[WEATHER], tool_choice="auto")
    assert breaks(served) == []


async def test_a_call_that_nests_deeply_is_gone_on_from(served: Served) -> None:
    """The policy wrote it, so no agent can send it flatter: the rollout would end in a refusal of its own turn."""
    call = ASK.replace('"Bern"', "[" * 500 + "2.0" + "]" * 500)
    served.engine.lines = [call, "ok"]
    said = (await served.chat(ASKED, tools=[WEATHER])).message
    [made] = said["tool_calls"]
    made["function"]["arguments"] = made["function"]["arguments"].replace("2.0", "2")
    reply = {"role": "tool", "tool_call_id": made["id"], "content": "sun"}
    await served.chat([*ASKED, said, reply], tools=[WEATHER])
    assert (breaks(served), len(served.session.turns)) == ([], 2)


async def test_a_malformed_call_is_text_and_no_call(served: Served) -> None:
    served.engine.lines = ['<call>{"name": "weather", "arg', "ok"]
    answer = await served.chat(ASKED, tools=[WEATHER])
    assert "tool_calls" not in answer.message
    assert '{"name": "weather", "arg' in answer.message["content"]
    await served.chat([*ASKED, answer.message, {"role": "user", "content": "That was no JSON."}], tools=[WEATHER])
    assert breaks(served) == []


async def test_an_assistant_message_of_the_agents_own_is_rendered(served: Served) -> None:
    """Few-shot examples are no turns of ours; what follows them is sampled on their rendering."""
    shots = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2"},
    ]
    served.engine.lines = ["4", "8"]
    first = (await served.chat(shots)).message
    await served.chat([*shots, first, {"role": "user", "content": "3"}])
    assert breaks(served) == []
    assert len(served.session.turns) == 2
