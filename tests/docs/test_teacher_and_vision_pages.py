"""The pages on teachers and on images: their configurations are accepted, and what they say of settings is so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fixtures.documents import blocks, titled
from fixtures.environments import ROOT

from prl.client.images import image_urls
from prl.config import load_config
from prl.types import ConfigError
from prl_train.config import ImagesSection, RLConfig
from prl_train.launch.parts import check_names, client_mode
from prl_train.teacher import TeacherLogprobsSection, TeacherRolloutsSection

HOW_TO = ROOT / "docs" / "how-to"
DISTIL = HOW_TO / "distil-from-a-teacher.md"
VISION = HOW_TO / "train-a-vision-language-model.md"


def config_of(page: Path, title: str, tmp_path: Path, *overrides: str) -> RLConfig:
    path = tmp_path / title
    path.write_text(titled(page)[title], encoding="utf-8")
    return load_config(RLConfig, path, overrides)


@pytest.mark.parametrize(("title", "mode"), [("rollouts.toml", "chat"), ("logprobs.toml", "renderer")])
def test_the_configurations_of_the_teachers_page_are_accepted(tmp_path: Path, title: str, mode: str) -> None:
    config = config_of(DISTIL, title, tmp_path)
    check_names(config)
    assert client_mode(config) == mode


def test_the_configuration_of_the_images_page_is_accepted_for_such_a_model(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"vision_config": {"depth": 1}}))
    config = config_of(VISION, "vision.toml", tmp_path, f"model.path={model}")
    check_names(config)
    assert client_mode(config) == "token"
    with pytest.raises(ConfigError, match="vision-language"):
        client_mode(config_of(VISION, "vision.toml", tmp_path, f"model.path={model}", "client_mode=renderer"))


def test_the_message_of_the_images_page_names_its_image() -> None:
    [code] = [block.text for block in blocks(VISION) if block.language == "python"]
    names: dict[str, Any] = {}
    exec(code, names)
    assert image_urls([names["message"]]) == ["birds/0017.png"]


def test_every_setting_that_the_pages_name_exists() -> None:
    known = {*TeacherRolloutsSection.model_fields, *TeacherLogprobsSection.model_fields}
    named = re.findall(r"^- `(\w+)`? ?(?:=|`)", DISTIL.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) >= 5
    assert set(named) <= known, set(named) - known
    images = set(re.findall(r"`images\.(\w+)", VISION.read_text(encoding="utf-8")))
    assert images
    assert images <= set(ImagesSection.model_fields), images
