"""Reasoning between two markers, the form that nearly every family uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TaggedReasoning:
    r"""Reasoning between `open` and `close`, by default `<think>\n...\n</think>\n\n` with line feeds stripped.

    The fields are those of `prl.contracts.ReasoningCodec`.
    """

    open: str = "<think>"
    close: str = "</think>"
    after_open: str = "\n"
    before_close: str = "\n"
    after_close: str = "\n\n"
    strip: str | None = "\n"
    content_strip: str | None = "\n"
