"""Pack samples into rows of at most `seq_len` tokens; packing never changes a sample's targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from prl.trajectory.routed import NO_ROUTE
from prl.types import AlignmentError, ConfigError, MicroBatch, TrainingSample

from .balance import check_ranks
from .fit import check_streams
from .sft_rows import SupervisedSample

_T = TypeVar("_T")


def pack(
    samples: Sequence[TrainingSample],
    seq_len: int,
    *,
    ranks: int = 1,
    pad_to: int | None = None,
    pad_token_id: int = 0,
) -> list[MicroBatch]:
    """Pack by first-fit decreasing into rows of at most `seq_len` tokens.

    Raises `ConfigError` for a sample that is longer: fit samples first (`fit_samples` counts what it cuts). Samples
    with and without an optional stream, or with images of another kind, never share a row, so nothing is ever filled
    in for a missing one. Long rows are divided until their number is a multiple of `ranks`, as far as samples allow
    (`prl_train.data.balance` fills up the rest). `pad_to` pads each row to that many tokens, after `cu_seqlens[-1]`.
    """
    check_ranks(ranks)
    groups: dict[tuple[Any, ...], list[TrainingSample]] = {}
    for sample in samples:
        check_streams(sample)
        _check_length(len(sample), seq_len, sample.trajectory_id)
        groups.setdefault(_streams_of(sample), []).append(sample)
    rows = [row for group in groups.values() for row in _first_fit_decreasing(group, seq_len, len)]
    return [_row(row, pad_to, pad_token_id) for row in _divided(rows, ranks)]


def _streams_of(sample: TrainingSample) -> tuple[Any, ...]:
    """Return what samples of one row have in common: the optional streams they carry, and the kind of their images."""
    streams = (
        sample.completion_logprobs,
        sample.teacher_logprobs,
        sample.routed_experts,
        sample.mm_token_type_ids,
        sample.pixel_values,
    )
    present = tuple(stream is not None for stream in streams)
    if sample.pixel_values is None:
        return present
    pixels = np.asarray(sample.pixel_values)
    return (*present, str(pixels.dtype), pixels.shape[1:])


def _divided(rows: list[list[TrainingSample]], ranks: int) -> list[list[TrainingSample]]:
    """Cut the longest row that has several samples in two, until the rows come out even over the ranks."""
    rows = list(rows)
    while len(rows) % ranks:
        several = [index for index, row in enumerate(rows) if len(row) > 1]
        if not several:
            break
        longest = rows.pop(max(several, key=lambda index: sum(map(len, rows[index]))))
        halves: tuple[list[TrainingSample], list[TrainingSample]] = ([], [])
        for sample in sorted(longest, key=len, reverse=True):
            min(halves, key=lambda half: sum(map(len, half))).append(sample)
        rows += halves
    return rows


def _check_length(length: int, seq_len: int, name: str) -> None:
    if length > seq_len or length == 0:
        raise ConfigError(
            f"a sample of {length} tokens cannot be packed into rows of {seq_len}",
            where=f"sample {name!r}",
            next_step="raise seq_len, or cut samples first with prl_train.data.fit_samples",
        )


def _first_fit_decreasing(samples: Iterable[_T], seq_len: int, length: Callable[[_T], int]) -> list[list[_T]]:
    """Put each sample, longest first, into the first row that still has room."""
    rows: list[list[_T]] = []
    room: list[int] = []
    for sample in sorted(samples, key=length, reverse=True):
        needed = length(sample)
        index = next((i for i, free in enumerate(room) if free >= needed), None)
        if index is None:
            rows.append([sample])
            room.append(seq_len - needed)
        else:
            rows[index].append(sample)
            room[index] -= needed
    return rows


def _row(samples: Sequence[TrainingSample], pad_to: int | None, pad_token_id: int) -> MicroBatch:
    documents = [sample.prompt_ids + sample.completion_ids for sample in samples]
    before = [len(sample.prompt_ids) for sample in samples]
    padding = _padding([len(document) for document in documents], pad_to)

    def spread(values: Callable[[TrainingSample], list[_T]], fill: _T) -> list[_T]:
        out: list[_T] = []
        for sample, prompt in zip(samples, before, strict=True):
            out += [fill] * prompt + values(sample)
        return out + [fill] * padding

    batch = MicroBatch(
        input_ids=[token for document in documents for token in document] + [pad_token_id] * padding,
        position_ids=_positions(documents, padding),
        cu_seqlens=_boundaries(documents),
        loss_mask=_targets(spread(lambda sample: list(sample.completion_mask), False), _boundaries(documents)),
        advantages=spread(lambda sample: [sample.advantage] * len(sample.completion_ids), 0.0),
        inference_logprobs=_sampled(samples, spread),
        temperatures=spread(lambda sample: list(sample.temperatures), 1.0),
        teacher_logprobs=_join([sample.teacher_logprobs for sample in samples], padding, 0.0),
        routed_experts=_routes([sample.routed_experts for sample in samples], padding),
        pixel_values=_stacked([sample.pixel_values for sample in samples]),
        image_grid_thw=_stacked([sample.image_grid_thw for sample in samples]),
        mm_token_type_ids=_join([sample.mm_token_type_ids for sample in samples], padding, 0),
    )
    check_row(batch)
    return batch


def pack_supervised(
    samples: Sequence[SupervisedSample], *, pad_to: int | None = None, pad_token_id: int = 0
) -> MicroBatch:
    """Join supervised samples to one row, in the order given; `loss_mask[i]` says token i is a target."""
    documents = [list(sample.token_ids) for sample in samples]
    for sample, document in zip(samples, documents, strict=True):
        if len(sample.loss_mask) != len(document):
            raise AlignmentError(
                f"loss_mask has {len(sample.loss_mask)} entries for {len(document)} tokens",
                where="a supervised sample",
                next_step="build the sample with prl.build_supervised_sample",
            )
    padding = _padding([len(document) for document in documents], pad_to)
    length = sum(len(document) for document in documents) + padding
    mask = [bool(flag) for sample in samples for flag in sample.loss_mask] + [False] * padding
    return MicroBatch(
        input_ids=[token for document in documents for token in document] + [pad_token_id] * padding,
        position_ids=_positions(documents, padding),
        cu_seqlens=_boundaries(documents),
        loss_mask=_targets(mask, _boundaries(documents)),
        advantages=[0.0] * length,
        inference_logprobs=None,
        temperatures=[1.0] * length,
    )


def pack_supervised_batch(samples: Sequence[SupervisedSample], seq_len: int) -> list[MicroBatch]:
    """Pack supervised samples by first-fit decreasing into rows of at most `seq_len` tokens."""
    for index, sample in enumerate(samples):
        _check_length(len(sample.token_ids), seq_len, str(index))
    rows = _first_fit_decreasing(samples, seq_len, lambda sample: len(sample.token_ids))
    return [pack_supervised(row) for row in rows]


def _padding(lengths: Sequence[int], pad_to: int | None) -> int:
    total = sum(lengths)
    if pad_to is None:
        return 0
    if pad_to < total:
        raise ConfigError(
            f"a row of {total} tokens cannot be padded to {pad_to}", where="pad_to", next_step="use pad_to = seq_len"
        )
    return pad_to - total


def _positions(documents: Sequence[Sequence[int]], padding: int) -> list[int]:
    return [i for document in documents for i in range(len(document))] + list(range(padding))


def _boundaries(documents: Sequence[Sequence[int]]) -> list[int]:
    boundaries = [0]
    for document in documents:
        boundaries.append(boundaries[-1] + len(document))
    return boundaries


def _targets(mask: list[bool], boundaries: Sequence[int]) -> list[bool]:
    """Clear the mask at each document's first token: it has no context, and the token before it is another sample's."""
    for start, end in pairwise(boundaries):
        if end > start:
            mask[start] = False
    return mask


def _join(streams: Sequence[Any], padding: int, fill: Any) -> Any:
    """Join an optional stream that all samples of the row have, or none."""
    if streams[0] is None:
        return None
    return [entry for stream in streams for entry in stream] + [fill] * padding


def _sampled(samples: Sequence[TrainingSample], spread: Callable[..., list[float]]) -> list[float] | None:
    """Join the sampler's log-probabilities, which all samples of the row have, or none."""
    if samples[0].completion_logprobs is None:
        return None
    return spread(lambda sample: list(sample.completion_logprobs), 0.0)


