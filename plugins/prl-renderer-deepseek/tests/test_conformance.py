"""The conformance kit on every renderer and parser, on a byte tokenizer and on the real vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from fixtures.plugin import real_tokenizer

from prl.contracts import ReasoningCodec, ToolCodec
from prl.plugin import create
from prl.testing import ReasoningParserSuite, RendererSuite, ToolParserSuite
from prl.tokenizer import Tokenizer


class TestV3(RendererSuite):
    name = "deepseek-v3"


class TestR1WithReasoningOfTheCycle(RendererSuite):
    name = "deepseek-r1"
    options: ClassVar[Mapping[str, Any]] = {"thinking_retention": "tool_cycle"}


class TestV31(RendererSuite):
    name = "deepseek-v3.1"

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return real_tokenizer("deepseek-r1")


class TestV31Thinking(RendererSuite):
    name = "deepseek-v3.1"
    options: ClassVar[Mapping[str, Any]] = {"thinking": True}


class TestV4(RendererSuite):
    name = "deepseek-v4"


class TestV4WithAllReasoning(RendererSuite):
    name = "deepseek-v4"
    options: ClassVar[Mapping[str, Any]] = {"thinking_retention": "all", "call_order": "given"}


class TestV4Chat(RendererSuite):
    name = "deepseek-v4"
    options: ClassVar[Mapping[str, Any]] = {"thinking_mode": "chat", "call_order": "given"}


class TestCalls(ToolParserSuite):
    @pytest.fixture(params=["deepseek-v3", "deepseek-v3.1", "dsml"])
    def codec(self, request: pytest.FixtureRequest) -> ToolCodec:
        return create("tool_parser", request.param)


class TestReasoning(ReasoningParserSuite):
    @pytest.fixture
    def codec(self) -> ReasoningCodec:
        return create("reasoning_parser", "deepseek-think")
