"""Engine clients of this process, by key: a worker made from JSON settings finds the one that lives beside it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from prl.contracts import EngineClient

_clients: dict[str, EngineClient] = {}


@contextmanager
def share_engine(engine: EngineClient) -> Iterator[str]:
    """Yield a key under which workers of this process find the client, until the context ends."""
    key = secrets.token_hex(8)
    _clients[key] = engine
    try:
        yield key
    finally:
        del _clients[key]


def shared_engine(key: str) -> EngineClient | None:
    """Return the client of a key; None where the key is another process's."""
    return _clients.get(key)