def _routes(streams: Sequence[Any], padding: int) -> Any:
    """Join routing rows to one integer array [T, layers, experts per token]; padding has no route."""
    if streams[0] is None:
        return None
    arrays = [np.asarray(stream) for stream in streams]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        raise AlignmentError(
            f"routed_experts of samples of one batch have the shapes {sorted(shapes)} per token",
            where="routed_experts",
            next_step="sample all of a batch from engines of one model",
        )
    return np.concatenate([*arrays, np.full((padding, *shapes.pop()), NO_ROUTE, dtype=arrays[0].dtype)])


def _stacked(arrays: Sequence[Any]) -> Any:
    """Put the images of the row's samples one after the other."""
    return None if arrays[0] is None else np.concatenate([np.asarray(array) for array in arrays])


def check_row(batch: MicroBatch) -> None:
    """Raise `AlignmentError` unless every stream has one entry per token, and every target a token before it."""
    length = len(batch.input_ids)
    names = ("position_ids", "loss_mask", "advantages", "temperatures")
    optional = ("inference_logprobs", "teacher_logprobs", "routed_experts", "mm_token_type_ids")
    for name in names + optional:
        stream = getattr(batch, name)
        if stream is None and name in optional:
            continue
        if len(stream) != length:
            raise AlignmentError(
                f"{name} has {len(stream)} entries for {length} tokens",
                where="a packed row",
                next_step="build rows with prl_train.data.pack",
            )
    if batch.cu_seqlens[0] != 0 or batch.cu_seqlens[-1] > length or batch.cu_seqlens != sorted(batch.cu_seqlens):
        raise AlignmentError(
            f"cu_seqlens {batch.cu_seqlens} do not divide {length} tokens",
            where="a packed row",
            next_step="build rows with prl_train.data.pack",
        )
    nothing_before = [start for start, end in pairwise(batch.cu_seqlens) if end > start and batch.loss_mask[start]]
    if nothing_before or any(batch.loss_mask[batch.cu_seqlens[-1] :]):
        place = f"token {nothing_before[0]}, the first of a sample," if nothing_before else "a token of the padding"
        raise AlignmentError(
            f"{place} is a target: no token of its sample predicts it",
            where="loss_mask of a packed row",
            next_step="build rows with prl_train.data.pack",
        )
