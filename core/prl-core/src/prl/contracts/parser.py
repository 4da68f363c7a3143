"""Tool-call and reasoning codecs: both directions in one object, so that they cannot diverge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from prl.types import ToolSpec


class PieceWriter(Protocol):
    """Where a family or a codec writes its pieces."""

    def control(self, token: str) -> None:
        """Write one control token."""
        ...

    def text(self, text: str) -> None:
        """Write the template's own text; control tokens spelled in it are what the template makes of them."""
        ...

    def content(self, text: str) -> None:
        """Write a message's own text, under the control-token policy of its role."""
        ...

    def value(self, text: str) -> None:
        """Write another text of the caller's (a call's name or arguments) under the same policy.

        Not counted as content.
        """
        ...


class CallView(NamedTuple):
    """One call to write. `arguments` is a mapping, or the caller's JSON string verbatim."""

    name: str
    arguments: dict[str, Any] | str
    id: str | None = None


class ReadCall(NamedTuple):
    """One call read from text: `arguments` is None and `error` says why where it is malformed; `raw` is its text."""

    raw: str
    name: str = ""
    arguments: dict[str, Any] | None = None
    error: str = ""
    id: str | None = None


@runtime_checkable
class ToolCodec(Protocol):
    """One tool-call format.

    A region is the text between `open` and `close` (control tokens, or plain text where the vocabulary lacks them),
    with control tokens inside it spelled out. A codec may also have `spellings`, a mapping from other texts that models
    write for the markers to whether they open (True) or close (False) a region.
    A codec whose markers are also ordinary text has `is_call(region) -> bool`: what is no call stays content, and in
    reasoning its markers mean nothing.
    A codec whose calls look whole at any argument's end has `needs_close = True`: a region without `close` is cut off.
    """

    open: str
    close: str

    def write(self, out: PieceWriter, calls: Sequence[CallView], *, after_text: bool) -> None:
        """Write all calls of one turn, markers included; `after_text` says whether content stands before them."""
        ...

    def read(self, region: str, tools: Sequence[ToolSpec] | None) -> list[ReadCall]:
        """Read the calls of one region, at least one; never raises. Types of untyped values follow the tool's schema.

        A region that is cut off is one call with an error.
        """
        ...

    def is_inside_value(self, region: str) -> bool:
        """Whether a marker after this malformed region may be part of a value, such as an open string."""
        ...

    def trim_before(self, space: str) -> str:
        """Remove from `space`, the white space that ends the content, what `write` puts before the first call."""
        ...


@runtime_checkable
class ReasoningCodec(Protocol):
    """How a format marks reasoning.

    `open` and `close` are the markers; `after_open`, `before_close` and `after_close` the white space a template
    writes around them; `strip` the characters that a template strips from both ends of reasoning, `content_strip`
    those it strips from the start of content that follows reasoning (None: any white space, "": nothing but what the
    template itself writes there, once).
    """

    open: str
    close: str
    after_open: str
    before_close: str
    after_close: str
    strip: str | None
    content_strip: str | None
