"""Supervised rows and their packer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prl.types import ConfigError
from prl_train.data import IndexedSource, SftPacker, SftSample, normalise_message, read_jsonl, read_row
from prl_train.errors import DataError

TOOLS = [{"type": "function", "function": {"name": "lamp", "description": "", "parameters": {"type": "object"}}}]
MESSAGES = [{"role": "user", "content": "Dim the lamp."}, {"role": "assistant", "content": "Done."}]


def test_null_inside_tool_arguments_survives_while_arrows_nulls_go() -> None:
    arguments = {"x": None, "y": {"z": None}}
    message = {
        "role": "assistant",
        "content": "",
        "name": None,
        "tool_call_id": None,
        "reasoning_content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "index": None, "function": {"name": "set", "arguments": arguments}}
        ],
    }
    assert normalise_message(message) == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "set", "arguments": arguments}}],
    }
    assert message["name"] is None, "the caller's row was changed"


def test_null_arguments_as_a_whole_are_left_for_the_renderer_to_judge() -> None:
    call = {"function": {"name": "now", "arguments": None, "strict": None}}
    cleaned = normalise_message({"role": "assistant", "content": "", "tool_calls": [call]})
    assert cleaned["tool_calls"] == [{"function": {"name": "now", "arguments": None}}]


def test_null_content_and_content_parts_keep_their_meaning() -> None:
    assert normalise_message({"role": "assistant", "content": None}) == {"role": "assistant", "content": None}
    parts = [{"type": "text", "text": "hi", "image_url": None}]
    assert normalise_message({"role": "user", "content": parts})["content"] == [{"type": "text", "text": "hi"}]


@pytest.mark.parametrize("column", ["tools", "tool_defs"])
@pytest.mark.parametrize("value", [TOOLS, json.dumps(TOOLS)])
def test_tools_reach_the_renderer_as_a_list_whatever_their_form(column: str, value: Any) -> None:
    assert read_row({"messages": MESSAGES, column: value}).tools == TOOLS


@pytest.mark.parametrize("value", [None, [], "", "[]"])
def test_no_tools_is_none_so_that_no_empty_tools_block_is_rendered(value: Any) -> None:
    assert read_row({"messages": MESSAGES, "tools": value}).tools is None


def test_messages_win_unless_they_are_null() -> None:
    row = {"messages": None, "prompt": "Hi", "completion": [{"role": "assistant", "content": "Hello"}]}
    assert read_row(row).messages == [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert read_row(row | {"messages": MESSAGES}).messages == MESSAGES


def test_unknown_columns_are_named() -> None:
    assert read_row({"messages": MESSAGES, "tool": "x", "score": 1}).unknown_columns == ("score", "tool")


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({}, "neither `messages` nor a usable `prompt`"),
        ({"prompt": "x"}, "neither `messages` nor a usable `completion`"),
        ({"messages": []}, "not a list of messages"),
        ({"messages": "hello"}, "not a list of messages"),
        ({"messages": [{"content": "x"}]}, "a message needs a `role`"),
        ({"messages": MESSAGES, "tools": "{"}, "`tools` is text but not JSON"),
        ({"messages": MESSAGES, "tools": "{}"}, "`tools` is not a list of objects"),
    ],
)
def test_a_bad_row_says_what_where_and_what_next(row: dict[str, Any], what: str) -> None:
    with pytest.raises(DataError, match=what) as caught:
        read_row(row, "data.jsonl, row 7")
    assert caught.value.where.startswith("data.jsonl, row 7")
    assert caught.value.next_step


def test_a_bad_line_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"messages": []}\n\n{oops}\n', encoding="utf-8")
    rows = read_jsonl(path)
    assert next(rows) == {"messages": []}
    with pytest.raises(DataError, match="not JSON") as caught:
        next(rows)
    assert caught.value.where == f"{path}, line 3"


def test_a_missing_file_is_a_three_part_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        list(read_jsonl(tmp_path / "none.jsonl"))


def source(lengths: list[int], **options: Any) -> IndexedSource:
    def build(index: int) -> SftSample:
        return SftSample([index] * lengths[index], [True] * lengths[index], index)

    return IndexedSource(len(lengths), build, **({"shuffle": False} | options))


def all_rows(packer: SftPacker) -> list[list[int]]:
    rows = []
    while True:
        try:
            rows.append([sample.index for sample in packer.next_samples()])
        except StopIteration:
            return rows


def test_a_resumed_packer_loses_and_repeats_nothing() -> None:
    """The sample that did not fit was already drawn when the checkpoint was taken."""
    lengths = [3, 3, 4, 2, 5]
    packer = SftPacker(source(lengths), 6)
    assert [sample.index for sample in packer.next_samples()] == [0, 1]
    state = json.loads(json.dumps(packer.state_dict()))
    assert all_rows(packer) == [[2, 3], [4]]
    resumed = SftPacker(source(lengths), 6)
    resumed.load_state_dict(state)
    assert all_rows(resumed) == [[2, 3], [4]]


@pytest.mark.parametrize("after", range(9))
def test_resuming_at_any_row_of_shuffled_epochs_goes_on_the_same(after: int) -> None:
    lengths = [2, 5, 3, 4, 2, 6, 3]
    whole = all_rows(SftPacker(source(lengths, shuffle=True, epochs=3, seed=5), 8))
    packer = SftPacker(source(lengths, shuffle=True, epochs=3, seed=5), 8)
    first = [[sample.index for sample in packer.next_samples()] for _ in range(after)]
    resumed = SftPacker(source(lengths, shuffle=True, epochs=3, seed=5), 8)
    resumed.load_state_dict(json.loads(json.dumps(packer.state_dict())))
    assert first + all_rows(resumed) == whole
    assert sorted(index for row in whole for index in row) == sorted(list(range(7)) * 3)


def test_epochs_are_shuffled_differently_and_reproducibly() -> None:
    packs = [all_rows(SftPacker(source([2] * 8, shuffle=True, epochs=2, seed=1), 16)) for _ in range(2)]
    assert packs[0] == packs[1]
    assert packs[0][0] != packs[0][1]


def test_long_rows_are_cut_and_rows_without_target_are_dropped_and_counted() -> None:
    built = [SftSample([1] * 9, [True] * 9, 0), SftSample([2] * 9, [False] * 6 + [True] * 3, 1), None]
    packer = SftPacker(IndexedSource(3, lambda index: built[index], shuffle=False), 5)
    assert [(s.index, len(s)) for s in packer.next_samples()] == [(0, 5)]
    with pytest.raises(StopIteration):
        packer.next_samples()
    assert (packer.truncated, packer.dropped) == (1, 2)


def test_a_data_set_without_any_target_stops_instead_of_spinning_for_ever() -> None:
    packer = SftPacker(IndexedSource(3, lambda _: SftSample([1, 2], [False, False]), epochs=None), 8)
    with pytest.raises(DataError, match="no row of the data set has a target within seq_len = 8"):
        packer.next_samples()


def test_a_checkpoint_of_another_data_set_is_refused() -> None:
    with pytest.raises(ConfigError, match="made with 2 rows, the data set has 3"):
        source([1, 1, 1]).load_state_dict(source([1, 1]).state_dict())
    with pytest.raises(ConfigError, match="no rows"):
        source([])
