"""Options of the GLM renderers; each field is a keyword of the vendor's template or one of core's, save one."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from prl.render import RendererOptions


class Glm45Options(RendererOptions):
    """Options of GLM-4.5 and 4.6.

    enable_thinking: the template's keyword; None leaves it undefined, as a caller who does not pass it.
    close_last_turn: write, after a conversation that ends in an assistant turn, the stop that the model would sample
        there. The template never does: GLM's stop is the next turn's role marker. For supervised samples.
    """

    enable_thinking: bool | None = None
    close_last_turn: bool = False


class Glm47Options(Glm45Options):
    """Options of GLM-4.7, 5 and 5.1.

    clear_thinking: the template's keyword; False keeps the reasoning of earlier turns.
    """

    clear_thinking: bool | None = None

    @model_validator(mode="after")
    def _agrees_with_retention(self) -> Glm47Options:
        """Refuse a pair of options of which one would be ignored."""
        opposites = {("tool_cycle", False), ("all", True)}
        if (self.thinking_retention, self.clear_thinking) in opposites:
            raise ValueError(
                f"thinking_retention={self.thinking_retention!r} contradicts clear_thinking={self.clear_thinking}"
            )
        return self


class Glm52Options(Glm47Options):
    """Options of GLM-5.2.

    reasoning_effort: the template's keyword; None is "max".
    """

    reasoning_effort: Literal["high", "max"] | None = None
