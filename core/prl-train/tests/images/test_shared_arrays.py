"""A batch with the same images in many samples holds them once, on disk and in the trainer's memory."""

from __future__ import annotations

import numpy as np
import pytest

from prl.types import TrainingSample
from prl_train.run.batch import Progress, StepBatch, decode_batch, encode_batch
from prl_train.run.errors import RunError


def sample(pixels: object, experts: object = None) -> TrainingSample:
    return TrainingSample(
        prompt_ids=[1],
        completion_ids=[2],
        completion_mask=[True],
        completion_logprobs=None,
        temperatures=[1.0],
        routed_experts=experts,
        pixel_values=pixels,
    )


def test_an_array_is_written_once_and_read_back_as_one() -> None:
    pixels, others = np.arange(5000, dtype=np.float32).reshape(50, 100), np.ones((2, 3), dtype=np.float32)
    experts = np.array([[[1, 2]]], dtype=np.uint8)
    samples = [sample(pixels, experts), sample(others), sample(pixels), sample(pixels.copy()), sample(others)]
    data = encode_batch(StepBatch(step=1, samples=samples, metrics={}, progress=Progress()))
    assert 2 * pixels.nbytes < len(data) < 2 * pixels.nbytes + 2000
    read = decode_batch(data).samples
    assert read[0].pixel_values is read[2].pixel_values
    assert read[1].pixel_values is read[4].pixel_values
    assert read[3].pixel_values is not read[0].pixel_values
    assert (read[3].pixel_values == pixels).all()
    assert (read[1].pixel_values == others).all()
    assert (read[0].routed_experts == experts).all()


def test_a_number_of_an_array_that_is_not_there_is_no_batch() -> None:
    import msgspec

    bad = msgspec.msgpack.encode({"samples": msgspec.msgpack.Ext(2, msgspec.msgpack.encode(3))})
    with pytest.raises(RunError, match="not a batch file"):
        decode_batch(bad)
