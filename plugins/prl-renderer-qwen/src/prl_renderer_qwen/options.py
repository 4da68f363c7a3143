"""Options of the Qwen renderers; each field is a keyword of the vendor's template or one of core's."""

from __future__ import annotations

from typing import Literal

from prl.render import RendererOptions


class QwenOptions(RendererOptions):
    """Options of renderers whose template takes no keyword (Qwen3-2507)."""


class QwenThinkingOptions(QwenOptions):
    """Options of the hybrid renderers.

    enable_thinking: the template's keyword; None leaves it undefined, as a caller who does not pass it.
    """

    enable_thinking: bool | None = None


class QwenVisionOptions(QwenOptions):
    """Options of Qwen3-VL.

    add_vision_id: number images and videos ("Picture 1: "), the template's keyword.
    """

    add_vision_id: bool = False


class Qwen35Options(QwenThinkingOptions):
    """Options of Qwen3.5, which takes text, images and videos."""

    add_vision_id: bool = False


class Qwen36Options(Qwen35Options):
    """Options of Qwen3.6.

    preserve_thinking: keep the reasoning of all past turns (the template's keyword).
    """

    preserve_thinking: bool = False


class Qwen38Options(Qwen35Options):
    """Options of Qwen3.8.

    preserve_thinking: keep the reasoning of all past turns; None leaves the keyword undefined, which keeps it.
    reasoning_effort: the template's keyword; None leaves it undefined, which means "xhigh". Without effect where
        enable_thinking is False.
    """

    preserve_thinking: bool | None = None
    reasoning_effort: Literal["xhigh", "medium", "low"] | None = None
