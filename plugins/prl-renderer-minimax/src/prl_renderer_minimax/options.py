"""Options of the MiniMax renderers; each field is a keyword of the vendor's template or one of core's."""

from __future__ import annotations

from prl.render import RendererOptions


class MiniMaxOptions(RendererOptions):
    """Options of MiniMax-M2 and its successors.

    model_identity: what the system turn says where the caller sends no system message, or a blank one; None is the
        version's own sentence.
    """

    model_identity: str | None = None
