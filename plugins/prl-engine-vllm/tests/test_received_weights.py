"""Weights from a trainer's process into vLLM's workers: exact, versioned, whole or not at all."""

from __future__ import annotations

import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from prl.client import HttpEngineClient
from prl.types import (
    EngineError,
    GenerateRequest,
    SamplingParams,
    WeightManifest,
    WeightTransfer,
    WeightTransferError,
)
from prl_train.trainer.weights import Outgoing
from prl_train.transfer.config import TransferConfig
from prl_train.transfer.sender import TensorStream, WeightSender, manifest_of

pytestmark = pytest.mark.heavy
PROMPT = list(range(20, 60))
BUCKET = 100_000  # less than one tensor of this model, and more than another


class Trainer:
    """The sending end, in this process."""

    def __init__(self) -> None:
        self.sender = WeightSender(TransferConfig(seconds=5), torch.device("cpu"))

    def plan(self, manifest: WeightManifest, version: int, *, seats: int, group: str) -> WeightTransfer:
        return WeightTransfer(
            version=version,
            digest=manifest.digest,
            address=self.sender.address,
            offer=uuid.uuid4().hex,
            group=group,
            world=1 + seats,
            backend="gloo",
            bucket_bytes=BUCKET,
            seconds=5,
        )

    def send(self, tensors: list[Outgoing], transfer: WeightTransfer) -> threading.Thread:
        """Send tensors beside the test."""
        stream = TensorStream(tensors, manifest_of(tensors), transfer.bucket_bytes)

        def run() -> None:
            send = self.sender.begin(transfer)
            stream.send(self.sender.buffer(stream.largest), send)

        thread = threading.Thread(target=run)
        thread.start()
        return thread


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    made = Trainer()
    yield made
    made.sender.leave()


@pytest.fixture
async def client(moe_server: Any) -> AsyncIterator[HttpEngineClient]:
    client = HttpEngineClient(moe_server.url, timeout=120, retries=0)
    yield client
    await client.close()


def outgoing(folder: Path, **changes: torch.Tensor) -> list[Outgoing]:
    """Return a checkpoint's tensors as a trainer gives them away."""
    tensors = load_file(folder / "model.safetensors") | changes
    return [
        Outgoing(name, one.dtype, one.shape, one.numel() * one.dtype.itemsize, lambda one=one: one)  # type: ignore[misc]
        for name, one in tensors.items()
    ]


async def error_of(client: HttpEngineClient, model: Any, logprobs_of: Any, version: int) -> float:
    """Return the largest difference of any sampled token's log-probability from the model's own."""
    request = GenerateRequest(model="tiny", prompt_token_ids=PROMPT, sampling=SamplingParams(max_tokens=8, seed=1))
    answer = await client.generate(request)
    assert answer.weight_version == version
    [choice] = answer.choices
    expected = logprobs_of(model, [*PROMPT, *choice.token_ids])[len(PROMPT) - 1 :]
    return max(abs(a - b) for a, b in zip(choice.logprobs, expected, strict=True))


async def test_what_a_trainer_sends_is_served_exactly(
    client: HttpEngineClient,
    trainer: Trainer,
    moe_models: tuple[Path, Path],
    oracle: Callable[[Path], Any],
    logprobs_of: Any,
) -> None:
    """Experts and the tied head are packed by the workers; the second transfer goes over the same group."""
    models = oracle(moe_models[0]), oracle(moe_models[1])
    for version, which in ((2001, 1), (2002, 0), (2003, 1)):
        tensors = outgoing(moe_models[which])
        offered = manifest_of(tensors)
        seats = await client.offer_weights(offered)
        assert seats.devices == ("cpu",)
        transfer = trainer.plan(offered, version, seats=1, group="one")
        sending = trainer.send(tensors, transfer)
        await client.receive_weights(transfer)
        sending.join(20)
        assert await error_of(client, models[which], logprobs_of, version) < 1e-4
        assert await error_of(client, models[1 - which], logprobs_of, version) > 0.1


async def test_a_transfer_that_fails_leaves_the_weights_from_before(
    client: HttpEngineClient,
    trainer: Trainer,
    moe_models: tuple[Path, Path],
    oracle: Callable[[Path], Any],
    logprobs_of: Any,
) -> None:
    model = oracle(moe_models[0])
    spoilt = outgoing(moe_models[1], **{"model.norm.weight": torch.full((32,), float("nan"))})
    await client.load_weights(str(moe_models[0]), 2101)
    offered = manifest_of(spoilt)
    before = await client.offer_weights(offered)
    transfer = trainer.plan(offered, 2102, seats=1, group="two")
    with pytest.raises(WeightTransferError, match="did not begin"):  # nobody sends
        await client.receive_weights(transfer)
    assert await error_of(client, model, logprobs_of, 2101) < 1e-4
    after = await client.offer_weights(offered)
    assert after.identity != before.identity, "a group with this engine would be taken for whole"
    transfer = trainer.plan(offered, 2103, seats=1, group="three")
    sending = trainer.send(spoilt, transfer)
    with pytest.raises(EngineError, match="not finite"):
        await client.receive_weights(transfer)
    sending.join(20)
    assert await error_of(client, model, logprobs_of, 2101) < 1e-4


async def test_an_offer_that_does_not_fit_is_refused_before_anything_is_sent(
    client: HttpEngineClient, moe_models: tuple[Path, Path]
) -> None:
    whole = manifest_of(outgoing(moe_models[0]))
    with pytest.raises(EngineError, match="it lacks"):
        await client.offer_weights(WeightManifest(whole.tensors[1:]))
    first = whole.tensors[0]
    wrong = type(first)(first.name, first.dtype, (*first.shape, 2), first.size * 2)
    with pytest.raises(EngineError, match="has shape"):
        await client.offer_weights(WeightManifest((wrong, *whole.tensors[1:])))
    odd = type(first)(first.name, "float4_of_tomorrow", first.shape, first.size)
    with pytest.raises(EngineError, match="does not know"):
        await client.offer_weights(WeightManifest((odd, *whole.tensors[1:])))
