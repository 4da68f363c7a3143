"""Supervised rows and their packer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prl.types import ConfigError
from prl_train.data import (
    IndexedSource,
    JsonlRows,
    LocalBuilder,
    RowMix,
    SftPacker,
    SftSample,
    normalise_message,
    open_rows,
    read_row,
)
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
@pytest.mark.parametrize("value", [TOOLS, json.dumps(TOOLS), [json.dumps(tool) for tool in TOOLS]])
def test_tools_reach_the_renderer_as_a_list_whatever_their_form(column: str, value: Any) -> None:
    assert read_row({"messages": MESSAGES, column: value}).tools == TOOLS


def test_a_tools_schema_has_no_null_parts_but_null_values() -> None:
    """Arrow gives each tool the parameters of all others, as nulls: the prompt offers arguments nobody declared."""
    padded = {
        "type": "function",
        "strict": None,
        "function": {
            "name": "lamp",
            "description": None,
            "parameters": {
                "type": "object",
                "properties": {
                    "level": {"type": ["integer", "null"], "default": None, "enum": [None, 1], "items": None},
                    "default": None,
                    "city": None,
                },
                "required": ["level"],
            },
        },
    }
    level = {"type": ["integer", "null"], "default": None, "enum": [None, 1]}
    parameters = {"type": "object", "properties": {"level": level}, "required": ["level"]}
    expected = [{"type": "function", "function": {"name": "lamp", "parameters": parameters}}]
    assert read_row({"messages": MESSAGES, "tools": [padded]}).tools == expected
    assert padded["strict"] is None, "the caller's row was changed"


def test_what_is_stored_as_json_text_is_read_as_what_it_says() -> None:
    """Columns that no Arrow type fits are stored as text; its letters were taken for the calls of a message."""
    calls = [{"type": "function", "function": {"name": "lamp", "arguments": {"level": None}}}]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    asked = {"role": "user", "content": "[1]"}
    row = read_row({"messages": [asked, {**said, "tool_calls": json.dumps(calls)}]})
    assert row.messages == [asked, said]
    assert read_row({"messages": json.dumps([asked, said])}).messages == [asked, said]


@pytest.mark.parametrize("value", [None, [], "", "[]", " ", "null"])
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
        ({"messages": [{"role": "assistant", "tool_calls": "lamp(3)"}]}, "the message's tool_calls are str"),
        ({"messages": [{"role": "assistant", "tool_calls": {"name": "lamp"}}]}, "the message's tool_calls are dict"),
        ({"messages": '[{"role": "user"'}, "not a list of messages"),
        ({"messages": MESSAGES, "tools": "{"}, "`tools` is text but not JSON"),
        ({"messages": MESSAGES, "tools": "{}"}, "`tools` is not a list of objects"),
    ],
)
def test_a_bad_row_says_what_where_and_what_next(row: dict[str, Any], what: str) -> None:
    with pytest.raises(DataError, match=what) as caught:
        read_row(row, "data.jsonl, row 7")
    assert caught.value.where.startswith("data.jsonl, row 7")
    assert caught.value.next_step


def test_a_bad_line_is_named_by_its_number_among_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"messages": []}\n\n{oops}\n[1]\n', encoding="utf-8")
    rows = JsonlRows(path)
    assert len(rows) == 3
    assert rows[0] == {"messages": []}
    for index, what in ((1, "not JSON"), (2, "not an object")):
        with pytest.raises(DataError, match=what) as caught:
            rows[index]
        assert caught.value.where == f"{path}, row {index + 1}"


@pytest.mark.parametrize("name", ["none.jsonl", "none.parquet"])
def test_a_missing_file_is_a_three_part_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="does not exist") as caught:
        open_rows(str(tmp_path / name))
    assert name in caught.value.where


def source(lengths: list[int], *, shuffle: bool = False, seed: int = 0, epochs: int | None = 1) -> IndexedSource:
    def build(index: int) -> list[SftSample]:
        return [SftSample([index] * lengths[index], [True] * lengths[index], index)]

    return of_rows(len(lengths), build, shuffle=shuffle, seed=seed, epochs=epochs)


def of_rows(
    count: int, build: Callable[[int], Any], *, shuffle: bool = False, seed: int = 0, epochs: int | None = 1
) -> IndexedSource:
    mix = RowMix([Numbers(count)])
    return IndexedSource(
        count,
        LocalBuilder(build),
        order=lambda epoch: mix.order(epoch, seed=seed, shuffle=shuffle),
        epochs=epochs,
    )


class Numbers:
    """A store whose rows are their numbers."""

    def __init__(self, count: int, name: str = "numbers") -> None:
        self.count = count
        self.name = name

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index}

    def where(self, index: int) -> str:
        return f"{self.name}, row {index + 1}"

    def fingerprint(self) -> str:
        return f"{self.name} {self.count}"


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


def test_a_packer_resumed_with_shorter_rows_fits_what_was_drawn_for_longer_ones() -> None:
    """The drawn sample fits no row: the packer would hand out empty rows for ever."""
    lengths = [4, 5, 2]
    packer = SftPacker(source(lengths), 6)
    packer.next_samples()
    shorter = SftPacker(source(lengths), 3)
    shorter.load_state_dict(json.loads(json.dumps(packer.state_dict())))
    rows = [[(sample.index, len(sample)) for sample in shorter.next_samples()] for _ in range(2)]
    assert rows == [[(1, 3)], [(2, 2)]]
    assert shorter.truncated == 1


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


LONG = [[SftSample([1] * 9, [True] * 9, 0)], [SftSample([2] * 9, [False] * 6 + [True] * 3, 1)], []]


def test_long_rows_are_cut_and_rows_without_target_are_dropped_and_counted() -> None:
    packer = SftPacker(of_rows(3, LONG.__getitem__), 5)
    assert [(s.index, len(s)) for s in packer.next_samples()] == [(0, 5)]
    with pytest.raises(StopIteration):
        packer.next_samples()
    assert (packer.truncated, packer.dropped) == (1, 2)


def test_long_rows_are_dropped_or_refused_where_the_run_says_so() -> None:
    packer = SftPacker(of_rows(4, [*LONG, [SftSample([3] * 5, [True] * 5, 3)]].__getitem__), 5, too_long="drop")
    assert [sample.index for sample in packer.next_samples()] == [3]
    assert (packer.truncated, packer.dropped) == (0, 3)
    with pytest.raises(DataError, match="a sample has 9 tokens, more than seq_len = 5") as caught:
        SftPacker(of_rows(3, LONG.__getitem__), 5, too_long="error").next_samples()
    assert caught.value.where == "row number 1 of the data set"


def test_a_data_set_without_any_target_stops_instead_of_spinning_for_ever() -> None:
    packer = SftPacker(of_rows(3, lambda _: [SftSample([1, 2], [False, False])], epochs=None), 8)
    with pytest.raises(DataError, match="no row of the data set has a target within seq_len = 8"):
        packer.next_samples()


@pytest.mark.parametrize("after", range(5))
def test_a_conversation_of_several_samples_loses_none_where_a_run_is_resumed(after: int) -> None:
    def build(index: int) -> list[SftSample]:
        return [SftSample([10 * index + part] * 3, [True] * 3, index) for part in range(3)]

    whole = tokens_of_rows(SftPacker(of_rows(3, build), 7))
    assert [token for row in whole for token in row] == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    packer = SftPacker(of_rows(3, build), 7)
    first = [[sample.token_ids[0] for sample in packer.next_samples()] for _ in range(after)]
    resumed = SftPacker(of_rows(3, build), 7)
    resumed.load_state_dict(json.loads(json.dumps(packer.state_dict())))
    assert first + tokens_of_rows(resumed) == whole


def tokens_of_rows(packer: SftPacker) -> list[list[int]]:
    rows = []
    while True:
        try:
            rows.append([sample.token_ids[0] for sample in packer.next_samples()])
        except StopIteration:
            return rows


def test_a_row_with_an_error_stops_or_is_told_and_passed_over() -> None:
    built: list[Any] = [DataError("bad", where="row 1", next_step="mend it"), [SftSample([1, 2], [True, True], 1)]]
    with pytest.raises(DataError, match="bad"):
        SftPacker(of_rows(2, built.__getitem__), 8).next_samples()
    told: list[DataError] = []
    rows = IndexedSource(2, LocalBuilder(built.__getitem__), order=lambda _: [0, 1], on_error=told.append)
    packer = SftPacker(rows, 8)
    assert [sample.index for sample in packer.next_samples()] == [1]
    assert (told, packer.dropped) == ([built[0]], 1)


def test_sources_share_an_epoch_by_their_weights_and_half_a_source_is_another_half_in_the_next() -> None:
    mix = RowMix([Numbers(4, "a"), Numbers(10, "b"), Numbers(3, "c")], [1.0, 0.5, 2.0])
    epochs = [mix.order(epoch, seed=7, shuffle=False) for epoch in range(2)]
    for order in epochs:
        assert order[:4] == [0, 1, 2, 3]
        assert sorted(order[-6:]) == [14, 14, 15, 15, 16, 16]
        assert len(order) == 4 + 5 + 6
    assert sorted(epochs[0][4:9] + epochs[1][4:9]) == list(range(4, 14))
    assert (mix.where(0), mix.where(4), mix.where(16)) == ("a, row 1", "b, row 1", "c, row 3")
    assert mix[13] == {"index": 9}
    assert RowMix([Numbers(4), Numbers(10)], most=6).order(0, seed=0, shuffle=False) == [0, 1, 2, 3, 4, 5]


def test_a_share_of_less_than_a_row_adds_up_over_the_epochs() -> None:
    """A quarter of ten rows was two in each epoch, of one row none for ever: rows that the run says it trains."""
    quarters = [RowMix([Numbers(10)], [0.25]).order(epoch, seed=7, shuffle=True) for epoch in range(4)]
    assert [len(one) for one in quarters] == [3, 2, 3, 2]
    assert sorted(row for one in quarters for row in one) == list(range(10))
    single = RowMix([Numbers(1)], [0.25])
    assert [single.order(epoch, seed=7, shuffle=True) for epoch in range(5)] == [[0], [], [], [], [0]]


@pytest.mark.parametrize(("epochs", "drawn"), [(3, 0), (4, 1), (8, 2), (9, 2)])
def test_epochs_without_a_row_are_passed_over(epochs: int, drawn: int) -> None:
    """The first epoch of small shares is empty, and the run ends in an IndexError."""
    rows = IndexedSource(
        1, LocalBuilder(lambda index: [SftSample([1, 2], [False, True], index)]),
        order=lambda epoch: [0] if epoch % 4 == 3 else [], epochs=epochs,
    )  # fmt: skip
    assert len(list(iter(lambda: next(rows, None), None))) == drawn


def test_a_checkpoint_of_another_data_set_is_refused() -> None:
    with pytest.raises(ConfigError, match="made with 2 rows, the data set has 3"):
        source([1, 1, 1]).load_state_dict(source([1, 1]).state_dict())
    with pytest.raises(ConfigError, match="no rows"):
        source([])
