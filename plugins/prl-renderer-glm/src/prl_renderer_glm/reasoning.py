"""The `glm-think` reasoning parser as a plugin of its own."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from prl.parse import TaggedReasoning


class GlmThinkOptions(BaseModel):
    """Options of the `glm-think` reasoning parser: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def bare_think(strip: str | None = None) -> TaggedReasoning:
    """Return `<think>...</think>` without white space around the markers; `strip` as in `ReasoningCodec`."""
    return TaggedReasoning(after_open="", before_close="", after_close="", strip=strip, content_strip=None)


def create_glm_think(options: GlmThinkOptions) -> TaggedReasoning:
    """Create the `glm-think` reasoning parser."""
    return bare_think()
