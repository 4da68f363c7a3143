"""The image inputs of a packed row for models with three-dimensional rotary positions, such as Qwen3-VL.

Shapes: T tokens of the row, I images, P patches (rows of `pixel_values`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from prl.types import AlignmentError, ConfigError, MicroBatch

TEXT, IMAGE, VIDEO = 0, 1, 2
"""What a token is, as `mm_token_type_ids` say it."""


def auto_class(config: Any) -> Any:
    """Return the transformers class that loads a checkpoint whole: with its vision tower, where it has one."""
    mapping: Any = AutoModelForImageTextToText._model_mapping
    names = config.architectures or []
    if type(config) in mapping and mapping[type(config)].__name__ in names:
        return AutoModelForImageTextToText
    return AutoModelForCausalLM


def attention_of_parts(config: Any, attention: str) -> str | dict[str, str]:
    """Return which attention each part of a model uses: the text's own; an image is one document, and uses sdpa."""
    text = config.get_text_config()
    parts = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", {})}
    if text is config or not parts:
        return attention
    return {name: attention if part is text else "sdpa" for name, part in parts.items()}


@dataclass(frozen=True, slots=True)
class _Vision:
    """What of a model its images need: the part that knows their positions, and the placeholders' ids."""

    core: Any
    image: int
    video: int
    merge: int

    @property
    def kinds(self) -> dict[int, int]:
        """Placeholder id -> what it is."""
        return {self.image: IMAGE, self.video: VIDEO}


def token_types(ids: Sequence[int], *, image: int, video: int) -> list[int]:
    """Return per token what it is: 1 for an image's placeholder, 2 for a video's, 0 for text."""
    kinds = {image: IMAGE, video: VIDEO}
    return [kinds.get(token, TEXT) for token in ids]


def image_inputs(model: Any, batch: MicroBatch, borders: Sequence[int], device: torch.device) -> dict[str, Any]:
    """Return what a vision-language model needs beside ids: nothing for a row of text.

    `pixel_values` [P, ...], `image_grid_thw` [I, 3], `mm_token_type_ids` [1, T] and `position_ids` [4, 1, T]: the place
    in the text, and the model's own temporal, height and width positions, each document (`borders`) on its own.

    Raises `AlignmentError` where placeholders and features do not fit, `ConfigError` for a model that takes no images.
    """
    vision = _vision_of(model)
    if vision is None:
        if batch.pixel_values is None:
            return {}
        raise ConfigError(
            "a row has images, and the model has no positions for them (no get_rope_index with mm_token_type_ids)",
            where=type(model).__name__,
            next_step="train a model such as Qwen3-VL, or leave the images out",
        )
    types = token_types(batch.input_ids, image=vision.image, video=vision.video)
    grids = torch.as_tensor([] if batch.image_grid_thw is None else batch.image_grid_thw).long().reshape(-1, 3)
    _check_row(batch, types, grids.tolist(), vision.merge)
    if batch.pixel_values is None:
        return {}
    positions = list(_positions(vision, batch, types, grids, borders))
    text = torch.tensor(batch.position_ids)[None, None]
    return {
        "pixel_values": torch.as_tensor(batch.pixel_values, device=device),
        "image_grid_thw": grids.to(device),
        "mm_token_type_ids": torch.tensor(types, device=device, dtype=torch.int)[None],
        "position_ids": torch.cat([text, torch.cat(positions, dim=-1)]).to(device),
    }


def _vision_of(model: Any) -> _Vision | None:
    """Return what the model says of its images; None for a model of text."""
    config = model.config
    if getattr(config, "vision_config", None) is None:
        return None
    core = next((module for module in model.modules() if hasattr(module, "get_rope_index")), None)
    if core is None or "mm_token_type_ids" not in inspect.signature(core.get_rope_index).parameters:
        return None
    return _Vision(core, config.image_token_id, config.video_token_id, config.vision_config.spatial_merge_size)


def _check_row(batch: MicroBatch, types: list[int], grids: list[list[int]], merge: int) -> None:
    """Raise `AlignmentError` unless each run of placeholders is one image, in order, and every patch belongs to one."""
    runs = _runs(types, batch.cu_seqlens)
    wanted = [t * h * w // merge**2 for t, h, w in grids]
    patches = 0 if batch.pixel_values is None else len(batch.pixel_values)
    shipped = batch.mm_token_type_ids
    if VIDEO in types:
        what = "a row has placeholders of a video, and samples carry images only"
    elif runs != wanted:
        what = f"the ids have placeholders for images of {runs} features, the images have {wanted}"
    elif patches != sum(t * h * w for t, h, w in grids):
        what = f"pixel_values has {patches} patches, image_grid_thw says {sum(t * h * w for t, h, w in grids)}"
    elif shipped is not None and list(shipped[: len(types)]) != types:
        what = "mm_token_type_ids of the samples are not those of their ids"
    else:
        return
    raise AlignmentError(
        what,
        where="a packed row",
        next_step="build pixel_values and image_grid_thw from the images of the same prompt, in the order of the ids",
    )


def _runs(types: Sequence[int], borders: Sequence[int]) -> list[int]:
    """Return the length of each run of image placeholders; a run never crosses into another sample."""
    spans = [(start, end) for start, end in pairwise(borders)] + [(borders[-1], len(types))]
    return [len(list(run)) for start, end in spans for kind, run in groupby(types[start:end]) if kind == IMAGE]


def _positions(
    vision: _Vision, batch: MicroBatch, types: list[int], grids: Tensor, borders: Sequence[int]
) -> Iterator[Tensor]:
    """Yield the model's own positions [3, 1, n] of each document, which is given its own images."""
    used = 0
    for start, end in pairwise(borders):
        images = len(_runs(types[start:end], [0, end - start]))
        positions, _ = vision.core.get_rope_index(
            torch.tensor(batch.input_ids[start:end])[None],
            mm_token_type_ids=torch.tensor(types[start:end])[None],
            image_grid_thw=grids[used : used + images] if images else None,
        )
        used += images
        yield positions
