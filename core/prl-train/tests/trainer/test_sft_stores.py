"""The same rows from every kind of store give the same samples; workers change nothing but the time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from prl.types import ConfigError
from prl_train.data import JsonlRows, RowMix, open_rows, read_row
from prl_train.errors import DataError
from prl_train.sft import SftConfig
from prl_train.sft.samples import open_mix, training_data

ROWS: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "user", "content": f"dim to {n}"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"type": "function", "function": {"name": "lamp", "arguments": f'{{"level": {n}}}'}}],
            },
            {"role": "tool", "content": "ok"},
            {"role": "assistant", "content": f"done {n}", "reasoning_content": "so" if n % 2 else None},
        ],
        "tools": json.dumps([{"type": "function", "function": {"name": "lamp", "parameters": {"type": "object"}}}]),
    }
    for n in range(7)
]


def write_jsonl(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same rows as JSON Lines, parquet, a saved data set, a directory of files, and a dictionary of splits."""
    datasets = pytest.importorskip("datasets")
    root = tmp_path_factory.mktemp("stores")
    made = datasets.Dataset.from_list(ROWS)
    made.to_parquet(str(root / "rows.parquet"))
    made.save_to_disk(str(root / "saved"))
    datasets.DatasetDict({"train": made, "test": made.select([0])}).save_to_disk(str(root / "splits"))
    (root / "files").mkdir()
    write_jsonl(root / "files" / "a.jsonl", ROWS[:3])
    datasets.Dataset.from_list(ROWS[3:]).to_parquet(str(root / "files" / "b.parquet"))
    return {
        "jsonl": str(write_jsonl(root / "rows.jsonl")),
        "parquet": str(root / "rows.parquet"),
        "saved": str(root / "saved"),
        "splits": str(root / "splits"),
        "files": str(root / "files"),
    }


@pytest.mark.parametrize("kind", ["parquet", "saved", "splits", "files"])
def test_every_store_reads_the_rows_that_the_text_file_has(places: dict[str, str], kind: str) -> None:
    plain = RowMix(open_rows(places["jsonl"]))
    found = RowMix(open_rows(places[kind]))
    assert [read_row(found[index]) for index in range(len(found))] == [read_row(plain[i]) for i in range(len(plain))]
    assert places[kind] in found.where(0)
    assert found.fingerprint() == RowMix(open_rows(places[kind])).fingerprint()


def test_arrows_padding_of_other_rows_is_no_part_of_a_row(tmp_path: Path) -> None:
    """Calls were trained with null arguments that belong to other tools, and prompts offered parameters of others."""
    datasets = pytest.importorskip("datasets")
    used = {"weather": ("city", "string", "Wien"), "lamp": ("level", "integer", 3)}
    rows = [
        {
            "messages": [
                {"role": "user", "content": "go"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"type": "function", "function": {"name": name, "arguments": {key: value}}}],
                },
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {"name": name, "parameters": {"type": "object", "properties": {key: {"type": kind}}}},
                }
            ],
        }
        for name, (key, kind, value) in used.items()
    ]
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "rows.parquet"))
    [store] = open_rows(str(tmp_path / "rows.parquet"))
    assert [read_row(store[index]) for index in range(2)] == [read_row(row) for row in rows]


def test_a_split_that_is_not_there_is_named_with_those_that_are(places: dict[str, str]) -> None:
    assert len(RowMix(open_rows(places["splits"], split="test"))) == 1
    with pytest.raises(ConfigError, match="no split 'dev'") as caught:
        open_rows(places["splits"], split="dev")
    assert caught.value.next_step == "choose one of: test, train"


@pytest.mark.parametrize(
    ("names", "split", "expected"),
    [
        (("data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl"), "train", [0]),
        (("data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl"), "test", [1]),
        (("train_sft-00000-of-00001.jsonl", "train_gen-00000-of-00001.jsonl"), "train_sft", [0]),
        (("train/0.jsonl", "train/1.jsonl", "validation/0.jsonl"), "train", [0, 1]),
        (("gsm8k_train.jsonl", "gsm8k_test.jsonl"), "train", [0]),
        (("gsm8k-train-00000-of-00001.jsonl", "gsm8k-test-00000-of-00001.jsonl"), "train", [0]),
        (("dev-1.jsonl", "train-1.jsonl", "train-2.jsonl"), "dev", [0]),
        (("a.jsonl", "train.jsonl"), "train", [0, 1]),
        (("chat.jsonl", "dev-notes.jsonl", "test-runs/data.jsonl"), "train", [0, 1, 2]),
        (("a.jsonl", "b.jsonl"), "train", [0, 1]),
        (("test_a.jsonl", "test_b.jsonl"), "train", [0, 1]),
        (("test.jsonl",), "train", [0]),
        (("latest.jsonl", "restrain.jsonl"), "train", [0, 1]),
    ],
)
def test_a_directory_of_files_has_the_splits_that_their_names_tell(
    tmp_path: Path, names: tuple[str, ...], split: str, expected: list[int]
) -> None:
    """A downloaded data set is a folder of train and test files: a run trained on both."""
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"number": number}))
    mix = RowMix(open_rows(str(tmp_path), split=split))
    assert sorted(mix[index]["number"] for index in range(len(mix))) == expected


