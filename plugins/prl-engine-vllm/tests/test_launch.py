"""How the server is started, and what a user is told when it does not come up. No vLLM is needed here."""

from __future__ import annotations

import os
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from prl.plugin import build_options, get_registry
from prl.types import ConfigError, EngineUnavailableError, PluginError
from prl_engine_vllm import launch
from prl_engine_vllm.child import VllmProcess
from prl_engine_vllm.engine import create
from prl_engine_vllm.launch import Interpreter, command, environment, find_interpreter
from prl_engine_vllm.options import VllmEngineOptions

CPU = Interpreter("/python", "0.32.0", is_cpu=True)
GPU = Interpreter("/python", "0.32.0", is_cpu=False)


def options(**values: Any) -> VllmEngineOptions:
    return VllmEngineOptions(**{"model": "/model", "served_model_name": "tiny"} | values)


def pairs(words: list[str]) -> dict[str, str]:
    """Return option -> the word after it."""
    return {word: following for word, following in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


def test_the_engine_is_offered_without_importing_vllm_or_torch() -> None:
    record = get_registry().find("engine", "vllm")
    checked = build_options(record, {"model": "m", "lora": "true", "args": ["--x"]})
    assert checked.model_dump()["lora"] is True
    code = (
        "import sys; from prl.plugin import create; create('engine', 'vllm', model='m');"
        "print([m for m in ('vllm', 'torch', 'transformers', 'fastapi') if m in sys.modules])"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_line_gives_what_the_routes_rely_on() -> None:
    words = command(options(lora=True, max_model_len=512, args=("--port", "9")), "/python", 8123)
    assert words[:3] == ["/python", "-m", "vllm.entrypoints.openai.api_server"]
    found = pairs(words)
    assert found["--logprobs-mode"] == "processed_logprobs"
    assert found["--generation-config"] == "vllm", "the model's own top_p and top_k would cut the distribution"
    assert found["--scheduling-policy"] == "priority"
    assert (found["--model"], found["--served-model-name"], found["--max-model-len"]) == ("/model", "tiny", "512")
    assert "--enable-lora" in words
    assert words[-2:] == ["--port", "9"], "the caller's own arguments win"
    assert pairs(command(options(logprobs="raw"), "/python", 1))["--logprobs-mode"] == "raw_logprobs"


@pytest.mark.parametrize(
    ("given", "made"), [(None, "prl"), ("", "prl"), ("acme", "acme,prl"), ("prl", "prl"), ("a,prl,b", "a,prl,b")]
)
def test_the_plugin_joins_those_that_vllm_may_load(given: str | None, made: str) -> None:
    base = {} if given is None else {"VLLM_PLUGINS": given}
    assert environment(options(), GPU, "token", base)["VLLM_PLUGINS"] == made


@pytest.mark.parametrize(
    ("interpreter", "compiler", "value"), [(CPU, None, "1"), (CPU, "/usr/bin/g++", None), (GPU, None, None)]
)
def test_without_a_compiler_the_cpu_build_compiles_nothing(
    monkeypatch: pytest.MonkeyPatch, interpreter: Interpreter, compiler: str | None, value: str | None
) -> None:
    """The first request with log-probabilities would end the server."""
    monkeypatch.setattr(launch.shutil, "which", lambda name: compiler)
    assert environment(options(), interpreter, "token", {}).get("TORCHDYNAMO_DISABLE") == value


def test_options_reach_the_environment() -> None:
    made = environment(options(cpu_cache_gib=3, environment={"A": "b"}), CPU, "token", {"C": "d"})
    assert (made["VLLM_CPU_KVCACHE_SPACE"], made["A"], made["C"], made["PRL_VLLM_INSTANCE"]) == ("3", "b", "d", "token")


def test_an_interpreter_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not run as a Python interpreter"):
        find_interpreter(options(python=str(tmp_path / "python")))


# What stands in for an interpreter with vLLM: it answers the look for vLLM, and serves what a server would.
FAKE = """#!{python}
import http.server, json, os, sys, time
if sys.argv[1] == "-c":
    print(json.dumps({{"vllm": {vllm}, "plugin": {plugin}, "version": "0.32.0", "cpu": False}}))
    sys.exit()
port = int(sys.argv[sys.argv.index("--port") + 1])
print("line one of its log", flush=True)
{before}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        instance = {instance}
        body = {{"/health": {{}}, "/v1/engine": {{"instance": instance}}}}.get(self.path)
        status = 200 if self.path == "/health" or instance else 404
        self.answer(status, body or {{}})
    def do_POST(self):
        self.answer({sampling}, {{"error": {{"code": "engine_unavailable"}}}})
    def answer(self, status, body):
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def fake(tmp_path: Path) -> Any:
    """Write an interpreter whose vLLM behaves as told."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")

    def make(
        *,
        vllm: bool = True,
        plugin: bool = True,
        instance: str = "os.environ['PRL_VLLM_INSTANCE']",
        before: str = "",
        sampling: int = 200,
    ) -> VllmEngineOptions:
        path = tmp_path / "python"
        text = FAKE.format(
            python=sys.executable, vllm=vllm, plugin=plugin, instance=instance, before=before, sampling=sampling
        )
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return options(
            python=str(path), model=str(tmp_path / "model"), port=0, log=str(tmp_path / "log"), stop_seconds=5
        )

    return make


async def test_a_server_that_comes_up_is_reached_and_ended(fake: Any) -> None:
    engine = create(fake())
    with pytest.raises(EngineUnavailableError, match="not started"):
        engine.client()
    await engine.start()
    pid = engine._process.pid  # type: ignore[union-attr]
    client = engine.client()
    assert await client.health()
    await client.close()
    await engine.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)  # type: ignore[arg-type]


