"""Where strings and brackets open and close in Python text that need not be whole."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\"\"\"|'''|\\.|[\"'()\[\]{},]", re.DOTALL)
_OPENERS = "([{"
_CLOSERS = {")": "(", "]": "[", "}": "{"}


class Scan:
    """One pass over a text: the brackets and the string that are open at its end, and the commas outside of all."""

    def __init__(self, text: str) -> None:
        self.open: list[str] = []
        self.quote = ""
        self.commas: list[int] = []
        for match in _TOKEN.finditer(text):
            self._take(match.group(), match.start())

    def _take(self, token: str, position: int) -> None:
        if self.quote:
            if token == self.quote or (len(token) == 3 and token[0] == self.quote):
                self.quote = ""
        elif token[0] in "\"'":
            self.quote = token
        elif token in _OPENERS:
            self.open.append(token)
        elif token in _CLOSERS:
            if self.open and self.open[-1] == _CLOSERS[token]:
                self.open.pop()
        elif token == "," and not self.open:
            self.commas.append(position)


def is_open(text: str) -> bool:
    """Whether a string or a bracket is open at the end of a text."""
    scan = Scan(text)
    return bool(scan.quote or scan.open)


def split_calls(text: str) -> list[str]:
    """Return what stands between the commas outside of strings and brackets, without blanks around it."""
    commas = Scan(text).commas
    starts, ends = [0, *(comma + 1 for comma in commas)], [*commas, len(text)]
    parts = [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]
    return parts[:-1] if len(parts) > 1 and not parts[-1] else [part for part in parts if part or len(parts) > 1]
