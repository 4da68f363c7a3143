"""Cut samples to a sequence length, every stream alike, and drop those that lose all targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from prl.types import AlignmentError, TrainingSample


@dataclass(frozen=True, slots=True)
class FitResult:
    """One fitted sample; `sample` is None where no trainable token is left."""

    sample: TrainingSample | None
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class Fitted:
    """Samples that fit, and how many were cut or dropped on the way."""

    samples: list[TrainingSample]
    truncated: int
    dropped: int


def check_streams(sample: TrainingSample) -> None:
    """Raise `AlignmentError` unless every per-token stream of the sample has the right length."""
    completion, total = len(sample.completion_ids), len(sample)
    expected: dict[str, tuple[Any, int]] = {
        "completion_mask": (sample.completion_mask, completion),
        "completion_logprobs": (sample.completion_logprobs, completion),
        "temperatures": (sample.temperatures, completion),
        "teacher_logprobs": (sample.teacher_logprobs, total),
        "routed_experts": (sample.routed_experts, total),
        "mm_token_type_ids": (sample.mm_token_type_ids, total),
    }
    for name, (stream, length) in expected.items():
        if stream is not None and len(stream) != length:
            raise AlignmentError(
                f"{name} has {len(stream)} entries for {length} tokens",
                where=f"sample of trajectory {sample.trajectory_id!r}",
                next_step="build the stream over the same tokens as the sample's ids",
            )
    if (sample.pixel_values is None) != (sample.image_grid_thw is None):
        raise AlignmentError(
            "a sample has one of pixel_values and image_grid_thw, and not the other",
            where=f"sample of trajectory {sample.trajectory_id!r}",
            next_step="carry both from the model's image processor into the sample",
        )


def has_target(sample: TrainingSample) -> bool:
    """Whether any token is trained. The very first token of a sequence has no context and never counts."""
    first = 0 if sample.prompt_ids else 1
    return any(sample.completion_mask[first:])


def fit_sample(sample: TrainingSample, seq_len: int) -> FitResult:
    """Cut a sample to `seq_len` tokens from the right; drop it where that leaves no target.

    A sample with images is never cut: half an image is no input; it is dropped where it does not fit.
    """
    check_streams(sample)
    if len(sample) <= seq_len:
        return FitResult(sample if has_target(sample) else None, is_truncated=False)
    if sample.pixel_values is not None:
        return FitResult(None, is_truncated=True)
    prompt = min(len(sample.prompt_ids), seq_len)
    completion = seq_len - prompt
    cut = replace(
        sample,
        prompt_ids=sample.prompt_ids[:prompt],
        completion_ids=sample.completion_ids[:completion],
        completion_mask=sample.completion_mask[:completion],
        completion_logprobs=_cut(sample.completion_logprobs, completion),
        temperatures=sample.temperatures[:completion],
        teacher_logprobs=_cut(sample.teacher_logprobs, seq_len),
        routed_experts=_cut(sample.routed_experts, seq_len),
        mm_token_type_ids=_cut(sample.mm_token_type_ids, seq_len),
    )
    return FitResult(cut if has_target(cut) else None, is_truncated=True)


def _cut(stream: Any, length: int) -> Any:
    return None if stream is None else stream[:length]


def fit_samples(samples: Iterable[TrainingSample], seq_len: int) -> Fitted:
    """Fit many samples, counting what was cut and what was dropped."""
    kept: list[TrainingSample] = []
    truncated = dropped = 0
    for sample in samples:
        result = fit_sample(sample, seq_len)
        if result.sample is None:
            dropped += 1
            continue
        truncated += result.is_truncated
        kept.append(result.sample)
    return Fitted(kept, truncated, dropped)
