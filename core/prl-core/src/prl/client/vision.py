"""What a model's config.json says about images, read without torch or transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from prl.types import ConfigError

IMAGE, VIDEO = 1, 2  # token types of the models' own processors; 0 is text
_ARCHITECTURES = re.compile(r"VL|Vision|Llava|ImageText")
_IMAGE_TOKENS = ("image_token_id", "image_token_index")


@dataclass(frozen=True, slots=True)
class VisionTokens:
    """The placeholder ids of a model, and how many patches a side go into one placeholder."""

    image: int
    video: int | None
    merge_size: int

    def types(self, ids: Sequence[int]) -> list[int]:
        """Return the token type of each id: 1 image, 2 video, 0 other."""
        kinds = {self.image: IMAGE} | ({} if self.video is None else {self.video: VIDEO})
        return [kinds.get(token, 0) for token in ids]

    def image_blocks(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return (start, end) of each unbroken run of image placeholders."""
        blocks: list[tuple[int, int]] = []
        position = 0
        for is_image, run in groupby(ids, key=lambda token: token == self.image):
            length = len(list(run))
            if is_image:
                blocks.append((position, position + length))
            position += length
        return blocks

    def placeholders(self, grid: Sequence[int]) -> int:
        """Return how many placeholders an image of `grid` = (time, height, width) patches takes."""
        time, height, width = grid
        return int(time * height * width) // self.merge_size**2


def read_model_config(model: str, *, revision: str | None = None) -> dict[str, Any] | None:
    """Return a model's config.json, from its directory or the local hub cache; None where neither has it.

    Raises `ConfigError` for a file that is no JSON object.
    """
    path = Path(model).expanduser() / "config.json"
    if not path.is_file():
        cached = _in_hub_cache(model, revision)
        if cached is None:
            return None
        path = cached
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    if not isinstance(config, dict):
        raise _unreadable(path, "it is no JSON object")
    return config


def is_vision_language(config: Mapping[str, Any] | None) -> bool:
    """Whether a model takes images: it has a vision tower, an image token, or an architecture named for it."""
    if config is None:
        return False
    if config.get("vision_config") or any(config.get(name) is not None for name in _IMAGE_TOKENS):
        return True
    return any(_ARCHITECTURES.search(str(name)) for name in config.get("architectures") or ())


def vision_tokens(config: Mapping[str, Any], *, where: str = "config.json") -> VisionTokens:
    """Return the model's placeholders; raise `ConfigError` where its config does not name them."""
    image = next((config[name] for name in _IMAGE_TOKENS if config.get(name) is not None), None)
    merge = (config.get("vision_config") or {}).get("spatial_merge_size")
    if not isinstance(image, int) or not isinstance(merge, int) or merge < 1:
        raise ConfigError(
            "the model's config does not name image_token_id and vision_config.spatial_merge_size",
            where=where,
            next_step="train images with a model that has them, such as the Qwen-VL families",
        )
    video = config.get("video_token_id")
    return VisionTokens(image, video if isinstance(video, int) else None, merge)


def _in_hub_cache(model: str, revision: str | None) -> Path | None:
    if model.count("/") != 1 or model.startswith((".", "~", "/")):
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None  # without it no hub id can be loaded, which the tokenizer's loader tells
    found = try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(found) if isinstance(found, str) else None


def _unreadable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"the model's config cannot be read: {why}", where=str(path), next_step="restore the model directory"
    )
