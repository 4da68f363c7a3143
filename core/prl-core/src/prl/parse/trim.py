"""Text that grows at its end while its edges are trimmed as a template trims them."""

from __future__ import annotations

from collections.abc import Callable

WHITE_SPACE = None
"""Strip any white space (the argument `None` of `str.strip`); "" strips nothing."""


class TrimmedText:
    """Collects text in any chunking. White space at the end is held back until what follows decides about it.

    `left` and `right` are the characters stripped from the start and the end, as for `str.strip`. `lead` is white space
    removed from the start once, where it stands.
    """

    __slots__ = ("_after_call", "_held", "_left", "_parts", "_right", "_started", "lead")

    def __init__(self, *, left: str | None, right: str | None) -> None:
        self._parts: list[str] = []
        self._held = ""
        self._left = left
        self._right = right
        self._started = left == ""
        self._after_call = False
        self.lead = ""

    @property
    def value(self) -> str:
        """The text so far, without what is held back."""
        return "".join(self._parts)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, text: str) -> str:
        """Take text; return what became certain."""
        if not self._started:
            text = text.lstrip(self._left)
            if not text:
                return ""
            self._started = True
        text = self._held + text
        body = text.rstrip()
        self._held = text[len(body) :]
        if body:
            self._after_call = False
            body = self._without_lead(body)
        return self._keep(body)

    def end(self, suffix: str = "", *, blank: bool = True) -> str:
        """End the text; return what was held back and belongs to it, without `suffix` (white space of the template).

        With `blank` false, white space alone is nothing.
        """
        held, self._held = self._without_lead(self._held), ""
        if not (blank or self._parts):
            return ""
        return "" if self._after_call else self._keep(held.removesuffix(suffix).rstrip(self._right))

    def before_call(self, trim: Callable[[str], str]) -> str:
        """End the text before a call.

        Remove the separator that a template writes there; return what remains certain.
        """
        held, self._held = self._without_lead(self._held), ""
        return "" if self._after_call else self._keep(trim(held).rstrip(self._right))

    def after_call(self) -> None:
        """Go on after a call: white space alone is a separator and will be dropped."""
        self._held = ""
        self._after_call = True
        if not self._parts:
            self.strip_left(WHITE_SPACE)

    def strip_left(self, characters: str | None) -> None:
        """Strip these characters from the start of what follows, if nothing was kept yet."""
        if characters == "" or self._parts:
            return
        self._left, self._started = characters, False
        self._held = ""

    def drop_space(self) -> None:
        """Forget white space held back."""
        self._held = ""

    def _without_lead(self, text: str) -> str:
        """Remove the lead, once."""
        if not self.lead:
            return text
        lead, self.lead = self.lead, ""
        return text.removeprefix(lead)

    def _keep(self, text: str) -> str:
        if text:
            self._parts.append(text)
        return text
