"""Rows of one sample each, for models that carry a state from one sample of a row to the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from prl.types import AlignmentError, MicroBatch

_STREAMS = (
    "input_ids",
    "position_ids",
    "loss_mask",
    "advantages",
    "inference_logprobs",
    "temperatures",
    "teacher_logprobs",
    "routed_experts",
    "mm_token_type_ids",
)
_IMAGE = 1


def take_apart(batch: MicroBatch) -> list[MicroBatch]:
    """Return a row for each sample of a packed row, in order and without padding; empty samples are left out.

    Raises `AlignmentError` where the row's images cannot be told apart.
    """
    spans = [(start, end) for start, end in pairwise(batch.cu_seqlens) if end > start]
    return [_alone(batch, *span, images) for span, images in zip(spans, _images(batch, spans), strict=True)]


def _alone(batch: MicroBatch, start: int, end: int, images: dict[str, Any]) -> MicroBatch:
    streams = {name: getattr(batch, name) for name in _STREAMS}
    mine: dict[str, Any] = {name: None if stream is None else stream[start:end] for name, stream in streams.items()}
    return replace(batch, **mine, **images, cu_seqlens=[0, end - start])


def _images(batch: MicroBatch, spans: list[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Yield the images of each sample: as many as it has runs of placeholders."""
    if batch.image_grid_thw is None or batch.pixel_values is None:
        yield from ({} for _ in spans)
        return
    if batch.mm_token_type_ids is None:
        raise AlignmentError(
            "a row with images does not say which tokens are theirs",
            where="mm_token_type_ids of a packed row",
            next_step="carry mm_token_type_ids from the model's image processor into the samples",
        )
    grids = np.asarray(batch.image_grid_thw).reshape(-1, 3)
    ends = np.concatenate([[0], grids.prod(axis=1).cumsum()])
    first = 0
    for start, end in spans:
        last = first + sum(kind == _IMAGE for kind, _ in groupby(batch.mm_token_type_ids[start:end]))
        has_any = last > first
        yield {
            "image_grid_thw": grids[first:last] if has_any else None,
            "pixel_values": batch.pixel_values[ends[first] : ends[last]] if has_any else None,
        }
        first = last