@pytest.mark.parametrize(
    ("names", "split", "told"),
    [
        (("chat.jsonl", "chat_test.jsonl"), "train", "chat_test.jsonl is named for the split 'test', and chat.jsonl"),
        (("chat.jsonl", "chat_test.jsonl"), "test", "chat_test.jsonl is named for the split 'test', and chat.jsonl"),
        (("chat.jsonl", "train.jsonl"), "test", "there is no split 'test'"),
        (("train.jsonl",), "dev", "there is no split 'dev'"),
    ],
)
def test_a_split_is_no_guess(tmp_path: Path, names: tuple[str, ...], split: str, told: str) -> None:
    """One file of tests among others: whether the others are for training is not the run's to say."""
    for name in names:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match=told):
        open_rows(str(tmp_path), split=split)


def test_a_store_without_rows_adds_none_and_a_damaged_one_is_told(tmp_path: Path, places: dict[str, str]) -> None:
    """One empty shard of hundreds: the run does not start, and blames a file that is no parquet."""
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"messages": []}).to_parquet(str(tmp_path / "a.parquet"))
    write_jsonl(tmp_path / "b.jsonl", ROWS[:2])
    assert [len(store) for store in open_rows(str(tmp_path))] == [0, 2]
    assert read_row(RowMix(open_rows(str(tmp_path)))[1]) == read_row(ROWS[1])
    saved = shutil.copytree(places["saved"], tmp_path / "saved")
    (saved / "data-00000-of-00001.arrow").write_bytes(b"cut")
    with pytest.raises(DataError, match="not a saved data set that can be read"):
        open_rows(str(saved))


def test_a_split_that_no_file_is_named_for_is_told_with_those_that_are(tmp_path: Path) -> None:
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match="no split 'validation'") as caught:
        open_rows(str(tmp_path), split="validation")
    assert caught.value.next_step == "choose one of: test, train"


def test_a_hub_id_that_cannot_be_reached_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="the data set cannot be loaded") as caught:
        open_rows("acme/games")
    assert caught.value.where == "'acme/games' on the Hugging Face hub, split 'train'"


def test_without_the_library_the_install_command_is_told(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="need the package `datasets`") as caught:
        open_rows(places["parquet"])
    assert caught.value.next_step == "Run: pip install 'prl-train[data]'"


def test_a_file_that_is_no_parquet_and_an_empty_directory_are_told(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "bad.parquet").write_bytes(b"PAR0 and nothing else")
    with pytest.raises(DataError, match="not a parquet file"):
        open_rows(str(tmp_path / "bad.parquet"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no data files"):
        open_rows(str(tmp_path / "empty"))


def test_a_text_file_is_not_read_into_memory_and_crosses_processes(places: dict[str, str]) -> None:
    import pickle

    rows = JsonlRows(Path(places["jsonl"]))
    assert rows[6] == ROWS[6]
    again = pickle.loads(pickle.dumps(rows))
    assert [again[index] for index in (3, 0)] == [ROWS[3], ROWS[0]]


def config(model_dir: Path, path: str, **data: Any) -> SftConfig:
    return SftConfig.model_validate(
        {
            "model": str(model_dir),
            "renderer": "qwen3",
            "epochs": 2,
            "data": {"path": path} | data,
            "trainer": {"seq_len": 1500, "seed": 4},
        }
    )


def drawn(config: SftConfig) -> list[list[list[int]]]:
    data = training_data(config)
    rows = []
    try:
        while True:
            rows.append([sample.token_ids for sample in data.packer.next_samples()])
    except StopIteration:
        return rows
    finally:
        data.builder.close()


def test_workers_and_stores_change_neither_samples_nor_their_order(model_dir: Path, places: dict[str, str]) -> None:
    plain = drawn(config(model_dir, places["jsonl"]))
    assert len(plain) > 1
    assert drawn(config(model_dir, places["jsonl"], workers=2)) == plain
    assert drawn(config(model_dir, places["parquet"])) == plain


def test_an_error_in_a_worker_names_the_row(model_dir: Path, tmp_path: Path) -> None:
    bad = {"messages": [{"role": "user", "content": "hi"}]}
    path = write_jsonl(tmp_path / "rows.jsonl", [*ROWS, bad])
    with pytest.raises(DataError, match="no token of this conversation would be trained") as caught:
        drawn(config(model_dir, str(path), workers=1))
    assert f"{path}, row 8" in caught.value.where


def test_several_sources_and_a_bound(places: dict[str, str]) -> None:
    sources = [{"path": places["jsonl"]}, {"path": places["splits"], "split": "test", "weight": 3}]
    section = SftConfig.model_validate({"model": "m", "data": {"sources": sources, "max_rows": 8}}).data
    mix = open_mix(section)
    assert len(mix) == 8
    assert mix.order(0, seed=0, shuffle=False) == [0, 1, 2, 3, 4, 5, 6, 7, 7, 7]
    for wrong in ({}, {"path": "a", "sources": sources}):
        with pytest.raises(ValueError, match="give either `path` or a list of `sources`"):
            SftConfig.model_validate({"model": "m", "data": wrong})
