"""What this distribution offers. Imports nothing of it."""

from __future__ import annotations

from prl.plugin import ReasoningParserEntry, RendererEntry, ToolParserEntry, hookimpl

_HERE = "prl_renderer_deepseek"
_TURNS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
_TOOLS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
)
_THINK = ("<think>", "</think>")


def _deepseek(names: str) -> tuple[str, ...]:
    return tuple(f"deepseek-ai/DeepSeek-{name}" for name in names.split())


@hookimpl
def prl_renderers() -> list[RendererEntry]:
    """Offer the DeepSeek renderers; model ids and template sums are those of the vendor's repositories."""
    return [
        RendererEntry(
            name="deepseek-v3",
            target=f"{_HERE}.format:create_v3",
            options=f"{_HERE}.options:DeepSeekOptions",
            summary="DeepSeek-V3 (no reasoning), fenced JSON calls",
            models=_deepseek("V3 V3-Base"),
            templates=("3b8267e54b67df6500f231ffa969955cc9d26b3444a291ced4eb96ca7d3ca1ea",),
            control_tokens=_TURNS + _TOOLS,
        ),
        RendererEntry(
            name="deepseek-r1",
            target=f"{_HERE}.format:create_r1",
            options=f"{_HERE}.options:DeepSeekOptions",
            summary="DeepSeek-R1 (always reasons, history has none), fenced JSON calls",
            models=_deepseek("R1 R1-Zero"),
            templates=("563b1ce7d61d50a9b4c7439a912a1116f095b712df5b5e4d3e1116049874eb64",),
            control_tokens=_TURNS + _TOOLS + _THINK,
        ),
        RendererEntry(
            name="deepseek-v3.1",
            target=f"{_HERE}.v31_format:create_v31",
            options=f"{_HERE}.options:V31Options",
            summary="DeepSeek-V3.1 (reasons when asked), bare JSON calls",
            models=_deepseek("V3.1 V3.1-Base V3.1-Terminus"),
            templates=("45690185067ea25c073bff2d3e425a45ee2564d2bbf6cdf7d885e139d460b8e0",),
            control_tokens=_TURNS + _TOOLS + _THINK,
        ),
        RendererEntry(
            name="deepseek-v4",
            target=f"{_HERE}.v4_format:create_v4",
            options=f"{_HERE}.options:V4Options",
            summary="DeepSeek-V4 (thinking or chat), DSML calls, as the vendor's encoder",
            models=_deepseek("V4-Flash V4-Flash-0731 V4-Pro"),
            control_tokens=(*_TURNS, *_THINK, "｜DSML｜", "<｜latest_reminder｜>"),
        ),
    ]


@hookimpl
def prl_tool_parsers() -> list[ToolParserEntry]:
    """Offer the three tool-call formats."""
    return [
        ToolParserEntry(
            name="deepseek-v3",
            target=f"{_HERE}.tools:create_fenced",
            options=f"{_HERE}.tools:DeepSeekToolOptions",
            summary="JSON in a code fence between DeepSeek's control tokens (V3, R1)",
        ),
        ToolParserEntry(
            name="deepseek-v3.1",
            target=f"{_HERE}.tools:create_inline",
            options=f"{_HERE}.tools:DeepSeekToolOptions",
            summary="Bare JSON between DeepSeek's control tokens (V3.1)",
        ),
        ToolParserEntry(
            name="dsml",
            target=f"{_HERE}.dsml:create_dsml",
            options=f"{_HERE}.tools:DeepSeekToolOptions",
            summary="DSML: typed parameters in tags (V4)",
        ),
    ]


@hookimpl
def prl_reasoning_parsers() -> list[ReasoningParserEntry]:
    """Offer the reasoning format of V3.1 and V4."""
    return [
        ReasoningParserEntry(
            name="deepseek-think",
            target=f"{_HERE}.reasoning:create_tight",
            options=f"{_HERE}.reasoning:TightReasoningOptions",
            summary="Reasoning between <think> and </think>, no white space around it",
        )
    ]
