"""vLLM's server as a child process: started, watched until its routes answer, and ended with all its own children."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import IO

from prl.types import ConfigError, EngineUnavailableError

from .launch import INSTANCE, Interpreter, command, environment, find_interpreter
from .options import VllmEngineOptions
from .sockets import VARIABLE, make_folder, remove_folder

POLL_SECONDS = 0.25
PROBE_SECONDS = 5.0
PROBE_PROMPT = 8  # tokens
TOLD_LINES = 15
TOLD_BYTES = 8000


class VllmProcess:
    """One server. `start` spawns it, `poll` says whether it is ready, `stop` ends it."""

    def __init__(self, options: VllmEngineOptions) -> None:
        self.options = options
        self.port = options.port
        self.log: Path | None = None
        self._instance = uuid.uuid4().hex
        self._child: subprocess.Popen[bytes] | None = None
        self._deadline = 0.0

    @property
    def url(self) -> str:
        """The server's address, as this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.options.host, self.options.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def start(self, *, in_foreground: bool) -> None:
        """Spawn the server; raise `ConfigError` or `PluginError` where that cannot work."""
        interpreter = find_interpreter(self.options)
        _check_model(self.options.model)
        self.port = _free_port(self.options.host, self.options.port)
        with self._output(in_foreground) as out:
            self._spawn(interpreter, out)
        self._deadline = time.monotonic() + self.options.start_seconds

    def _output(self, in_foreground: bool) -> IO[bytes]:
        if self.options.log is not None:
            self.log = Path(self.options.log)
        elif in_foreground:
            return os.fdopen(os.dup(2), "wb")
        else:
            number, name = tempfile.mkstemp(prefix="prl-vllm-", suffix=".log")
            os.close(number)
            self.log = Path(name)
        try:
            return self.log.open("wb")
        except OSError as error:
            raise ConfigError(
                f"the log cannot be written: {error}", where="[engine.options] log", next_step="give another file"
            ) from error

    def _spawn(self, interpreter: Interpreter, out: IO[bytes]) -> None:
        variables = environment(self.options, interpreter, self._instance)
        if VARIABLE not in variables and (folder := make_folder(self._instance)) is not None:
            variables[VARIABLE] = str(folder)
        self._child = subprocess.Popen(
            command(self.options, interpreter.path, self.port),
            # A pipe that closes with this process, however it ends: the server then ends too.
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            env=variables,
            start_new_session=True,
        )

    @property
    def pid(self) -> int | None:
        """The server's process id, None before `start`."""
        return None if self._child is None else self._child.pid

    def poll(self) -> bool:
        """Say whether the server and prl's routes are ready; raise where they will never be."""
        self.check_alive()
        status, _ = _ask(self.url, "GET", "/health")
        if status is None or status == 503:
            if time.monotonic() > self._deadline:
                raise EngineUnavailableError(
                    f"vLLM was not ready within {self.options.start_seconds:.0f} s{self._tail()}",
                    where=self._where(),
                    next_step="read its log, or raise start_seconds",
                )
            return False
        self._check_routes()
        self._sample_one()
        return True

    def check_alive(self) -> None:
        """Raise `EngineUnavailableError`, with the end of the log, where the server has ended."""
        code = None if self._child is None else self._child.poll()
        if code is not None:
            raise EngineUnavailableError(
                f"vLLM's server ended with exit status {code}{self._tail()}",
                where=self._where(),
                next_step="read its output, and correct the options",
            )

    def _check_routes(self) -> None:
        """Raise where vLLM answers without the plugin: it only logs a plugin that it skipped, and serves on."""
        status, body = _ask(self.url, "GET", "/v1/engine")
        if status == 200 and body.get("instance") == self._instance:
            return
        if status == 200:
            raise ConfigError(
                "another server answers at this address",
                where=f"{self.url}; vLLM was to listen there",
                next_step="choose a free port, or end the program that uses this one",
            )
        raise EngineUnavailableError(
            f"vLLM serves, but skipped prl's plugin (GET /v1/engine answers {status}){self._tail()}",
            where=f"{self._where()}; {INSTANCE} and VLLM_PLUGINS=prl were set",
            next_step="look for 'plugin' in its log; vLLM 0.32 or newer is needed, and prl-engine-vllm beside it",
        )

    def _sample_one(self) -> None:
        """Sample one token: what the server cannot compute at all would otherwise end it at the first real request."""
        body = {"model": self.options.name, "prompt_token_ids": [0] * PROBE_PROMPT, "max_tokens": 1}
        status, answer = _ask(
            self.url, "POST", "/v1/generate", body, seconds=max(1.0, self._deadline - time.monotonic())
        )
        if status == 200:
            return
        self.check_alive()
        raise EngineUnavailableError(
            f"vLLM cannot answer a request (POST /v1/generate answers {status}: {answer.get('error')}){self._tail()}",
            where=self._where(),
            next_step="read its log: the model or the options do not suit this machine",
        )

    def stop(self) -> None:
        """Ask the server to end, then kill it and whatever it started; remove its sockets."""
        child, self._child = self._child, None
        if child is not None:
            self._end(child)
        remove_folder(self._instance)

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        if child.stdin is not None:
            child.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(self.options.stop_seconds)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def _where(self) -> str:
        log = f", log {self.log}" if self.log is not None else ""
        return f"vLLM for {self.options.model!r} at {self.url}{log}"

    def _tail(self) -> str:
        if self.log is None:
            return ""
        lines = self.log.read_bytes()[-TOLD_BYTES:].decode(errors="replace").splitlines()[-TOLD_LINES:]
        return "; its log ends:\n    " + "\n    ".join(lines) if lines else "; it wrote no log"


def _check_model(model: str) -> None:
    path = Path(model)
    looks_local = path.is_absolute() or model.startswith((".", "~"))
    if path.is_dir() and not (path / "config.json").is_file():
        what = f"{model!r} holds no config.json, so it is no model directory"
    elif looks_local and not path.exists():
        what = f"no model directory {model!r}"
    else:
        return
    raise ConfigError(
        what, where="[engine.options] model", next_step="give the directory that save_pretrained wrote, or a hub id"
    )


def _free_port(host: str, port: int) -> int:
    """Return the port, or a free one for 0; raise `ConfigError` where another program listens there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"the server cannot listen on {host}:{port}: {error}",
                where="[engine.options] host and port",
                next_step="choose a free port, or end the program that uses this one",
            ) from error
        return int(probe.getsockname()[1])


def _ask(
    url: str, method: str, path: str, body: object = None, seconds: float = PROBE_SECONDS
) -> tuple[int | None, dict[str, object]]:
    """Return (status, JSON object) of an answer; (None, {}) where none comes."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=seconds)
    try:
        connection.request(method, path, body=None if body is None else json.dumps(body))
        answer = connection.getresponse()
        found = json.loads(answer.read() or b"{}")
    except (OSError, http.client.HTTPException):
        return None, {}
    except ValueError:
        return answer.status, {}
    finally:
        connection.close()
    return answer.status, found if isinstance(found, dict) else {}
