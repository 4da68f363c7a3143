"""The writer: a format's pieces, with owner, kind and control-token policy, in the order they were written."""

from __future__ import annotations

import re
from collections.abc import Mapping

from prl.render.conversation import MessageView, bad_message
from prl.types import NO_MESSAGE, Kind

_UNTRUSTED = frozenset({"user", "tool"})
_SCAFFOLD, _CONTENT, _SAMPLED = int(Kind.SCAFFOLD), int(Kind.CONTENT), int(Kind.SAMPLED)


Piece = tuple[int, str, int, int, bool]
"""One emitted unit: (control, text, owner, kind, literal).

A control token has its id as `control`; text has -1, and where it is `literal` it never yields a control id. A plain
tuple: one with names takes three times as long to make, and a render makes thousands.
"""


class Writer:
    """Collects pieces. One writer writes one conversation."""

    __slots__ = ("_controls", "_kind", "_literal", "_owner", "_pattern", "_policy", "_refuses", "_role", "pieces")

    def __init__(self, controls: Mapping[str, int], policy: str | None, pattern: re.Pattern[str] | None) -> None:
        self.pieces: list[Piece] = []
        self._controls = controls
        self._policy = policy
        self._pattern = pattern
        self._refuses = policy == "error"
        self._owner = NO_MESSAGE
        self._role = ""
        self._kind = _SCAFFOLD
        self._literal = False

    def begin(self, message: MessageView | None) -> None:
        """Attribute what follows to a message (None: to no message), as scaffold."""
        self._owner = NO_MESSAGE if message is None else message.index
        self._role = "" if message is None else message.role
        self._kind = _SCAFFOLD
        self._literal = self._policy == "literal" if self._policy else self._role in _UNTRUSTED

    def begin_sampled(self) -> None:
        """What follows is what the model samples."""
        self._kind = _SAMPLED

    def end_sampled(self) -> None:
        """What follows is scaffold again."""
        self._kind = _SCAFFOLD

    def control(self, token: str) -> None:
        """Write one control token."""
        self.pieces.append((self._controls[token], token, self._owner, self._kind, False))

    def text(self, text: str) -> None:
        """Write the template's own text.

        Control tokens spelled in it become what the vendor's tokenizer makes of them.
        """
        self._add(text, self._kind, False)

    def content(self, text: str) -> None:
        """Write a message's own text under the control-token policy of its role."""
        if self._refuses:
            self._check(text)
        self._add(text, self._kind | _CONTENT, self._literal)

    def value(self, text: str) -> None:
        """Write another text of the caller's (a call's name or arguments) under the same policy.

        Not counted as content.
        """
        if self._refuses:
            self._check(text)
        self._add(text, self._kind, self._literal)

    def _add(self, text: str, kind: int, literal: bool) -> None:
        """Add text, to the last piece where that has the same owner, kind and policy."""
        if not text:
            return
        pieces = self.pieces
        if pieces:
            control, before, owner, last_kind, last_literal = pieces[-1]
            if control < 0 and last_kind == kind and owner == self._owner and last_literal is literal:
                pieces[-1] = (-1, before + text, owner, kind, literal)
                return
        pieces.append((-1, text, self._owner, kind, literal))

    def _check(self, text: str) -> None:
        found = self._pattern.search(text) if self._pattern is not None else None
        if found:
            raise bad_message(
                self._owner,
                f"spells the control token {found.group()!r} in its {self._role} text",
                "remove it, or set content_tokens to 'literal' (text stays text) or 'template' (as the vendor)",
            )
