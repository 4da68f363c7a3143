"""What this distribution offers. Imports nothing of it."""

from __future__ import annotations

from prl.plugin import ReasoningParserEntry, RendererEntry, ToolParserEntry, hookimpl

_CONTROL_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "</s>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
_HERE = "prl_renderer_nemotron"


def _nvidia(names: str) -> tuple[str, ...]:
    return tuple(f"nvidia/NVIDIA-Nemotron-{name}" for name in names.split())


@hookimpl
def prl_renderers() -> list[RendererEntry]:
    """Offer the Nemotron renderers; model ids and template sums are those of the vendor's repositories."""
    return [
        RendererEntry(
            name="nemotron-3-nano",
            target=f"{_HERE}.format:create_nemotron_nano",
            options=f"{_HERE}.options:NemotronOptions",
            summary="Nemotron-3 Nano (reasons by default), XML tool calls",
            models=_nvidia("3-Nano-30B-A3B-BF16 3-Nano-30B-A3B-FP8 3-Nano-30B-A3B-NVFP4"),
            templates=("ab7813c3abdd9cb655905a410728b26c7884eca45ddfab8d9f931553485a7862",),
            control_tokens=_CONTROL_TOKENS,
        ),
        RendererEntry(
            name="nemotron-3-super",
            target=f"{_HERE}.format:create_nemotron_super",
            options=f"{_HERE}.options:NemotronSuperOptions",
            summary="Nemotron-3 Super: as Nano, with a low-effort switch",
            models=_nvidia("3-Super-120B-A12B-BF16 3-Super-120B-A12B-FP8 3-Super-120B-A12B-NVFP4"),
            templates=("575fb74f54ed264df9047d0ecce3c98938aae953fb4f50356675706264cbb68a",),
            control_tokens=_CONTROL_TOKENS,
        ),
        RendererEntry(
            name="nemotron-3-ultra",
            target=f"{_HERE}.format:create_nemotron_ultra",
            options=f"{_HERE}.options:NemotronUltraOptions",
            summary="Nemotron-3 Ultra: tight think blocks, with a medium-effort switch",
            models=_nvidia("3-Ultra-550B-A55B-BF16 3-Ultra-550B-A55B-FP8 3-Ultra-550B-A55B-NVFP4"),
            templates=("82753bef5cedc4932c1ed509b5c9a12be680fd86d1adb65bc3f7398d11c8eebc",),
            control_tokens=_CONTROL_TOKENS,
        ),
        RendererEntry(
            name="nemotron-3.5",
            target=f"{_HERE}.format:create_nemotron_35",
            options=f"{_HERE}.options:NemotronOptions",
            summary="Nemotron-3.5 Lightning: tight think blocks",
            models=_nvidia("3.5-Lightning-30B-A3B-BF16 3.5-Lightning-30B-A3B-NVFP4"),
            templates=("58933db77d3099b4f78c55a38347a72e1ea05b97d6bd8f38775303dc0194e0a9",),
            control_tokens=_CONTROL_TOKENS,
        ),
    ]


@hookimpl
def prl_tool_parsers() -> list[ToolParserEntry]:
    """Offer the tool-call format."""
    return [
        ToolParserEntry(
            name="nemotron-xml",
            target=f"{_HERE}.tools:create_nemotron_xml",
            options=f"{_HERE}.tools:NemotronXmlOptions",
            summary="<function=...><parameter=...> between <tool_call> tags, each on lines of its own (Nemotron-3)",
        )
    ]


@hookimpl
def prl_reasoning_parsers() -> list[ReasoningParserEntry]:
    """Offer the two reasoning formats."""
    return [
        ReasoningParserEntry(
            name="nemotron-3",
            target=f"{_HERE}.reasoning:create_nemotron_3",
            options=f"{_HERE}.reasoning:NemotronReasoningOptions",
            summary="Reasoning between <think> and </think>, each followed by a line feed (Nemotron-3 Nano and Super)",
        ),
        ReasoningParserEntry(
            name="nemotron-3-ultra",
            target=f"{_HERE}.reasoning:create_nemotron_3_ultra",
            options=f"{_HERE}.reasoning:NemotronReasoningOptions",
            summary="Reasoning between <think> and </think>, no line feed around the end (Nemotron-3 Ultra and 3.5)",
        ),
    ]
