"""Whether a model takes images, and where its placeholders are: told from config.json alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prl.client.vision import VisionTokens, is_vision_language, read_model_config, vision_tokens
from prl.types import ConfigError


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, False),
        ({"architectures": ["T5ForConditionalGeneration"]}, False),
        ({"architectures": ["Qwen3VLForConditionalGeneration"], "vision_config": {"depth": 2}}, True),
        ({"architectures": ["Qwen2VLForConditionalGeneration"]}, True),
        ({"architectures": ["LlavaForConditionalGeneration"], "image_token_index": 32000}, True),
        ({"vision_config": None, "architectures": None}, False),
        ({}, False),
        (None, False),
    ],
)
def test_a_vision_language_model_is_told_from_its_config(config: dict[str, Any] | None, expected: bool) -> None:
    assert is_vision_language(config) is expected


def test_the_config_is_read_from_the_models_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {"depth": 1}}))
    assert read_model_config(str(tmp_path)) == {"vision_config": {"depth": 1}}


def test_a_model_that_is_not_here_has_no_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub id that was never downloaded is looked up in the cache only: no request is made for it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert read_model_config(str(tmp_path / "absent")) is None
    assert read_model_config("nobody/such-a-model") is None


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_broken_config_is_an_error_with_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        read_model_config(str(tmp_path))
    assert str(tmp_path / "config.json") in caught.value.where


def test_placeholders_come_from_the_config() -> None:
    config = {"image_token_id": 5, "video_token_id": 6, "vision_config": {"spatial_merge_size": 2}}
    tokens = vision_tokens(config)
    assert tokens == VisionTokens(image=5, video=6, merge_size=2)
    assert tokens.placeholders((1, 6, 8)) == 12
    assert tokens.types([1, 5, 5, 2, 6]) == [0, 1, 1, 0, 2]
    assert tokens.image_blocks([5, 5, 1, 5, 2]) == [(0, 2), (3, 4)]
    assert tokens.image_blocks([1, 2]) == []
    with pytest.raises(ConfigError, match="spatial_merge_size"):
        vision_tokens({"image_token_id": 5})


def test_reading_a_config_needs_no_torch_and_no_transformers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    code = (
        "import sys; from prl.client.vision import read_model_config as r; "
        f"r({str(tmp_path)!r}); print(sorted({{'torch', 'transformers', 'numpy'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
