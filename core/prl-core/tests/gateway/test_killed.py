"""A gateway's process is killed at every stage of a rollout, and the next one goes on."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ASKED = [{"role": "user", "content": "Hi"}]
GO_ON = {"role": "user", "content": "Go on."}


class Process:
    """A gateway as a process, and an agent's side of the connection."""

    def __init__(self, out: Path, version: int, moment: str = "") -> None:
        here = Path(__file__).parent
        path = os.pathsep.join([str(here), str(here.parents[3] / "tests"), os.environ.get("PYTHONPATH", "")])
        words = [sys.executable, str(here / "killed_gateway.py"), str(out), str(version), moment]
        environment = {**os.environ, "PYTHONPATH": path}
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        self.url = urlsplit(self.process.stdout.readline().strip())

    def send(self, method: str, path: str, key: str, body: Any = None) -> Any:
        """Return the answer; None where the process died before it."""
        connection = http.client.HTTPConnection(self.url.netloc, timeout=60)
        headers = {"Authorization": f"Bearer {key}"}
        try:
            connection.request(method, self.url.path + path, body and json.dumps(body), headers)
            return json.loads(connection.getresponse().read())
        except (ConnectionError, http.client.HTTPException):
            assert self.process.wait(60) == -signal.SIGKILL
            return None
        finally:
            connection.close()

    def ask(self, messages: list[Any]) -> Any:
        answer = self.send("POST", "/chat/completions", "client-key:r1", {"model": "small", "messages": messages})
        return answer and answer["choices"][0]["message"]

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait(60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start gateways on one output; those that a test leaves behind are ended."""
    started: list[Process] = []

    def begin(*args: Any) -> Process:
        started.append(Process(tmp_path / "out.jsonl", *args))
        return started[-1]

    yield begin
    for one in started:
        one.process.kill()
        one.process.communicate()


def test_a_process_killed_at_every_stage_of_a_rollout(start: Callable[..., Process], tmp_path: Path) -> None:
    """Between turns, while it samples, between the record and the answer, while it exports, and right after that."""
    out = tmp_path / "out.jsonl"
    messages: list[Any] = [*ASKED]

    def go_on(message: Any) -> None:
        messages.extend([message, GO_ON])

    between = start(1)
    go_on(between.ask(messages))
    between.end(signal.SIGKILL)
    assert start(2, "generating").ask(messages) is None
    assert start(3, "answering").ask(messages) is None
    exporting = start(4, "exporting")
    go_on(exporting.ask(messages))  # what the one before had recorded
    assert exporting.send("DELETE", "/rollouts", "operator-key") is None
    exported = start(5, "exported")
    go_on(exported.ask(messages))
    assert exported.send("DELETE", "/rollouts", "operator-key") is None
    last = start(6)
    assert last.send("GET", "/rollouts", "operator-key")["data"] == []
    last.ask([{"role": "user", "content": "Another"}])
    last.end(signal.SIGTERM)
    first, second = [json.loads(line) for line in out.read_text().splitlines()]
    assert (first["samples_per_rollout"], first["breaks"]) == (1, [])
    assert [turn["weight_version"] for turn in first["turns"]] == [1, 3, 5]
    assert [turn["message"]["content"] for turn in first["turns"]] == [one["content"] for one in messages[1::2]]
    assert [turn["weight_version"] for turn in second["turns"]] == [6]
    assert out.with_name("out.jsonl.partial").read_bytes().startswith(b'{"trajectory_id":')
    assert not out.with_name("out.jsonl.open").exists()
