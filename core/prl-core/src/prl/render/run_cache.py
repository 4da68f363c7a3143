"""Encoded runs by text: the same system prompts, tools and framing come again in every rollout."""

from __future__ import annotations

import threading
from collections.abc import Sequence

_CACHE_CHARS = 8_000_000

Ids = list[int]


class RunCache(dict[str, Ids | None]):
    """Encoded runs by text, bounded by characters: two generations, the older one dropped as a whole.

    `cache[text]` is one dictionary look-up for a text of the young generation, None for an unknown one. Callers never
    change the ids.
    """

    def __init__(self, max_chars: int = _CACHE_CHARS) -> None:
        super().__init__()
        self._half = max_chars // 2
        self._old: dict[str, Ids | None] = {}
        self._chars = 0
        self._lock = threading.Lock()

    def __missing__(self, text: str) -> Ids | None:
        if not self._old:
            return None
        ids = self._old.get(text)
        if ids is not None:
            self.put(text, ids)
        return ids

    def put(self, text: str, ids: Ids) -> None:
        """Keep the ids of a text."""
        self.put_all((text,), (ids,))

    def put_all(self, texts: Sequence[str], encoded: Sequence[Ids]) -> None:
        """Keep the ids of several texts."""
        chars = sum(map(len, texts))
        with self._lock:
            if self._chars + chars > self._half:
                self._old, self._chars = dict(self), 0
                self.clear()
            self.update(zip(texts, encoded, strict=True))
            self._chars += chars
