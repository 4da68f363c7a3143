"""What the operator of a gateway decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prl.types import ConfigError

from .sampling import FORCEABLE

SEPARATOR = ":"
"""What stands between a key and the name of a session in a bearer token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Limits, keys and the output of one gateway.

    `api_keys` are the keys of clients, beside those that `open_session` makes; `operator_key` opens `/v1/rollouts`.
    `sampling` forces fields of `SamplingParams` on every request. Sessions that nobody used for `idle_seconds` end, and
    are appended to `out`; without `out` they stay until they are closed or deleted. `max_request_bytes`,
    `max_messages`, `max_choices` and `max_sessions` bound what clients may send. A turn of more than `thread_above`
    characters is rendered and parsed off the event loop. Streams carry `stream_characters` of text an event. One whose
    answer is still being sampled after `keep_alive_seconds` begins with a comment, and sends one as often, so that no
    proxy closes it; until then errors are HTTP statuses, after it an event. A request that has not come in whole within
    `read_seconds` is refused, and a connection that says nothing for so long is closed.
    """

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    operator_key: str | None = field(default=None, repr=False)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_request_bytes: int = 32 << 20
    max_messages: int = 4096
    max_choices: int = 16
    max_sessions: int = 10_000
    idle_seconds: float = 3600.0
    out: Path | None = None
    thread_above: int = 20_000
    stream_characters: int = 24
    keep_alive_seconds: float = 30.0
    read_seconds: float = 120.0

    def __post_init__(self) -> None:
        for name in ("max_request_bytes", "max_messages", "max_choices", "max_sessions", "stream_characters"):
            if getattr(self, name) < 1:
                raise _wrong(f"{name} is {getattr(self, name)}", f"set {name} to 1 or more")
        for name in ("idle_seconds", "keep_alive_seconds", "read_seconds"):
            if not getattr(self, name) > 0:
                raise _wrong(f"{name} is {getattr(self, name)}", "set it to more than 0")
        unknown = sorted(set(self.sampling) - set(FORCEABLE))
        if unknown:
            raise _wrong(f"sampling cannot force {', '.join(unknown)}", f"it can force {', '.join(FORCEABLE)}")
        self._check_keys()

    def _check_keys(self) -> None:
        keys = [*self.api_keys, *([self.operator_key] if self.operator_key is not None else [])]
        if any(not key or SEPARATOR in key or key != key.strip() for key in keys):
            raise _wrong(f"a key is empty, or holds blanks or {SEPARATOR!r}", "use keys of letters, digits and -_.")
        if len(set(keys)) != len(keys):
            raise _wrong("two keys are the same", "give every client, and the operator, a key of its own")


def _wrong(what: str, next_step: str) -> ConfigError:
    return ConfigError(what, where="settings of the gateway", next_step=next_step)
