"""JSON as programs write it that cut texts anywhere."""

from __future__ import annotations

import re

_ESCAPE = re.compile(
    rb"\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def mend_surrogates(raw: bytes) -> bytes:
    """Return JSON text whose halves of surrogate pairs are U+FFFD, which UTF-8 can write and tokenizers can read."""
    if b"\\ud" not in raw and b"\\uD" not in raw:
        return raw
    return _ESCAPE.sub(lambda escape: rb"\ufffd" if escape[1] else escape[0], raw)
