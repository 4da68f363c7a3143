"""Options of the DeepSeek renderers; most are keywords of the vendor's templates and encoder."""

from __future__ import annotations

from typing import Literal

from prl.render import RendererOptions


class DeepSeekOptions(RendererOptions):
    """Options of renderers whose template takes no keyword (V3, R1)."""


class V31Options(DeepSeekOptions):
    """Options of DeepSeek-V3.1.

    thinking: whether the generation prompt opens reasoning (the template's keyword).
    """

    thinking: bool = False


class V4Options(DeepSeekOptions):
    """Options of DeepSeek-V4.

    thinking_mode: "thinking" opens reasoning in the generation prompt, "chat" closes it there.
    reasoning_effort: the text at the very beginning, in thinking mode only. Unset and "low": none; "high" and "xhigh":
        the first of the encoder's two texts; "max": the second.
    call_order: "id" puts the calls of a turn and their results into the order of the calls' ids, as the vendor's
        encoder does; "given" leaves them as they are.
    """

    thinking_mode: Literal["thinking", "chat"] = "thinking"
    reasoning_effort: Literal["low", "high", "xhigh", "max"] | None = None
    call_order: Literal["id", "given"] = "id"
