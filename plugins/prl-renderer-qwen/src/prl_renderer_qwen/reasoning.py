"""The `think` reasoning parser as a plugin of its own."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from prl.parse import TaggedReasoning


class ThinkOptions(BaseModel):
    """Options of the `think` reasoning parser: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def create_think(options: ThinkOptions) -> TaggedReasoning:
    """Create the `think` reasoning parser."""
    return TaggedReasoning()
