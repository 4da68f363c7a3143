"""Load light plugin modules in a child process under a time limit, so that one that hangs or crashes is only a row."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, Any

from .discovery import FoundPlugin
from .kinds import record_types
from .records import Record
from .state import Outcome, Status

DEFAULT_LIMIT_S = 10.0
_START_LIMIT_S = 60.0
# -P keeps the working directory off the path, so that a folder named `prl` there is not taken for the package.
_BOOTSTRAP = """
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request["path"]
from prl.plugin.probe_child import main
main(request)
"""


def probe_plugins(plugins: Sequence[FoundPlugin], limit_s: float = DEFAULT_LIMIT_S) -> list[Outcome]:
    """Load plugins outside this process, one after the other, each for at most `limit_s` seconds.

    One child serves them all; after a plugin that hung or ended the child, the rest get a new one.
    """
    outcomes: list[Outcome] = []
    while len(outcomes) < len(plugins):
        outcomes += _one_child(plugins[len(outcomes) :], limit_s)
    return outcomes


def no_load(plugins: Sequence[FoundPlugin]) -> list[Outcome]:
    """Load nothing: every plugin stays `found` (`prl plugins list --no-load`)."""
    return [Outcome(status=Status.FOUND) for _ in plugins]


def _one_child(plugins: Sequence[FoundPlugin], limit_s: float) -> list[Outcome]:
    """Return outcomes for the first plugins: all of them, or up to and including the one that broke off."""
    read_end, write_end = os.pipe()
    with tempfile.TemporaryFile() as errors, os.fdopen(read_end, "rb", buffering=0) as reports:
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOTSTRAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(write_end,),
            start_new_session=True,
        )
        os.close(write_end)
        try:
            _send(child, {"path": sys.path, "report": write_end, "plugins": [asdict(plugin) for plugin in plugins]})
            return _collect(child, _Lines(reports), plugins, limit_s, errors)
        finally:
            _end(child)


def _send(child: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # a child that died already is told by its exit code
        child.stdin.write(json.dumps(request).encode("utf-8"))
        child.stdin.close()


def _collect(
    child: subprocess.Popen[bytes], lines: _Lines, plugins: Sequence[FoundPlugin], limit_s: float, errors: IO[bytes]
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    ready = lines.next(_START_LIMIT_S)
    for plugin in plugins:
        line = lines.next(limit_s) if ready else ready
        if line is None:
            seconds = limit_s if ready else _START_LIMIT_S
            return [*outcomes, _broke_off(plugin, f"it did not load within {seconds:g} s")]
        if not line:
            return [*outcomes, _broke_off(plugin, _exit_text(child), _tail(errors))]
        outcomes.append(_outcome_from(json.loads(line)))
    return outcomes


class _Lines:
    """Lines from a pipe, each under its own time limit."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._buffer = b""

    def next(self, limit_s: float) -> bytes | None:
        """Return the next line, nothing (`b""`) at the end of the stream, or None when the time is up."""
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._source, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                chunk = self._source.read(1 << 16)
                if not chunk:
                    return b""
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the child and all that it started: it leads a session of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _exit_text(child: subprocess.Popen[bytes]) -> str:
    code = child.wait()
    if code < 0:
        return f"it ended the process with signal {signal.Signals(-code).name}"
    return f"it ended the process with exit code {code}"


def _tail(errors: IO[bytes]) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - 4000))
    return errors.read().decode("utf-8", errors="replace")


def _broke_off(plugin: FoundPlugin, error: str, traceback: str = "") -> Outcome:
    return Outcome(
        status=Status.ERROR,
        error=f"importing {plugin.value}: {error}",
        where=plugin.origin,
        next_step=f"Update or uninstall {plugin.dist}, or set PRL_DISABLE_PLUGINS={plugin.name}.",
        traceback=traceback,
    )


def outcome_to_dict(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON-ready data; the exception object stays behind, its text does not."""
    return {
        "status": outcome.status.value,
        "error": outcome.error,
        "where": outcome.where,
        "next_step": outcome.next_step,
        "traceback": outcome.traceback,
        "records": [{"kind": record.kind, **asdict(record)} for record in outcome.records],
        "claimed": [list(pair) for pair in outcome.claimed],
    }


def _outcome_from(data: dict[str, Any]) -> Outcome:
    return Outcome(
        status=Status(data.pop("status")),
        records=tuple(_record_from(record) for record in data.pop("records")),
        claimed=tuple((kind, name) for kind, name in data.pop("claimed")),
        **data,
    )


def _record_from(data: dict[str, Any]) -> Record:
    record_type: Any = record_types()[data.pop("kind")]
    record: Record = record_type(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    )
    return record
