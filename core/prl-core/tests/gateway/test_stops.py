"""Stop strings: the turn ends where the client asked, and exactly what was sampled up to there is recorded."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer

from prl.gateway.export import rollout_record
from prl.gateway.stops import cut_at_stop
from prl.types import GenerateChoice

from .conftest import Served
from .small import ASK, TOKENIZER, WEATHER

ASKED = [{"role": "user", "content": "Where is it?"}]
STEP = "Thought: look\nAction: search\nObservation: it is in Bern\nThought: done"


async def test_a_react_agent_is_one_sample(served: Served) -> None:
    """The loop of every ReAct agent: the model's invented observation is cut off, the real one follows."""
    served.engine.lines = [STEP, "Final Answer: Bern"]
    answer = await served.chat(ASKED, stop=["\nObservation:", "\nObservation"])
    assert answer.message["content"] == "Thought: look\nAction: search"
    assert answer.body["choices"][0]["finish_reason"] == "stop"
    [turn] = served.session.turns
    assert TOKENIZER.decode(turn.completion_ids) == "Thought: look\nAction: search\nObservation"
    assert turn.logprobs == [-0.25 - n / 1024 for n in range(len(turn.completion_ids))]
    assert turn.finish_reason == "stop"
    assert answer.body["usage"]["completion_tokens"] == len(turn.completion_ids)
    await served.chat([*ASKED, answer.message, {"role": "user", "content": "Observation: Bern"}], stop="\nObservation")
    assert served.engine.prompt().endswith(
        "Action: search\nObservation</s>\n<s>user\nObservation: Bern</s>\n<s>assistant\n"
    )
    record = rollout_record(served.session, model="small", renderer="small", decode=TOKENIZER.decode)
    assert (record["samples_per_rollout"], record["breaks"]) == (1, [])


@pytest.mark.parametrize(
    ("line", "stop", "said", "kept"),
    [
        ("one two", "three", "one two", "one two</s>"),
        ("one two", "one", "", "one"),
        ("one two...", "two", "one ", "one two"),
        ("a b c", ["c", "b"], "a ", "a b"),
        ("no end", "</s>", "no end", "no end</s>"),
        ("naïve 🦊 fox", "🦊", "naïve ", "naïve 🦊"),
        ("naïve 🦊 fox", " fox", "naïve 🦊", "naïve 🦊 fox"),
    ],
)
async def test_where_it_stops(served: Served, line: str, stop: Any, said: str, kept: str) -> None:
    served.engine.lines = [line]
    answer = await served.chat(ASKED, stop=stop)
    assert answer.message == {"role": "assistant", "content": said}
    assert TOKENIZER.decode(served.session.turns[0].completion_ids) == kept
    assert answer.body["choices"][0]["finish_reason"] == "stop"


async def test_a_stop_inside_reasoning_leaves_reasoning(served: Served) -> None:
    """The cut turn has no answer; the bridge closes its reasoning, then the turn, outside the loss."""
    served.engine.lines = ["<think>\nfirst STOP then\n</think>\nanswer", "ok"]
    answer = await served.chat(ASKED, stop="STOP")
    assert answer.message == {"role": "assistant", "content": "", "reasoning_content": "first "}
    await served.chat([*ASKED, answer.message, {"role": "tool", "tool_call_id": "x", "content": "on"}])
    assert "first STOP\n</think>\n</s>" in served.engine.prompt()


async def test_calls_before_the_stop_are_calls(served: Served) -> None:
    served.engine.lines = [f"{ASK}\nObservation: {ASK}"]
    answer = await served.chat(ASKED, tools=[WEATHER], stop="Observation")
    assert len(answer.message["tool_calls"]) == 1
    assert answer.body["choices"][0]["finish_reason"] == "tool_calls"


async def test_each_choice_and_stream_stops_by_itself(served: Served) -> None:
    served.engine.lines = ["left | more", "right", "left | more"]
    answer = await served.chat(ASKED, n=2, stop="|", logprobs=True)
    assert [choice["message"]["content"] for choice in answer.body["choices"]] == ["left ", "right"]
    rows = [choice["logprobs"]["content"] for choice in answer.body["choices"]]
    assert [[row["token"] for row in one] for one in rows] == [[*"left |"], [*"right", "</s>"]]
    events = await served.stream(ASKED, stop="|")
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == "left "


async def test_the_first_tokens_do_not_stop(served: Served) -> None:
    """As in vLLM: what is completed within `min_tokens` is passed over."""
    served.engine.lines = ["a.b.c.d"]
    answer = await served.chat(ASKED, stop=".", min_tokens=3)
    assert answer.message["content"] == "a.b"


async def test_routing_rows_are_cut_with_the_tokens(serve: Callable[..., Any], served: Served) -> None:
    """Rows that are left over would make the whole rollout impossible to train on."""
    choice = GenerateChoice(
        token_ids=TOKENIZER.encode("ab|cd</s>"),
        logprobs=[-1.0] * 6,
        finish_reason="stop",
        routed_experts=[[n] for n in range(9)],
    )
    said = cut_at_stop(choice, ["|"], TOKENIZER, prompt_length=4, min_tokens=0)
    assert said.choice.routed_experts == [[0], [1], [2], [3], [4], [5], [6]]
    assert (said.choice.logprobs, TOKENIZER.decode(said.read)) == ([-1.0] * 3, "ab")


def test_any_stop_on_a_real_vocabulary() -> None:
    """Stop strings begin and end inside tokens, and tokens inside characters; the text before is always the same."""
    tokenizer = real_tokenizer("qwen3")
    text = "Thought: né 🦊🦊\n\nObservation: 数学 is\tfun.\n\n\nAction:  search  <|im_end|>"
    rng = random.Random(5)
    for _ in range(300):
        start = rng.randrange(len(text))
        stop = text[start : start + rng.randint(1, 9)]
        ids = tokenizer.encode(text) if rng.random() < 0.5 else [t for c in text[:-10] for t in tokenizer.encode(c)]
        choice = GenerateChoice(token_ids=ids, logprobs=[-1.0] * len(ids), finish_reason="length")
        whole = tokenizer.decode(ids)
        said = cut_at_stop(choice, [stop], tokenizer, prompt_length=3, min_tokens=0)
        if stop not in whole:
            assert said.choice is choice
            continue
        before = whole[: whole.index(stop)]
        kept = said.choice.token_ids
        assert tokenizer.decode(said.read) == before
        assert kept == ids[: len(kept)]
        assert tokenizer.decode(kept).startswith(before + stop)
        assert not tokenizer.decode(kept[:-1]).startswith(before + stop)
