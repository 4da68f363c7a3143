"""The conformance kit on every Qwen renderer and parser: a byte tokenizer, then the real vocabularies."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from fixtures.plugin import offered_by, real_tokenizer

from prl.contracts import ReasoningCodec, ToolCodec
from prl.plugin import ReasoningParserEntry, RendererEntry, ToolParserEntry, create, get_registry
from prl.testing import ReasoningParserSuite, RendererSuite, ToolParserSuite
from prl.tokenizer import Tokenizer

offered = partial(offered_by, "prl-renderer-qwen")


RENDERERS = offered(RendererEntry.kind)
XML = ("qwen3.5", "qwen3.5-small", "qwen3.6", "qwen3.8")


class EveryRenderer(RendererSuite):
    @pytest.fixture(params=RENDERERS)
    def record(self, request: pytest.FixtureRequest) -> RendererEntry:
        return get_registry().find(RendererEntry, request.param)


class TestOnBytes(EveryRenderer):
    pass


class TestOnRealVocabulary(EveryRenderer):
    @pytest.fixture
    def tokenizer(self, record: RendererEntry) -> Tokenizer:
        return real_tokenizer("qwen3.5" if record.name in XML else "qwen3")


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"enable_thinking": False}),
    ("qwen3", {"thinking_retention": "all"}),
    ("qwen3.5", {"enable_thinking": False}),
    ("qwen3.5-small", {"enable_thinking": True}),
    ("qwen3.6", {"preserve_thinking": True}),
    ("qwen3-vl", {"add_vision_id": True}),
]


class TestWithOptions(RendererSuite):
    @pytest.fixture(params=OPTIONS, ids=str)
    def chosen(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    @pytest.fixture
    def record(self, chosen: Any) -> RendererEntry:
        return get_registry().find(RendererEntry, chosen[0])

    @pytest.fixture
    def renderer_options(self, chosen: Any) -> Any:
        return chosen[1]


class TestToolParsers(ToolParserSuite):
    @pytest.fixture(params=offered(ToolParserEntry.kind))
    def codec(self, request: pytest.FixtureRequest) -> ToolCodec:
        return create("tool_parser", request.param)  # type: ignore[no-any-return]


class TestReasoningParsers(ReasoningParserSuite):
    @pytest.fixture(params=offered(ReasoningParserEntry.kind))
    def codec(self, request: pytest.FixtureRequest) -> ReasoningCodec:
        return create("reasoning_parser", request.param)  # type: ignore[no-any-return]
