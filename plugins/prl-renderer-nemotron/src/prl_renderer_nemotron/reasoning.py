"""The two forms of a think block: with line feeds around `</think>` (Nano, Super) and without (Ultra, 3.5).

Beyond these line feeds nothing is stripped: what the model wrote comes back to the letter.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from prl.parse import TaggedReasoning


class NemotronReasoningOptions(BaseModel):
    """Options of the Nemotron reasoning parsers: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def loose_reasoning() -> TaggedReasoning:
    r"""Return `<think>\n...\n</think>\n`."""
    return TaggedReasoning(after_close="\n", strip="", content_strip="")


def tight_reasoning() -> TaggedReasoning:
    r"""Return `<think>\n...</think>`."""
    return TaggedReasoning(before_close="", after_close="", strip="", content_strip="")


def create_nemotron_3(options: NemotronReasoningOptions) -> TaggedReasoning:
    """Create the `nemotron-3` reasoning parser."""
    return loose_reasoning()


def create_nemotron_3_ultra(options: NemotronReasoningOptions) -> TaggedReasoning:
    """Create the `nemotron-3-ultra` reasoning parser."""
    return tight_reasoning()
