"""What this distribution offers; light, since every process imports it."""

from __future__ import annotations

from prl.plugin import ReasoningParserEntry, RendererEntry, ToolParserEntry, hookimpl
from prl_renderer_qwen.tokens import CONTROL_TOKENS, VISION_TOKENS

_HERE = "prl_renderer_qwen"


def _qwen(names: str) -> tuple[str, ...]:
    return tuple(f"Qwen/{name}" for name in names.split())


@hookimpl
def prl_renderers() -> list[RendererEntry]:
    """Offer the Qwen renderers; model ids and template sums are those of the vendor's repositories."""
    return [*_text_renderers(), *_vision_renderers(), *_xml_renderers(), *_coder_renderers()]


def _text_renderers() -> list[RendererEntry]:
    """Qwen3 and 2507: text, JSON calls."""
    return [
        RendererEntry(
            name="qwen3",
            target=f"{_HERE}.format:create_qwen3",
            options=f"{_HERE}.options:QwenThinkingOptions",
            summary="Qwen3 (hybrid reasoning), JSON tool calls",
            models=_qwen(
                "Qwen3-0.6B Qwen3-1.7B Qwen3-4B Qwen3-8B Qwen3-14B Qwen3-32B Qwen3-30B-A3B Qwen3-235B-A22B "
                "Qwen3-4B-SafeRL"
            ),
            templates=("a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8",),
            control_tokens=CONTROL_TOKENS,
        ),
        RendererEntry(
            name="qwen3-instruct-2507",
            target=f"{_HERE}.format:create_qwen3_instruct",
            options=f"{_HERE}.options:QwenOptions",
            summary="Qwen3-Instruct-2507 and Qwen3-Next-Instruct (no reasoning), JSON tool calls",
            models=_qwen(
                "Qwen3-4B-Instruct-2507 Qwen3-30B-A3B-Instruct-2507 Qwen3-235B-A22B-Instruct-2507 "
                "Qwen3-Next-80B-A3B-Instruct"
            ),
            templates=("64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326",),
            control_tokens=CONTROL_TOKENS,
        ),
        RendererEntry(
            name="qwen3-thinking-2507",
            target=f"{_HERE}.format:create_qwen3_thinking",
            options=f"{_HERE}.options:QwenOptions",
            summary="Qwen3-Thinking-2507 and Qwen3-Next-Thinking (always reasons), JSON tool calls",
            models=_qwen(
                "Qwen3-4B-Thinking-2507 Qwen3-30B-A3B-Thinking-2507 Qwen3-235B-A22B-Thinking-2507 "
                "Qwen3-Next-80B-A3B-Thinking"
            ),
            templates=("3802169b2a02b81e6adb7ab4f64f91ff02db753c8c3a64a01c35192d3a61d8d7",),
            control_tokens=CONTROL_TOKENS,
        ),
    ]


def _vision_renderers() -> list[RendererEntry]:
    """Qwen3-VL: media, JSON calls."""
    return [
        RendererEntry(
            name="qwen3-vl",
            target=f"{_HERE}.format:create_qwen3_vl",
            options=f"{_HERE}.options:QwenVisionOptions",
            summary="Qwen3-VL-Instruct: text with image and video placeholders, JSON tool calls",
            models=_qwen(
                "Qwen3-VL-2B-Instruct Qwen3-VL-4B-Instruct Qwen3-VL-8B-Instruct Qwen3-VL-32B-Instruct "
                "Qwen3-VL-30B-A3B-Instruct Qwen3-VL-235B-A22B-Instruct"
            ),
            templates=("3636d0f0bd6bef02654cdffdc447b79cb2cef8ab02cc75267345946291a489e4",),
            control_tokens=CONTROL_TOKENS + VISION_TOKENS,
        ),
        RendererEntry(
            name="qwen3-vl-thinking",
            target=f"{_HERE}.format:create_qwen3_vl_thinking",
            options=f"{_HERE}.options:QwenVisionOptions",
            summary="Qwen3-VL-Thinking: text with image and video placeholders, always reasons",
            models=_qwen(
                "Qwen3-VL-2B-Thinking Qwen3-VL-4B-Thinking Qwen3-VL-8B-Thinking Qwen3-VL-32B-Thinking "
                "Qwen3-VL-30B-A3B-Thinking Qwen3-VL-235B-A22B-Thinking"
            ),
            templates=("36e042fe45641f067b1f2381fcc8955d10d956a3ed333ecdf7f7eb0916f68956",),
            control_tokens=CONTROL_TOKENS + VISION_TOKENS,
        ),
    ]


