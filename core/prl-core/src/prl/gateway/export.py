"""Recorded sessions as rollouts: one JSON object each, and the file that they are appended to."""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from prl.durable import append, cut_torn_line, start_of_last_line
from prl.trajectory import interleave_rollout
from prl.types import ConfigError, PrlError, Rollout, Turn

from .session import GatewaySession

_ID = re.compile(rb'\{"trajectory_id":"(\w+)"')
Decode = Callable[[list[int]], str]


def session_rollout(session: GatewaySession) -> Rollout:
    """Return a session as a rollout without a reward: nobody has judged it."""
    return Rollout(
        trajectory_id=session.id,
        turns=session.turns,
        reward=0.0,
        environment="gateway",
        example_id=session.name,
        messages=session.messages,
    )


def rollout_record(session: GatewaySession, *, model: str, renderer: str, decode: Decode | None) -> dict[str, Any]:
    """Return what is written of a session: its turns with exact ids, its samples, each break with its cause.

    Turns that make no samples are written all the same, with the reason as `error`.
    """
    rollout = session_rollout(session)
    return {
        "trajectory_id": rollout.trajectory_id,
        "session": session.name,
        "model": model,
        "renderer": renderer,
        "started": session.created,
        "written": time.time(),
        **_samples(rollout, decode),
        "messages": list(rollout.messages),
        "tools": session.tools,
        "turns": [_turn_record(turn) for turn in rollout.turns],
    }


def summary(session: GatewaySession) -> dict[str, Any]:
    """Return one line of the list of sessions."""
    return {
        "trajectory_id": session.id,
        "session": session.name,
        "started": session.created,
        "turns": len(session.turns),
        "messages": len(session.messages),
    }


def _samples(rollout: Rollout, decode: Decode | None) -> dict[str, Any]:
    try:
        result = interleave_rollout(rollout, decode=decode)
    except PrlError as error:
        return {"samples_per_rollout": None, "breaks": [], "warnings": [], "error": str(error)}
    breaks = [{"turn": one.turn, "cause": str(one.cause), "position": one.position} for one in result.breaks]
    return {"samples_per_rollout": len(result.samples), "breaks": breaks, "warnings": result.warnings}


def _turn_record(turn: Turn) -> dict[str, Any]:
    record = {
        "prompt_ids": list(turn.prompt_ids),
        "completion_ids": turn.completion_ids,
        "logprobs": turn.logprobs,
        "finish_reason": turn.finish_reason,
        "weight_version": turn.weight_version,
        "temperature": turn.temperature,
        "message": turn.message,
    }
    return record if turn.routed_experts is None else {**record, "routed_experts": turn.routed_experts}


class RolloutFile:
    """A JSONL file that only whole lines are appended to, by one writer.

    A line that was cut off by a crash is moved to `FILE.partial`, so that the file can be read to its end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path)
            cut_torn_line(path, keep=path.with_name(f"{path.name}.partial"))
        except OSError as error:
            raise _unwritable(path, error) from error

    def close(self) -> None:
        """Let another writer have the file."""
        self._lock.close()

    def append(self, record: dict[str, Any]) -> None:
        """Append one line, or nothing. Raise `ConfigError` where it fails."""
        try:
            append(self.path, msgspec.json.encode(record) + b"\n")
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def last_id(self) -> str | None:
        """Return the id of the rollout that was written last."""
        start = _ID.match(start_of_last_line(self.path, 256))
        return start[1].decode() if start else None


def _locked(path: Path) -> BinaryIO:
    """Open a file that nobody else has opened so: another's half-written line would be taken for one cut off."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError(
            "another gateway writes its rollouts to this file",
            where=str(path),
            next_step="give each gateway a file of its own with --out",
        ) from error
    return file


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"rollouts cannot be written: {error.strerror or error}",
        where=str(path),
        next_step="make room, or give another file with --out; what could not be written is kept and tried again",
    )
