"""The reasoning formats: with line feeds around it (R1), and without (V3.1, V4)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from prl.parse import TaggedReasoning


class TightReasoningOptions(BaseModel):
    """Options of the `deepseek-think` reasoning parser: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def spaced_reasoning() -> TaggedReasoning:
    r"""Return `<think>\n...\n</think>\n\n`."""
    return TaggedReasoning()


def tight_reasoning() -> TaggedReasoning:
    """Return `<think>...</think>`, nothing stripped."""
    return TaggedReasoning(after_open="", before_close="", after_close="", strip="", content_strip="")


def create_tight(options: TightReasoningOptions) -> TaggedReasoning:
    """Create the `deepseek-think` reasoning parser."""
    return tight_reasoning()