def _xml_renderers() -> list[RendererEntry]:
    """Qwen3.5 and 3.6: media, XML calls."""
    return [
        RendererEntry(
            name="qwen3.5",
            target=f"{_HERE}.xml_format:create_qwen35",
            options=f"{_HERE}.options:Qwen35Options",
            summary="Qwen3.5 (4B and up, reasons by default), XML tool calls",
            models=_qwen(
                "Qwen3.5-4B Qwen3.5-9B Qwen3.5-27B Qwen3.5-35B-A3B Qwen3.5-122B-A10B Qwen3.5-397B-A17B "
                "Qwen3.5-4B-Base Qwen3.5-9B-Base Qwen3.5-35B-A3B-Base"
            ),
            templates=("a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715",),
            control_tokens=CONTROL_TOKENS + VISION_TOKENS,
        ),
        RendererEntry(
            name="qwen3.5-small",
            target=f"{_HERE}.xml_format:create_qwen35_small",
            options=f"{_HERE}.options:Qwen35Options",
            summary="Qwen3.5-0.8B and 2B (reason only when asked), XML tool calls",
            models=_qwen("Qwen3.5-0.8B Qwen3.5-2B Qwen3.5-0.8B-Base Qwen3.5-2B-Base"),
            templates=("273d8e0e683b885071fb17e08d71e5f2a5ddfb5309756181681de4f5a1822d80",),
            control_tokens=CONTROL_TOKENS + VISION_TOKENS,
        ),
        RendererEntry(
            name="qwen3.6",
            target=f"{_HERE}.xml_format:create_qwen36",
            options=f"{_HERE}.options:Qwen36Options",
            summary="Qwen3.6 (can keep all reasoning), XML tool calls with JSON scalars",
            models=_qwen("Qwen3.6-27B Qwen3.6-35B-A3B"),
            templates=("e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259",),
            control_tokens=CONTROL_TOKENS + VISION_TOKENS,
        ),
        RendererEntry(
            name="qwen3.8",
            target=f"{_HERE}.xml_format:create_qwen38",
            options=f"{_HERE}.options:Qwen38Options",
            summary="Qwen3.8 (keeps all reasoning by default, reasoning effort), XML tool calls with JSON scalars",
            models=_qwen("Qwen3.8-27B Qwen3.8-27B-FP8"),
            templates=("c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041",),
            control_tokens=CONTROL_TOKENS + VISION_TOKENS,
        ),
    ]


def _coder_renderers() -> list[RendererEntry]:
    """Qwen3-Coder: XML calls, no reasoning."""
    return [
        RendererEntry(
            name="qwen3-coder",
            target=f"{_HERE}.coder_format:create_qwen3_coder",
            options=f"{_HERE}.options:QwenOptions",
            summary="Qwen3-Coder-30B and 480B (no reasoning), XML tool calls, tools described in XML",
            models=_qwen("Qwen3-Coder-30B-A3B-Instruct Qwen3-Coder-480B-A35B-Instruct"),
            templates=("5a38bfa05833266240066aedc497decc9b00cc0d3e3b8cceea98cf530196ab06",),
            control_tokens=CONTROL_TOKENS,
        ),
        RendererEntry(
            name="qwen3-coder-next",
            target=f"{_HERE}.coder_format:create_qwen3_coder_next",
            options=f"{_HERE}.options:QwenOptions",
            summary="Qwen3-Coder-Next (no reasoning), XML tool calls with JSON scalars, tools described in XML",
            models=_qwen("Qwen3-Coder-Next Qwen3-Coder-Next-Base"),
            templates=("c79a833039a43602150cce0902403d6e376c50930c1b2a139b2964e1f0c322a0",),
            control_tokens=CONTROL_TOKENS,
        ),
    ]


@hookimpl
def prl_tool_parsers() -> list[ToolParserEntry]:
    """Offer the two tool-call formats."""
    return [
        ToolParserEntry(
            name="hermes",
            target=f"{_HERE}.tools:create_hermes",
            options=f"{_HERE}.tools:HermesOptions",
            summary="JSON between <tool_call> tags (Hermes, Qwen2.5, Qwen3)",
        ),
        ToolParserEntry(
            name="qwen-xml",
            target=f"{_HERE}.tools:create_qwen_xml",
            options=f"{_HERE}.tools:QwenXmlOptions",
            summary="<function=...><parameter=...> between <tool_call> tags (Qwen3-Coder, Qwen3.5, Qwen3.6)",
        ),
    ]


@hookimpl
def prl_reasoning_parsers() -> list[ReasoningParserEntry]:
    """Offer the reasoning format."""
    return [
        ReasoningParserEntry(
            name="think",
            target=f"{_HERE}.reasoning:create_think",
            options=f"{_HERE}.reasoning:ThinkOptions",
            summary="Reasoning between <think> and </think>",
        )
    ]
