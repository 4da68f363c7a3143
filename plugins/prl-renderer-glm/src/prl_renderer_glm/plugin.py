"""What this distribution offers. Imports nothing of it."""

from __future__ import annotations

from prl.plugin import ReasoningParserEntry, RendererEntry, ToolParserEntry, hookimpl

_CONTROL_TOKENS = (
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
_HERE = "prl_renderer_glm"


@hookimpl
def prl_renderers() -> list[RendererEntry]:
    """Offer the GLM renderers; model ids and template sums are those of the vendor's repositories."""
    return [
        RendererEntry(
            name="glm-4.5",
            target=f"{_HERE}.format:create_glm45",
            options=f"{_HERE}.options:Glm45Options",
            summary="GLM-4.5 and 4.6 (hybrid reasoning), keyed tool calls on lines of their own",
            models=("zai-org/GLM-4.5", "zai-org/GLM-4.5-Air", "zai-org/GLM-4.6"),
            templates=("44f815868bf02fa458dd2f741a338046f4bf45f398eb6d067766726b9d96cce3",),
            control_tokens=(*_CONTROL_TOKENS, "/nothink"),
        ),
        RendererEntry(
            name="glm-4.7",
            target=f"{_HERE}.format:create_glm47",
            options=f"{_HERE}.options:Glm47Options",
            summary="GLM-4.7 and 4.7-Flash (hybrid reasoning, can keep all of it), keyed tool calls",
            models=("zai-org/GLM-4.7", "zai-org/GLM-4.7-Flash"),
            templates=("d63ad536c3c81880043e22ec7fd08db42b4d8fb7c89c7138bc562bfa25281375",),
            control_tokens=_CONTROL_TOKENS,
        ),
        RendererEntry(
            name="glm-5",
            target=f"{_HERE}.format:create_glm5",
            options=f"{_HERE}.options:Glm47Options",
            summary="GLM-5 (hybrid reasoning, can keep all of it), keyed tool calls",
            models=("zai-org/GLM-5",),
            templates=("45a1d5635afd3d8e08a28866e72fc8395d2a7ec30989fd0bdaec6dd45a99eff0",),
            control_tokens=_CONTROL_TOKENS,
        ),
        RendererEntry(
            name="glm-5.1",
            target=f"{_HERE}.verbatim_format:create_glm51",
            options=f"{_HERE}.options:Glm47Options",
            summary="GLM-5.1 (reasoning verbatim, tools as bare functions), keyed tool calls",
            models=("zai-org/GLM-5.1",),
            templates=("03b1bbff20331e54647c68167e8ac7f0b5b7ceb40ead372f44826624a9ad79cd",),
            control_tokens=_CONTROL_TOKENS,
        ),
        RendererEntry(
            name="glm-5.2",
            target=f"{_HERE}.verbatim_format:create_glm52",
            options=f"{_HERE}.options:Glm52Options",
            summary="GLM-5.2 (as 5.1, with a reasoning effort), keyed tool calls",
            models=("zai-org/GLM-5.2",),
            templates=("172dc74a35e1752df75ecfb2b2cf9326d2852bb1379868ebeec9571654489679",),
            control_tokens=_CONTROL_TOKENS,
        ),
    ]


@hookimpl
def prl_tool_parsers() -> list[ToolParserEntry]:
    """Offer the tool-call format."""
    return [
        ToolParserEntry(
            name="glm",
            target=f"{_HERE}.tools:create_glm",
            options=f"{_HERE}.tools:GlmOptions",
            summary="<arg_key> and <arg_value> pairs between <tool_call> tags (GLM-4.5 and later)",
        )
    ]


@hookimpl
def prl_reasoning_parsers() -> list[ReasoningParserEntry]:
    """Offer the reasoning format."""
    return [
        ReasoningParserEntry(
            name="glm-think",
            target=f"{_HERE}.reasoning:create_glm_think",
            options=f"{_HERE}.reasoning:GlmThinkOptions",
            summary="Reasoning between <think> and </think>, without line feeds",
        )
    ]
