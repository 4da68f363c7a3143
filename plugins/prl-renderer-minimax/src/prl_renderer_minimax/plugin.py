"""What this distribution offers. Imports nothing of it."""

from __future__ import annotations

from prl.plugin import RendererEntry, ToolParserEntry, hookimpl

_CONTROL_TOKENS = ("]~!b[", "]~b]", "[e~[", "<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>")
_HERE = "prl_renderer_minimax"


def _entry(version: str, function: str, template: str) -> RendererEntry:
    return RendererEntry(
        name=f"minimax-{version.lower()}",
        target=f"{_HERE}.format:{function}",
        options=f"{_HERE}.options:MiniMaxOptions",
        summary=f"MiniMax-{version} (always reasons), tagged tool calls in one region",
        models=(f"MiniMaxAI/MiniMax-{version}",),
        templates=(template,),
        control_tokens=_CONTROL_TOKENS,
    )


@hookimpl
def prl_renderers() -> list[RendererEntry]:
    """Offer the MiniMax renderers; model ids and template sums are those of the vendor's repositories."""
    return [
        _entry("M2", "create_minimax_m2", "86cd6e574dec52bf6d7e678c5b46ceb5223d68b3a1130bbbc09d0a2dc0909438"),
        _entry("M2.1", "create_minimax_m21", "2aeb48049bf0f720e16706cf98309b534ca277cda04887da961866c6f1e108ae"),
        _entry("M2.5", "create_minimax_m25", "f83cec52bb3a7e5a3cb4d6fd1dfdd6f4fe13b06c5aaa39a1115e70a417fc75f5"),
        _entry("M2.7", "create_minimax_m27", "893d908f7b5cc65fdde270dcae5ea1a99647c6a7ce572ae874a57b7160069566"),
    ]


@hookimpl
def prl_tool_parsers() -> list[ToolParserEntry]:
    """Offer the tool-call format."""
    return [
        ToolParserEntry(
            name="minimax-m2",
            target=f"{_HERE}.tools:create_minimax",
            options=f"{_HERE}.tools:MiniMaxToolOptions",
            summary="<invoke> and <parameter> tags between <minimax:tool_call> tags",
        )
    ]
