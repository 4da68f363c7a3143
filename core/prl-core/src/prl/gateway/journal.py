"""What keeps open sessions through a crash: one file for each, with a line for each request that was answered.

The file is written before the answer goes out, and removed when the session's rollout is a line of the export. So there
is never more than what is open, nothing has to be compacted, and no session's file can harm another's. A line holds
only what its turns add to the turn they go on from.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from prl.durable import append, cut_torn_line, remove
from prl.types import ConfigError, ParsedResponse

from .faults import GatewayFault
from .sampler import Sampling

WRITERS = 8
"""Threads that wait for the disk: their own, so that a slow disk holds up nobody who renders."""
MODE = 0o600
FORMAT = 1
"""What lines mean; counted up when a gateway would read older ones wrongly."""
Result = TypeVar("Result")


class Head(msgspec.Struct, kw_only=True, omit_defaults=True, tag="head", tag_field="line"):
    """Who a session is: `key` (its digest) and `name` open it; `own` is how it is sampled, where the key is its own."""

    format: int
    id: str
    key: bytes
    name: str
    started: float
    model: str
    renderer: str
    own: Sampling | None = None


class SampledChoice(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What was sampled, and how it was read; of the routing rows those behind the first `rows_kept` of the base."""

    completion_ids: list[int]
    logprobs: list[float] | None
    finish_reason: str
    parsed: ParsedResponse
    rows_kept: int = 0
    rows: list[Any] | None = None


class Sampled(msgspec.Struct, kw_only=True, omit_defaults=True, tag="sampled", tag_field="line"):
    """One answered request: request `number` of its session, which went on from turn `base`.

    The prompt is the first `kept` ids of the base's prompt and completion, then `prompt_ids`; the conversation is the
    base's, then `messages`, and `key` is its key. `tools` are given where they are not those of the line before.
    `name` and `fingerprint` are the request's, for its retries.
    """

    number: int
    prompt_ids: list[int]
    messages: list[dict[str, Any]]
    key: bytes
    choices: list[SampledChoice]
    weight_version: int
    name: bytes
    fingerprint: bytes
    base: int | None = None
    kept: int = 0
    tools: list[Any] | msgspec.UnsetType | None = msgspec.UNSET
    temperature: float = 1.0
    may_call: bool = True
    with_usage: bool = False
    with_logprobs: bool = False


class Delivered(msgspec.Struct, kw_only=True, tag="delivered", tag_field="line"):
    """The answer to a request went out whole."""

    name: bytes


Line = Head | Sampled | Delivered
_decode = msgspec.json.Decoder(Line).decode


class SessionFile:
    """One session's file; it exists from the first answered request on. One writer at a time."""

    def __init__(self, path: Path, head: Head, threads: ThreadPoolExecutor, *, exists: bool = False) -> None:
        self.head = head
        self._path = path
        self._threads = threads
        self._exists = exists

    async def sampled(self, make: Callable[[], Sampled]) -> None:
        """Write a request down; raise `GatewayFault` (503) where that fails, and leave nothing of it."""
        try:
            await self._run(lambda: self._append(make()))
        except OSError as error:
            raise GatewayFault(
                f"the answer cannot be recorded: {error.strerror or error}",
                status=503,
                fault="not_recorded",
                next_step="try again later; the operator has to make room",
            ) from error

    async def delivered(self, name: bytes) -> None:
        """Note that an answer went out. It may be lost: then a repeated request gets that answer once more."""
        with contextlib.suppress(OSError):
            await self._run(lambda: append(self._path, _line(Delivered(name=name)), mode=MODE, sync=False))

    def remove(self) -> None:
        """Forget the session: its rollout stands in the export. Raise `ConfigError` where its file stays."""
        try:
            remove(self._path)
        except OSError as error:
            raise ConfigError(
                f"a session that was written is still kept as open: {error.strerror or error}",
                where=str(self._path),
                next_step="remove this file, or the next gateway writes its rollout again",
            ) from error

    def _append(self, entry: Sampled) -> None:
        head = b"" if self._exists else _line(self.head)
        try:
            append(self._path, head + _line(entry), mode=MODE)
        except OSError:
            if not self._exists:
                remove(self._path)
            raise
        self._exists = True

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class Journal:
    """The folder of the open sessions' files; its user holds the lock of the export beside it."""

    def __init__(self, export: Path, *, model: str, renderer: str) -> None:
        self.folder = export.with_name(f"{export.name}.open")
        self._model = model
        self._renderer = renderer
        self._threads = ThreadPoolExecutor(WRITERS, thread_name_prefix="prl-gateway-journal")
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"open sessions cannot be written: {error.strerror or error}",
                where=str(self.folder),
                next_step="give another file with --out",
            ) from error

    def file(self, head: Head) -> SessionFile:
        """Return the file of a new session."""
        return SessionFile(self.folder / f"{head.id}.jsonl", head, self._threads)

    def read(self) -> list[tuple[SessionFile, list[Sampled | Delivered]]]:
        """Return what an earlier process left open, the oldest first. A line that a crash cut off is taken off.

        Raises `ConfigError` for a file that cannot be read, or that is of another model or renderer.
        """
        found = [self._read(path) for path in self.folder.glob("*.jsonl")]
        return sorted((one for one in found if one is not None), key=lambda one: one[0].head.started)

    def close(self) -> None:
        """Stop writing; remove the folder where nothing is open."""
        self._threads.shutdown()
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _read(self, path: Path) -> tuple[SessionFile, list[Sampled | Delivered]] | None:
        try:
            cut_torn_line(path)  # its answer never went out
            lines = [_decode(line) for line in path.read_bytes().split(b"\n")[:-1]]
        except (msgspec.MsgspecError, ValueError, OSError) as error:
            raise self._unreadable(path, f"the open session cannot be read: {error}") from error
        if not any(isinstance(line, Sampled) for line in lines):
            remove(path)
            return None
        head, *entries = lines
        if not isinstance(head, Head):
            raise self._unreadable(path, "the open session has no head")
        if head.format != FORMAT:
            raise self._unreadable(path, f"an open session is written in format {head.format}, not {FORMAT}")
        self._check(head, path)
        file = SessionFile(path, head, self._threads, exists=True)
        return file, [entry for entry in entries if not isinstance(entry, Head)]

    def _check(self, head: Head, path: Path) -> None:
        theirs, ours = (head.model, head.renderer), (self._model, self._renderer)
        if theirs != ours:
            raise self._unreadable(
                path, "an open session is of model {!r} and renderer {!r}, not {!r} and {!r}".format(*theirs, *ours)
            )

    def _unreadable(self, path: Path, what: str) -> ConfigError:
        return ConfigError(
            what,
            where=str(path),
            next_step="start the gateway once as it ran before, and stop it: that ends open sessions and writes them; "
            f"or give another file with --out; or move {self.folder} away",
        )


def _line(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"
