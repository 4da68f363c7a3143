"""Images are prepared by the model's own processor, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fixtures.tiny_vision import PROCESSOR, picture

from prl.types import ConfigError, RenderError
from prl_train.images.processor import ModelImageProcessor


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return tmp_path


def test_patches_are_the_normalised_pixels_of_the_picture(model: Path) -> None:
    """A picture of one colour: every value of every patch is that colour, normalised as the model's file says."""
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.new("RGB", (48, 32), (255, 0, 51)).save(out, "PNG")
    process = ModelImageProcessor(str(model))
    values, grid = process(out.getvalue())
    assert grid == (1, 4, 6)
    assert values.shape == (24, 3 * 2 * 8 * 8)
    assert values.dtype == np.float32
    red, green, blue = np.split(values, 3, axis=1)
    assert np.allclose(red, 1.0)
    assert np.allclose(green, -1.0)
    assert np.allclose(blue, -0.6, atol=1e-6)
    assert process.backend in ("pillow", "torchvision")


def test_a_picture_is_scaled_to_the_models_limits(model: Path) -> None:
    _, grid = ModelImageProcessor(str(model))(picture(0, 600, 400))
    assert grid[1] * grid[2] * 64 <= 65536
    assert grid[1] % 2 == grid[2] % 2 == 0


def test_bytes_that_are_half_an_image_are_refused(model: Path) -> None:
    with pytest.raises(RenderError, match="cannot be read"):
        ModelImageProcessor(str(model))(picture(0)[:60])


def test_a_model_without_a_processor_is_told_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="image processor") as caught:
        ModelImageProcessor(str(tmp_path))(picture(0))
    assert "preprocessor_config.json" in caught.value.next_step


def test_a_processor_that_is_code_is_not_run_and_nobody_is_asked(tmp_path: Path, monkeypatch: Any) -> None:
    """A run that asks its terminal whether to run a checkpoint's code hangs, or runs it."""
    said: list[dict[str, Any]] = []

    def from_pretrained(_: str, **how: Any) -> None:
        said.append(how)
        raise ValueError("it is code")

    library = SimpleNamespace(AutoImageProcessor=SimpleNamespace(from_pretrained=from_pretrained))
    there = SimpleNamespace(import_module={"transformers": library}.get, util=SimpleNamespace(find_spec=str))
    processor = ModelImageProcessor(str(tmp_path))
    monkeypatch.setattr("prl_train.images.processor.importlib", there)
    with pytest.raises(ConfigError, match="it is code"):
        processor._loaded()
    assert said == [{"trust_remote_code": False}]
