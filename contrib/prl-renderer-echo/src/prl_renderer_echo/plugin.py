"""What this distribution offers. Imports nothing of it."""

from __future__ import annotations

from prl.plugin import RendererEntry, hookimpl


@hookimpl
def prl_renderers() -> list[RendererEntry]:
    """Offer the echo format."""
    return [
        RendererEntry(
            name="echo",
            target="prl_renderer_echo.format:create",
            options="prl_renderer_echo.options:EchoOptions",
            summary="The tutorial's format: a role line and a body a turn",
            control_tokens=("<|turn|>", "<|end|>"),
        )
    ]
