"""The conformance kit on one renderer of each kind and on the parsers, on a byte tokenizer and on GLM's vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from fixtures.plugin import real_tokenizer

from prl.contracts import ReasoningCodec, ToolCodec
from prl.plugin import create
from prl.testing import ReasoningParserSuite, RendererSuite, ToolParserSuite
from prl.tokenizer import Tokenizer


class TestGlm45(RendererSuite):
    name = "glm-4.5"

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return real_tokenizer("glm4.5")


class TestGlm51(RendererSuite):
    name = "glm-5.1"


class TestGlm52WithAllReasoning(RendererSuite):
    name = "glm-5.2"
    options: ClassVar[Mapping[str, Any]] = {"thinking_retention": "all", "close_last_turn": True}


class TestGlmCalls(ToolParserSuite):
    @pytest.fixture(params=[False, True])
    def codec(self, request: pytest.FixtureRequest) -> ToolCodec:
        return create("tool_parser", "glm", line_feeds=request.param)


class TestGlmReasoning(ReasoningParserSuite):
    @pytest.fixture
    def codec(self) -> ReasoningCodec:
        return create("reasoning_parser", "glm-think")
