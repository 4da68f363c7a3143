"""`command-agent`: what the agent gets, how it is judged, and that nothing of it is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from prl.contracts import AgentEndpoint, AgentEnvironment, AgentResult
from prl.types import ConfigError
from prl_train.environments.command_agent import CommandAgent, CommandAgentOptions, create

ENDPOINT = AgentEndpoint(base_url="http://127.0.0.1:9/v1", api_key="prl-secret", model="tiny")
PASS = (sys.executable, "-c", "")


@pytest.fixture(autouse=True)
def _tasks_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tasks"))


def agent(tmp_path: Path, code: str, *tasks: dict[str, Any], **options: Any) -> CommandAgent:
    lines = [json.dumps({"prompt": "do it", "check": PASS, **task}) for task in tasks or ({},)]
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return create(CommandAgentOptions(command=(sys.executable, "-c", code), tasks=path, **options))


async def run(made: CommandAgent, index: int = 0) -> AgentResult:
    return await made.run(made.example(index), ENDPOINT)


async def test_the_agent_finds_its_task_its_files_and_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setenv("PROXY", "there")
    code = """
import json, os, pathlib
names = ["OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL", "WANDB_API_KEY", "PROXY", "MORE"]
found = {name: os.environ.get(name) for name in names}
found["task"] = json.loads(os.environ["PRL_TASK"])
found["file"] = pathlib.Path("sub/a.txt").read_text()
found["home"] = os.listdir(os.environ["HOME"])
print(json.dumps(found))
"""
    task = {"id": "one", "files": {"sub/a.txt": "text"}, "data": {"n": 3}}
    made = agent(tmp_path, code, task, environment={"MORE": "1"}, pass_on=["PROXY"])
    assert isinstance(made, AgentEnvironment)
    assert (made.example(0).id, made.example(5)) == ("command-agent/one", made.example(0))
    result = await run(made)
    assert json.loads(result.output) == {
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "OPENAI_API_KEY": "prl-secret",
        "OPENAI_MODEL": "tiny",
        "WANDB_API_KEY": None,
        "PROXY": "there",
        "MORE": "1",
        "task": {"id": "one", "prompt": "do it", "data": {"n": 3}},
        "file": "text",
        "home": [],
    }
    assert list((tmp_path / "tasks").iterdir()) == [], "the task's folder was left behind"


CHECKS = {
    "exit status 0": ("", 1.0, {}),
    "exit status 1": ("raise SystemExit(1)", 0.0, {}),
    "a number": ("open('reward.json', 'w').write('0.25'); raise SystemExit(1)", 0.25, {}),
    "an object": (
        "open('reward.json', 'w').write('{\"reward\": 2, \"metrics\": {\"lines\": 3}}')",
        2.0,
        {"lines": 3.0},
    ),
}


@pytest.mark.parametrize("case", CHECKS)
async def test_the_check_decides_the_reward(tmp_path: Path, case: str) -> None:
    code, reward, metrics = CHECKS[case]
    result = await run(agent(tmp_path, "", {"check": [sys.executable, "-c", code]}))
    ends = {"agent_timed_out": 0.0, "agent_failed": 0.0, "check_timed_out": 0.0}
    assert (result.reward, result.metrics) == (reward, metrics | ends)


async def test_a_reward_that_the_agent_writes_itself_does_not_count(tmp_path: Path) -> None:
    forges = "open('reward.json', 'w').write('100')"
    result = await run(agent(tmp_path, forges, {"check": [sys.executable, "-c", "raise SystemExit(1)"]}))
    assert result.reward == 0.0
    folder = "import os; os.makedirs('reward.json/x')"
    assert (await run(agent(tmp_path, folder))).reward == 1.0


async def test_a_reward_that_cannot_be_read_is_an_error_of_the_rollout(tmp_path: Path) -> None:
    check = "open('reward.json', 'w').write('much')"
    with pytest.raises(ConfigError, match=r"reward\.json that cannot be read"):
        await run(agent(tmp_path, "", {"check": [sys.executable, "-c", check]}))


LEAVES_A_CHILD = 'sleep 300 & echo "child $!"; sleep {seconds}'
"""A shell: it has said so long before its time is up, however busy the machine is."""


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


async def gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return not is_alive(pid)


@pytest.mark.parametrize("seconds", [0, 300])
async def test_an_agent_that_ends_or_takes_too_long_leaves_no_process(tmp_path: Path, seconds: int) -> None:
    made = agent(tmp_path, "", seconds=2.0 if seconds else 120)
    made._command = ["/bin/sh", "-c", LEAVES_A_CHILD.format(seconds=seconds)]
    began = time.monotonic()
    result = await run(made)
    assert time.monotonic() - began < 100
    assert result.metrics["agent_timed_out"] == float(bool(seconds))
    assert result.metrics["agent_failed"] == float(bool(seconds))
    assert await gone(int(result.output.split()[1]))


async def test_a_cancelled_rollout_kills_the_agent_and_what_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"import os, time; open({str(note)!r} + '.part', 'w').write(str(os.getpid()));"
    code += f"os.rename({str(note)!r} + '.part', {str(note)!r}); time.sleep(60)"
    task = asyncio.create_task(run(agent(tmp_path, code)))
    while not note.exists():
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_alive(int(note.read_text()))
    assert list((tmp_path / "tasks").iterdir()) == []


async def test_only_the_end_of_a_long_output_is_kept(tmp_path: Path) -> None:
    code = "import sys; sys.stdout.write('x' * 300000); sys.stdout.buffer.write(b'\\xff'); sys.stderr.write('end')"
    result = await run(agent(tmp_path, code, output_bytes=100))
    assert len(result.output) == 100
    assert sorted(result.output[-4:]) == sorted("�end")


def test_tasks_that_cannot_be_used_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    faults = {
        "": "holds no task",
        "{": "not JSON",
        "[]": "not a JSON object",
        '{"prompt": "x"}': "key 'check' is missing",
        '{"prompt": "x", "check": ["a"], "files": {"../a": ""}}': "does not lie inside",
    }
    for text, what in faults.items():
        path.write_text(text + "\n")
        with pytest.raises(ConfigError, match=what) as caught:
            create(CommandAgentOptions(command=("true",), tasks=path))
        assert str(path) in caught.value.where
    with pytest.raises(ConfigError, match="cannot be read"):
        create(CommandAgentOptions(command=("true",), tasks=tmp_path / "absent.jsonl"))


async def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    made = agent(tmp_path, "")
    made._command = ["/nowhere/agent"]
    with pytest.raises(ConfigError, match="cannot be started"):
        await run(made)


def test_a_script_named_by_a_relative_path_is_found_from_the_tasks_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "a.py").write_text("")
    (tmp_path / "plain").write_text("")
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"prompt": "x", "check": ["true"]}))
    monkeypatch.chdir(tmp_path)
    options = CommandAgentOptions(command=("python", "agents/a.py", "plain", "no/such"), tasks=Path("tasks.jsonl"))
    assert create(options)._command == ["python", os.fspath(tmp_path / "agents" / "a.py"), "plain", "no/such"]
