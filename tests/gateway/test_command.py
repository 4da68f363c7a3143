"""`prl gateway` as the how-to tells it: engine, gateway and agent are processes of their own."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from engines.local import LocalServer
from fixtures.documents import blocks, commands, titled
from fixtures.environments import ROOT
from fixtures.ports import free_port

from prl import create_renderer, load_tokenizer
from prl.client import HttpEngineClient
from prl.types import Turn

PAGE = ROOT / "docs" / "how-to" / "train-through-any-agent.md"
KEYS = {"PRL_GATEWAY_KEY": "agents", "PRL_GATEWAY_OPERATOR_KEY": "me"}
pytestmark = pytest.mark.heavy


def written_commands() -> list[tuple[str, str]]:
    consoles = [block for block in blocks(PAGE) if block.language == "console"]
    return [(command.words, command.printed) for block in consoles for command in commands(block)]


@contextmanager
def gateway(folder: Path, engine: str, model: Path) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """Run the page's command on a free port; yield the process, the port and its first line."""
    port = free_port()
    [words] = [words for words, _ in written_commands() if words.startswith("prl gateway")]
    words = words.replace("DIRECTORY", str(model)).replace("8100", str(port))
    words = words.replace("http://127.0.0.1:8000", engine)
    command = [sys.executable, "-m", "prl.cli.main", *shlex.split(words)[1:]]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, **KEYS}, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, port, process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def call(port: int, method: str, path: str, key: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers={"Authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body
    return json.loads(body)


def run_agent(folder: Path, port: int) -> str:
    script = folder / "agent.py"
    script.write_text(titled(PAGE)["agent.py"], encoding="utf-8")
    environment = {**os.environ, **KEYS, "BASE_URL": f"http://127.0.0.1:{port}/v1"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_page(random_server: tuple[LocalServer, Path], tmp_path: Path) -> None:
    server, model = random_server
    printed = dict(written_commands())
    [first_line] = [text for words, text in printed.items() if words.startswith("prl gateway")]
    [agent_says] = [text for words, text in printed.items() if "agent.py" in words]
    with gateway(tmp_path, server.url, model) as (process, port, said):
        assert said == first_line.replace("8100", str(port))
        assert re.fullmatch(agent_says.replace("7", r"\d+"), run_agent(tmp_path, port))
        [row] = call(port, "GET", "/v1/rollouts", "me")["data"]
        assert (row["session"], row["turns"]) == ("rollout-1", 3)
        [ended] = call(port, "DELETE", "/v1/rollouts", "me")["data"]
        run_agent(tmp_path, port)  # a second rollout, which the end of the gateway writes down
    assert process.returncode == 0
    first, second = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert first == ended
    assert len(second["turns"]) == 3
    fields = {name.split("[")[0] for name in re.findall(r"`(\w+(?:\[\](?:\.\w+)?)?)`", table("field"))} - {"cause"}
    assert fields <= first.keys()


def table(head: str) -> str:
    text = PAGE.read_text(encoding="utf-8")
    start = text.index(f"| {head} |")
    return text[start : text.index("\n\n", start)]


def test_the_in_process_script(random_server: tuple[LocalServer, Path]) -> None:
    server, model = random_server
    scope: dict[str, Any] = {}
    exec(titled(PAGE)["in_process.py"], scope)

    async def play() -> tuple[tuple[Turn, ...], Any]:
        engine = HttpEngineClient(server.url)

        async def agent(base_url: str, key: str) -> None:
            from openai import AsyncOpenAI

            async with AsyncOpenAI(base_url=base_url, api_key=key) as client:
                await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}])

        try:
            played = await scope["rollout"](engine, create_renderer(load_tokenizer(str(model)), "qwen3"), agent)
        finally:
            await engine.close()
        return played

    turns, messages = asyncio.run(play())
    assert len(turns) == 1
    assert [message["role"] for message in messages] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("environment", "more", "told"),
    [
        ({"PRL_GATEWAY_KEY": ""}, (), "holds no key for clients"),
        (KEYS, ("--served-model", "x", "--route", "/v1/nonsense"), "speaks no route"),
        (KEYS, ("--served-model", "x", "--host", "203.0.113.1"), "cannot listen"),
        ({"PRL_GATEWAY_KEY": "a,a"}, ("--served-model", "x"), "two keys are the same"),
    ],
)
def test_what_cannot_start_says_why(
    random_server: tuple[LocalServer, Path],
    tmp_path: Path,
    environment: dict[str, str],
    more: tuple[str, ...],
    told: str,
) -> None:
    server, model = random_server
    words = ["gateway", "--engine-url", server.url, "--model", str(model), "--renderer", "qwen3", "--port", "0", *more]
    done = subprocess.run(
        [sys.executable, "-m", "prl.cli.main", *words],
        env={**os.environ, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert told in done.stderr
    assert "next:" in done.stderr
