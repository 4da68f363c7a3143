"""The conformance kit (extra: prl-core[testing]): suites for pytest, and the checks behind `prl plugins check`.

The suites import pytest when they are first asked for; the checks, the byte tokenizer and the generator never do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .byte_tokenizer import ByteTokenizer
from .conversations import generate_conversations

if TYPE_CHECKING:
    from .suites import (
        AttentionSuite,
        ClientModeSuite,
        EnvironmentSuite,
        LossSuite,
        ReasoningParserSuite,
        RendererSuite,
        ToolParserSuite,
    )

__all__ = [
    "AttentionSuite",
    "ByteTokenizer",
    "ClientModeSuite",
    "EnvironmentSuite",
    "LossSuite",
    "ReasoningParserSuite",
    "RendererSuite",
    "ToolParserSuite",
    "generate_conversations",
]


def __getattr__(name: str) -> Any:
    if name.endswith("Suite") and name in __all__:
        from . import suites

        return getattr(suites, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
