"""The conformance kit on the renderers and the parser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from prl.contracts import ToolCodec
from prl.plugin import create
from prl.testing import RendererSuite, ToolParserSuite


class TestM2(RendererSuite):
    name = "minimax-m2"


class TestM25WithAllReasoning(RendererSuite):
    name = "minimax-m2.5"
    options: ClassVar[Mapping[str, Any]] = {"thinking_retention": "all"}


class TestMiniMaxCalls(ToolParserSuite):
    @pytest.fixture
    def codec(self) -> ToolCodec:
        return create("tool_parser", "minimax-m2")
