"""Options of the Nemotron renderers; each field is a keyword of the vendor's template or one of core's."""

from __future__ import annotations

from prl.render import RendererOptions


class NemotronOptions(RendererOptions):
    """Options of Nemotron-3 Nano and Nemotron-3.5.

    enable_thinking: the template's keyword; False gives the generation prompt an empty think block.
    truncate_history_thinking: the template's keyword; False keeps the reasoning of turns before the last user message.
    """

    enable_thinking: bool = True
    truncate_history_thinking: bool = True


class NemotronSuperOptions(NemotronOptions):
    """Options of Nemotron-3 Super.

    low_effort: the template's keyword; asks for little reasoning behind the last user message.
    """

    low_effort: bool = False


class NemotronUltraOptions(NemotronOptions):
    """Options of Nemotron-3 Ultra.

    medium_effort: the template's keyword; asks for efficient reasoning behind the last user message.
    """

    medium_effort: bool = False
