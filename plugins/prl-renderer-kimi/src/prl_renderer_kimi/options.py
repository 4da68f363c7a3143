"""Options of the Kimi renderers; each field is a keyword of the vendor's template or one of core's."""

from __future__ import annotations

from typing import Literal

from prl.render import RendererOptions


class KimiOptions(RendererOptions):
    """Options of all Kimi renderers; the templates of Kimi K2 and K2-Thinking take no keyword.

    call_ids: "template" writes call ids as they are, though a call has its function's name nowhere else. "named" writes
        `functions.NAME:INDEX` for ids that do not name their function, before the results too; INDEX counts calls.
    """

    call_ids: Literal["template", "named"] = "template"


class Kimi25Options(KimiOptions):
    """Options of Kimi K2.5.

    thinking: the template's keyword. False empties every think block, also that of the generation prompt; None leaves
        it undefined, which means True.
    """

    thinking: bool | None = None


class Kimi26Options(Kimi25Options):
    """Options of Kimi K2.6.

    preserve_thinking: keep the reasoning of all past turns (the template's keyword).
    """

    preserve_thinking: bool = False