async def test_a_server_that_skipped_the_plugin_is_told_as_such(fake: Any) -> None:
    """vLLM logs a plugin that it could not load, and serves on without the routes."""
    with pytest.raises(EngineUnavailableError, match="skipped prl's plugin") as caught:
        await create(fake(instance="None")).start()
    assert "line one of its log" in caught.value.what
    assert "VLLM_PLUGINS=prl" in caught.value.where
    assert "0.32" in caught.value.next_step


def test_an_interpreter_without_vllm_is_told_with_what_brings_it(fake: Any) -> None:
    wanted = fake(vllm=False)
    with pytest.raises(PluginError, match="needs vllm") as caught:
        find_interpreter(wanted)
    assert wanted.python in caught.value.where
    assert "pip install" in caught.value.next_step


async def test_a_plugin_that_is_not_beside_vllm_is_told_before_the_start(fake: Any) -> None:
    with pytest.raises(PluginError, match="not installed beside it"):
        await create(fake(plugin=False)).start()


async def test_a_server_that_ends_is_told_with_its_log(fake: Any) -> None:
    with pytest.raises(EngineUnavailableError, match="exit status 3") as caught:
        await create(fake(before="sys.exit(3)")).start()
    assert "line one of its log" in caught.value.what


async def test_a_server_that_is_up_but_cannot_sample_is_not_ready(fake: Any) -> None:
    """Some models load, and end the server at their first request."""
    with pytest.raises(EngineUnavailableError, match="cannot answer a request"):
        await create(fake(sampling=503)).start()


async def test_a_server_that_never_gets_ready_is_ended(fake: Any) -> None:
    slow = fake(before="time.sleep(60)").model_copy(update={"start_seconds": 0.3})
    with pytest.raises(EngineUnavailableError, match="not ready within"):
        await create(slow).start()


async def test_another_server_at_the_address_is_not_taken_for_ours(fake: Any) -> None:
    with pytest.raises(ConfigError, match="another server answers"):
        await create(fake(instance="'somebody else'")).start()


def test_a_taken_port_is_told(fake: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            VllmProcess(fake().model_copy(update={"port": port})).start(in_foreground=False)


LEAVES_A_SOCKET = "socket = os.environ['VLLM_RPC_BASE_PATH'] + '/socket'; open(socket, 'w'); print(socket, flush=True)"


@pytest.mark.parametrize("then", ["", "; sys.exit(3)"])
async def test_sockets_that_vllm_leaves_are_removed(fake: Any, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """It leaves some at every end, a clean one too: a machine's folder of temporary files would fill with them."""
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    engine = create(fake(before=LEAVES_A_SOCKET + then))
    if then:
        with pytest.raises(EngineUnavailableError, match="exit status 3"):
            await engine.start()
    else:
        await engine.start()
    _, left = Path(engine.options.log).read_text().splitlines()
    assert Path(left).exists() is (not then)
    await engine.stop()
    assert not Path(left).parent.exists()


@pytest.mark.parametrize(
    ("folder", "given"), [("/tmp/" + "long/" * 12, {}), ("/tmp", {"VLLM_RPC_BASE_PATH": "/tmp/mine"})]
)
def test_a_folder_for_sockets_is_made_where_none_is_given_and_its_path_is_short(
    fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str, given: dict[str, str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", folder)
    told = "print('in', os.environ.get('VLLM_RPC_BASE_PATH'), flush=True)"
    process = VllmProcess(fake(before=told).model_copy(update={"environment": given}))
    try:
        process.start(in_foreground=False)
        while not process.poll():
            time.sleep(0.05)
    finally:
        process.stop()
    assert f"in {given.get('VLLM_RPC_BASE_PATH')}" in (tmp_path / "log").read_text().splitlines()


@pytest.mark.parametrize(("model", "said"), [("/nowhere/model", "no model directory"), ("", "no config.json")])
def test_a_wrong_model_directory_is_told_before_the_start(fake: Any, tmp_path: Path, model: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    wrong = fake().model_copy(update={"model": model or str(tmp_path / "empty")})
    with pytest.raises(ConfigError, match=said):
        VllmProcess(wrong).start(in_foreground=False)


def test_a_server_that_ignores_being_asked_is_killed(fake: Any) -> None:
    stubborn = fake(before="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    process = VllmProcess(stubborn.model_copy(update={"stop_seconds": 0.5}))
    process.start(in_foreground=False)
    while not process.poll():
        time.sleep(0.05)
    started = time.monotonic()
    pid = process.pid
    process.stop()
    assert time.monotonic() - started < 5
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)  # type: ignore[arg-type]
