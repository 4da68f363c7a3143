"""What the trainer trains on: samples and packed micro-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One token sequence with its targets; lengths of all `completion_*` fields and `temperatures` are equal.

    `completion_mask[i]` says whether `completion_ids[i]` was sampled by the model (a training target);
    `completion_logprobs[i]` is what the engine reported for it (0.0 is never invented: read it only where the mask is
    True); the whole list is None where nobody sampled these tokens, and a loss that needs it refuses the sample.
    Optional streams cover `prompt_ids + completion_ids`, or are None. `pixel_values`, `image_grid_thw` and
    `mm_token_type_ids` are the multimodal fields of the model's processor, images in the order of their placeholders.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    completion_mask: list[bool]
    completion_logprobs: list[float] | None
    temperatures: list[float]
    advantage: float = 0.0
    reward: float = 0.0
    weight_version: int = 0
    environment: str = ""
    trajectory_id: str = ""
    teacher_logprobs: list[float] | None = None
    routed_experts: Any = None
    pixel_values: Any = None
    image_grid_thw: Any = None
    mm_token_type_ids: list[int] | None = None

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Samples packed into one row of `T` tokens.

    `loss_mask[i]` says token i is a target (not shifted). `cu_seqlens` starts with 0 and ends with the number of real
    tokens; padding, if any, comes after it and belongs to no sample. `position_ids` restart at 0 in each sample.
    All per-token lists have length `T`; optional ones are None unless every sample has them. `pixel_values` and
    `image_grid_thw` are those of the samples, one after the other.
    """

    input_ids: list[int]
    position_ids: list[int]
    cu_seqlens: list[int]
    loss_mask: list[bool]
    advantages: list[float]
    inference_logprobs: list[float] | None
    temperatures: list[float]
    teacher_logprobs: list[float] | None = None
    routed_experts: Any = None
    pixel_values: Any = None
    image_grid_thw: Any = None
    mm_token_type_ids: list[int] | None = None
