"""What this distribution offers. Imports nothing of it."""

from __future__ import annotations

from prl.plugin import ReasoningParserEntry, RendererEntry, ToolParserEntry, hookimpl

_CONTROL_TOKENS = (
    "<|im_system|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_middle|>",
    "<|im_end|>",
    "[EOS]",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_THINK_TOKENS = ("<think>", "</think>")
_MEDIA_TOKENS = ("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>")
_HERE = "prl_renderer_kimi"


@hookimpl
def prl_renderers() -> list[RendererEntry]:
    """Offer the Kimi renderers; model ids and template sums are those of the vendor's repositories."""
    return [
        RendererEntry(
            name="kimi-k2",
            target=f"{_HERE}.format:create_kimi_k2",
            options=f"{_HERE}.options:KimiOptions",
            summary="Kimi-K2-Instruct and -0905 (no reasoning)",
            models=("moonshotai/Kimi-K2-Instruct", "moonshotai/Kimi-K2-Instruct-0905"),
            templates=(
                "39e8c195b474c1a4148046f41fedd177b2ff8f420fa376e52fcdddb829e8f0c5",
                "00938c355ca7195fd4f9c923e93af063846d4d5005e06999274f8db57b65bb0b",
            ),
            control_tokens=_CONTROL_TOKENS,
        ),
        RendererEntry(
            name="kimi-k2-thinking",
            target=f"{_HERE}.format:create_kimi_k2_thinking",
            options=f"{_HERE}.options:KimiOptions",
            summary="Kimi-K2-Thinking (always reasons)",
            models=("moonshotai/Kimi-K2-Thinking",),
            templates=("07a791b8563c5159054394745049c8e487986ecb34aaab77727e1b158bbe6a5c",),
            control_tokens=_CONTROL_TOKENS + _THINK_TOKENS,
        ),
        RendererEntry(
            name="kimi-k2.5",
            target=f"{_HERE}.format:create_kimi_k25",
            options=f"{_HERE}.options:Kimi25Options",
            summary="Kimi-K2.5: text with image placeholders, reasoning on or off, TypeScript tool declarations",
            models=("moonshotai/Kimi-K2.5",),
            templates=("7c91e4b3578b518bfb388d2e3dc645daf0fbf843656e887db75d12891e0030ff",),
            control_tokens=_CONTROL_TOKENS + _THINK_TOKENS + _MEDIA_TOKENS,
        ),
        RendererEntry(
            name="kimi-k2.6",
            target=f"{_HERE}.format:create_kimi_k26",
            options=f"{_HERE}.options:Kimi26Options",
            summary="Kimi-K2.6: as K2.5, can keep all reasoning",
            models=("moonshotai/Kimi-K2.6",),
            templates=("8bf859698fd4781c0e1e1c63ce74422aab27e53ccc5f47116317c64cda06132f",),
            control_tokens=_CONTROL_TOKENS + _THINK_TOKENS + _MEDIA_TOKENS,
        ),
    ]


@hookimpl
def prl_tool_parsers() -> list[ToolParserEntry]:
    """Offer the tool-call format."""
    return [
        ToolParserEntry(
            name="kimi-k2",
            target=f"{_HERE}.tools:create_kimi",
            options=f"{_HERE}.tools:KimiToolOptions",
            summary="JSON behind a call id that names the function, in one section (Kimi K2 and later)",
        )
    ]


@hookimpl
def prl_reasoning_parsers() -> list[ReasoningParserEntry]:
    """Offer the reasoning format."""
    return [
        ReasoningParserEntry(
            name="kimi-k2",
            target=f"{_HERE}.reasoning:create_kimi_reasoning",
            options=f"{_HERE}.reasoning:KimiReasoningOptions",
            summary="Reasoning between <think> and </think>, kept to the letter",
        )
    ]
