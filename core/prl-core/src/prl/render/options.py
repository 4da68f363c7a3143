"""The options every renderer has."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

ContentTokens = Literal["literal", "template", "error"]
ThinkingRetention = Literal["tool_cycle", "all"]


class RendererOptions(BaseModel):
    """Options of one renderer; families subclass it.

    content_tokens: what becomes of control tokens spelled in a message's own text. "literal" never makes a control id,
        "template" does what the vendor's template does, "error" refuses. Unset: "literal" for user and tool messages,
        "template" for system and assistant messages.
    thinking_retention: whether past reasoning stays in the conversation. Unset: what the template does. "tool_cycle":
        kept until the next user query. "all": always kept, so that a rollout is always extended verbatim.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    content_tokens: ContentTokens | None = None
    thinking_retention: ThinkingRetention | None = None
