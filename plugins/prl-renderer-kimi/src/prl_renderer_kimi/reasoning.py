"""The `kimi-k2` reasoning parser: what stands between the markers, to the letter."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from prl.parse import TaggedReasoning


class KimiReasoningOptions(BaseModel):
    """Options of the `kimi-k2` reasoning parser: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def kimi_reasoning() -> TaggedReasoning:
    """Return Kimi's codec: no white space around the markers, nothing stripped."""
    return TaggedReasoning(after_open="", before_close="", after_close="", strip="", content_strip="")


def create_kimi_reasoning(options: KimiReasoningOptions) -> TaggedReasoning:
    """Create the `kimi-k2` reasoning parser."""
    return kimi_reasoning()
