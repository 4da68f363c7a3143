"""Options of the gpt-oss renderer."""

from __future__ import annotations

from typing import Literal

from prl.render import RendererOptions


class GptOssOptions(RendererOptions):
    """Options of the gpt-oss renderer; the first five are fields of harmony's system message.

    reasoning_effort: how much the model is asked to think.
    conversation_start_date: the current date as the model is told, such as "2026-01-31". Unset: the day on which the
        renderer is created, so that one renderer never changes its mind at midnight; set it for a run that must be
        repeated. "": no date at all.
    knowledge_cutoff, model_identity: texts of the system message.
    builtin_tools: the tools that are described in the system message.
    layout: whose ids are written where the two differ: "harmony" (the vendor's encoder) or "template" (the chat
        template). FORMAT.md lists the differences.
    """

    reasoning_effort: Literal["low", "medium", "high"] = "medium"
    conversation_start_date: str | None = None
    knowledge_cutoff: str = "2024-06"
    model_identity: str = "You are ChatGPT, a large language model trained by OpenAI."
    builtin_tools: tuple[Literal["browser", "python"], ...] = ()
    layout: Literal["harmony", "template"] = "harmony"
