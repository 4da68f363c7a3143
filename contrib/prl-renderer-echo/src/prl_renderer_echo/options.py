"""The options of the echo renderer."""

from __future__ import annotations

from prl.render import RendererOptions


class EchoOptions(RendererOptions):
    """Options of the echo format.

    default_system: a system message for conversations that begin without one; None writes none.
    """

    default_system: str | None = None
