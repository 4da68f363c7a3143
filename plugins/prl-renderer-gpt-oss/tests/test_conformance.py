"""The conformance kit, on a byte tokenizer and on the real vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from fixtures.plugin import real_tokenizer

from prl.testing import RendererSuite
from prl.tokenizer import Tokenizer


class TestHarmony(RendererSuite):
    name = "gpt-oss"

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return real_tokenizer("gpt-oss")


class TestHarmonyWithAllReasoning(RendererSuite):
    name = "gpt-oss"
    options: ClassVar[Mapping[str, Any]] = {"thinking_retention": "all", "builtin_tools": ("browser", "python")}
