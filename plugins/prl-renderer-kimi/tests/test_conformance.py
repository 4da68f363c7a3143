"""The conformance kit on every renderer and parser of this distribution, on the real vocabulary."""

from __future__ import annotations

from functools import partial

import pytest
from fixtures.plugin import offered_by, real_tokenizer

from prl.contracts import ReasoningCodec, ToolCodec
from prl.plugin import ReasoningParserEntry, RendererEntry, ToolParserEntry, create, get_registry
from prl.testing import ReasoningParserSuite, RendererSuite, ToolParserSuite
from prl.tokenizer import Tokenizer

offered = partial(offered_by, "prl-renderer-kimi")


class TestRenderers(RendererSuite):
    @pytest.fixture(params=offered(RendererEntry.kind))
    def record(self, request: pytest.FixtureRequest) -> RendererEntry:
        return get_registry().find(RendererEntry, request.param)

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return real_tokenizer("kimi-k2")


class TestToolParsers(ToolParserSuite):
    @pytest.fixture(params=offered(ToolParserEntry.kind))
    def codec(self, request: pytest.FixtureRequest) -> ToolCodec:
        return create("tool_parser", request.param)  # type: ignore[no-any-return]


class TestReasoningParsers(ReasoningParserSuite):
    @pytest.fixture(params=offered(ReasoningParserEntry.kind))
    def codec(self, request: pytest.FixtureRequest) -> ReasoningCodec:
        return create("reasoning_parser", request.param)  # type: ignore[no-any-return]
