"""Trajectories of any system: each shape is read as it was written, each fault is told with its place."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from prl.trajectory import RecordedTrajectory, at_line, read_trajectories, read_trajectory
from prl.types import BreakCause, ConfigError, RenderError

USER: dict[str, Any] = {"role": "user", "content": "2+2?"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "4"}


def read(data: Any) -> RecordedTrajectory:
    return read_trajectory(data, where="file:1", number=1)


def test_a_bare_list_and_an_object_hold_messages() -> None:
    assert read([USER, ANSWER]).messages == (USER, ANSWER)
    found = read({"id": 7, "messages": [USER, ANSWER], "tools": [{"type": "function"}], "reward": 0.5})
    assert (found.name, found.tools, found.facts) == ("7", ({"type": "function"},), {"reward": 0.5})
    assert read([USER, ANSWER]).name == "line 1"


def test_calls_are_brought_to_one_form_and_the_callers_data_is_left_alone() -> None:
    line = {
        "messages": [USER, {"role": "assistant", "tool_calls": [{"name": "f"}, {"id": "c", "function": {"name": "g"}}]}]
    }
    before = json.dumps(line)
    assert read(line).messages[1]["tool_calls"] == [
        {"function": {"name": "f", "arguments": {}}},
        {"id": "c", "function": {"name": "g", "arguments": {}}},
    ]
    assert json.dumps(line) == before


def test_turns_keep_ids_logprobs_and_what_was_sent() -> None:
    """The export of the gateway: what it recorded must come back whole."""
    turn = {
        "prompt_ids": [1, 2],
        "completion_ids": [3, 4],
        "logprobs": [-0.5, -1],
        "finish_reason": "tool_calls",
        "messages": [USER],
        "message": ANSWER,
    }
    [found] = read({"trajectory_id": "t", "turns": [turn]}).turns
    assert (found.prompt_ids, found.completion_ids, found.logprobs) == ([1, 2], [3, 4], [-0.5, -1.0])
    assert (found.finish_reason, found.request, found.message) == ("stop", (USER,), ANSWER)
    assert found.has_ids


def test_answers_of_a_chat_server_with_token_ids_are_turns() -> None:
    """vLLM with return_token_ids: prompt ids beside the choices, log-probabilities in the chat form."""
    answer = {
        "prompt_token_ids": [1, 2],
        "choices": [
            {
                "message": ANSWER,
                "token_ids": [3],
                "finish_reason": "length",
                "logprobs": {"content": [{"token": "4", "logprob": -0.25}]},
            }
        ],
    }
    found = read({"requests": [{"messages": [USER], "tools": [{"type": "function"}]}], "responses": [answer]})
    [turn] = found.turns
    assert (turn.prompt_ids, turn.completion_ids, turn.logprobs) == ([1, 2], [3], [-0.25])
    assert (turn.finish_reason, turn.request, turn.message) == ("length", (USER,), ANSWER)
    assert found.tools == ({"type": "function"},)
    assert read({"turns": [{"request": {"messages": [USER]}, "response": answer}]}).turns == found.turns
    assert read({"id": "x", **answer}).turns[0].completion_ids == [3]


def test_prompts_and_completions_are_read_both_ways() -> None:
    whole = read({"prompt": [USER], "completion": "4"})
    assert whole.messages == (USER, ANSWER)
    several = read({"prompts": [[USER], [USER, ANSWER, USER]], "completions": ["4", [ANSWER]]})
    assert [turn.request for turn in several.turns] == [(USER,), (USER, ANSWER, USER)]
    assert [turn.message for turn in several.turns] == [ANSWER, ANSWER]


SAMPLES = {
    "trajectory_id": "t",
    "messages": [USER, ANSWER, USER, {"role": "assistant", "content": "5"}],
    "breaks": [{"turn": 1, "cause": "bpe_drift", "position": 3}],
    "samples": [
        {"prompt_ids": [1, 2], "completion_ids": [3, 4], "mask": [1, 1], "logprobs": [-1.0, -2.0], "spans": None},
        {"prompt_ids": [1, 2, 9, 5], "completion_ids": [6, 7], "mask": [1, 1], "logprobs": [-3.0, -4.0]},
    ],
}


def test_samples_of_a_run_folder_unfold_to_their_turns() -> None:
    found = read(SAMPLES)
    assert [(turn.prompt_ids, turn.completion_ids, turn.logprobs) for turn in found.turns] == [
        ([1, 2], [3, 4], [-1.0, -2.0]),
        ([1, 2, 9, 5], [6, 7], [-3.0, -4.0]),
    ]
    assert [(one.turn, one.cause) for one in found.breaks] == [(1, BreakCause.BPE_DRIFT)]


def test_two_completions_of_one_sample_are_two_turns() -> None:
    sample = {"prompt_ids": [1], "completion_ids": [2, 3, 8, 8, 4], "mask": [1, 1, 0, 0, 1], "logprobs": None}
    assert [(turn.prompt_ids, turn.completion_ids) for turn in read({"samples": [sample]}).turns] == [
        ([1], [2, 3]),
        ([1, 2, 3, 8, 8], [4]),
    ]


def test_turns_of_a_failed_rollout_are_found_by_their_owners() -> None:
    """Its masks are all zero, so that nothing of it is trained; what was sampled is still known."""
    sample = {"prompt_ids": [1], "completion_ids": [2, 3], "mask": [0, 0], "spans": [[0, 1, 0], [1, 3, 1]]}
    [turn] = read({"messages": [USER, ANSWER], "samples": [sample]}).turns
    assert (turn.prompt_ids, turn.completion_ids, turn.message) == ([1], [2, 3], ANSWER)


def test_turns_of_interleaved_agents_come_back_in_the_order_they_were_played() -> None:
    """Sample 0 holds turns 0 and 2, sample 1 turn 1: the messages say so."""
    messages = [USER, ANSWER, USER, ANSWER, USER, ANSWER]
    first = {"prompt_ids": [1], "completion_ids": [2, 3, 4], "mask": [1, 0, 1]}
    first["spans"] = [[0, 1, 0], [1, 2, 1], [2, 3, 4], [3, 4, 5]]
    second = {"prompt_ids": [7], "completion_ids": [8], "mask": [1], "spans": [[0, 1, 2], [1, 2, 3]]}
    turns = read({"messages": messages, "samples": [first, second]}).turns
    assert [turn.completion_ids for turn in turns] == [[2], [8], [4]]


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ("text", "the line"),
        ({"id": 1}, "the line"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [USER, {**ANSWER, "tool_calls": [{"id": "f"}]}]}, "messages[1].tool_calls[0]"),
        ({"turns": [{"prompt_ids": [1, "2"]}]}, "turns[0].prompt_ids[1]"),
        ({"turns": [{"prompt_ids": [1, True]}]}, "turns[0].prompt_ids[1]"),
        ({"turns": [{"completion_ids": [-1]}]}, "turns[0].completion_ids[0]"),
        ({"turns": [{"completion_ids": [1, 2], "logprobs": [-1.0]}]}, "turns[0].logprobs"),
        ({"turns": [{"completion_ids": [1], "logprobs": [float("nan")]}]}, "turns[0].logprobs[0]"),
        ({"turns": [{"choices": [{}, {}]}]}, "turns[0].choices"),
        ({"prompts": [[USER]], "completions": []}, "completions"),
        ({"samples": [{"prompt_ids": [1], "completion_ids": [2], "mask": [1, 1]}]}, "samples[0].mask"),
        (
            {"samples": [{"prompt_ids": [1], "completion_ids": [2], "mask": [1], "spans": [[0, 1, 0]]}]},
            "samples[0].spans",
        ),
        (
            {"samples": [{"prompt_ids": [1], "completion_ids": [2], "mask": [1], "spans": [[0, 2, 0], [0, 2, 0]]}]},
            "samples[0].spans",
        ),
        ({**SAMPLES, "breaks": [{"turn": 1, "cause": "other", "position": "x"}]}, "breaks[0].position"),
        ({**SAMPLES, "breaks": 7}, "breaks"),
        ({**SAMPLES, "breaks": [{"turn": 1, "cause": "gremlins"}]}, "breaks[0]"),
    ],
)
def test_a_wrong_field_is_named(data: Any, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(data)
    assert caught.value.where == where
    assert caught.value.next_step


def test_bad_lines_are_yielded_with_file_and_line_and_the_rest_is_read(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    lines = [json.dumps({"messages": [USER, ANSWER]}).encode(), b"", b'{"messages": [', b"\xff\xfe", b'{"id": 1}']
    file.write_bytes(b"\n".join([*lines, json.dumps([USER]).encode()]))
    found = list(read_trajectories(str(file)))
    assert [one.where for one in found] == [
        f"{file}:1",
        f"{file}:3:15",
        f"{file}:4",
        f"{file}:5, the line",
        f"{file}:6",
    ]
    assert [isinstance(one, ConfigError) for one in found] == [False, True, True, True, False]


def test_the_errors_own_kind_survives_getting_its_line() -> None:
    assert str(at_line(RenderError("no", where="messages[0]", next_step="do"), "f:3")) == (
        "no\n  where: f:3, messages[0]\n  next:  do"
    )


def test_a_run_folders_steps_are_read_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "rollouts"
    folder.mkdir()
    for step in (10, 2, 1_000_000, 999_999):
        line = json.dumps({"id": f"step {step}", "messages": [USER, ANSWER]})
        (folder / f"step_{step:06d}.jsonl").write_text(line + "\n")
    found = [one.name for one in read_trajectories(str(tmp_path)) if isinstance(one, RecordedTrajectory)]
    assert found == ["step 2", "step 10", "step 999999", "step 1000000"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no rollouts"):
        list(read_trajectories(str(tmp_path / "empty")))


def test_a_json_file_is_one_conversation_however_it_is_spaced(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps([USER, ANSWER], indent=2))
    [found] = read_trajectories(str(file))
    assert isinstance(found, RecordedTrajectory)
    assert found.messages == (USER, ANSWER)
    file.write_text(json.dumps([[USER, ANSWER], {"messages": [USER]}]))
    assert [one.where for one in read_trajectories(str(file))] == [f"{file}[0]", f"{file}[1]"]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Rollouts of a week are gigabytes."""
    file = tmp_path / "long.jsonl"
    line = json.dumps({"turns": [{"prompt_ids": list(range(2000)), "completion_ids": [1]}]}) + "\n"
    file.write_text(line * 600)
    tracemalloc.start()
    count = sum(1 for _ in read_trajectories(str(file)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 600
    assert peak < 2_000_000 < file.stat().st_size


def lines_of(path: Path, *lines: bytes) -> list[RecordedTrajectory | ConfigError]:
    path.write_bytes(b"\n".join(lines) + b"\n")
    return list(read_trajectories(str(path)))


def test_numbers_that_nothing_holds_are_one_bad_line(tmp_path: Path) -> None:
    """One line of a million must not end the audit of the others."""
    digits = b"9" * 5000
    ids = b'"prompt_ids": [1], "completion_ids": [2]'
    good = b'{"messages": [{"role": "user", "content": "x"}]}'
    bad = [
        b'{"reward": ' + digits + b', "messages": []}',
        b'{"turns": [{' + ids + b', "logprobs": [-' + digits[:400] + b"]}]}",
        b'{"turns": [{' + ids + b', "logprobs": [NaN]}]}',
    ]
    found = lines_of(tmp_path / "f.jsonl", *bad, good)
    assert [isinstance(one, ConfigError) for one in found] == [True, True, True, False]
    assert [f":{n}" in str(one) for n, one in enumerate(found[:3], 1)] == [True] * 3


def test_halves_of_surrogate_pairs_are_replaced(tmp_path: Path) -> None:
    """No tokenizer reads them and no page can hold them; what stands around them is still worth an audit."""
    for name in ("f.jsonl", "f.json"):
        content = rb"\ud83e \ud83e\udd8a \\ud83e"
        [found] = lines_of(tmp_path / name, b'{"messages": [{"role": "user", "content": "' + content + b'"}]}')
        assert isinstance(found, RecordedTrajectory)
        assert found.messages[0]["content"] == "\ufffd \U0001f98a \\ud83e"


def test_a_document_nested_without_end_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not JSON"):
        lines_of(tmp_path / "f.json", b"[" * 100_000)
