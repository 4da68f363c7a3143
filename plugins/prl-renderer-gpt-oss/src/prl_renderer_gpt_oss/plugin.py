"""What this distribution offers. Imports nothing of it."""

from __future__ import annotations

from prl.plugin import RendererEntry, hookimpl

_HERE = "prl_renderer_gpt_oss"


@hookimpl
def prl_renderers() -> list[RendererEntry]:
    """Offer the gpt-oss renderer; model ids and the template sum are those of the vendor's repositories."""
    return [
        RendererEntry(
            name="gpt-oss",
            target=f"{_HERE}.format:create_gpt_oss",
            options=f"{_HERE}.options:GptOssOptions",
            summary="gpt-oss: harmony messages in channels, as the vendor's encoder or as the chat template",
            models=(
                "openai/gpt-oss-20b",
                "openai/gpt-oss-120b",
                "openai/gpt-oss-safeguard-20b",
                "openai/gpt-oss-safeguard-120b",
            ),
            templates=("a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146",),
            control_tokens=(
                "<|start|>",
                "<|channel|>",
                "<|constrain|>",
                "<|message|>",
                "<|end|>",
                "<|call|>",
                "<|return|>",
                "<|endoftext|>",
            ),
        )
    ]
