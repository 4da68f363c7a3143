"""The options of the `pythonic` tool parser."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class PythonicOptions(BaseModel):
    """Options of the `pythonic` tool parser: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")
