"""Weights sent by a trainer's process are served exactly as those of a directory, whole or not at all."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
import torch

from prl.client import HttpEngineClient
from prl.transfer import TransferGroup
from prl.types import (
    EngineError,
    GenerateRequest,
    GenerateResponse,
    SamplingParams,
    TensorSpec,
    WeightManifest,
    WeightTransfer,
    WeightTransferError,
)

BUCKET = 100_000  # bytes; the embedding goes through two


def ask(**sampling: Any) -> GenerateRequest:
    return GenerateRequest(model="tiny", prompt_token_ids=[5, 6, 7, 8], sampling=SamplingParams(**sampling))


def assert_from(response: GenerateResponse, model: Any, logprobs_of: Any) -> None:
    for choice in response.choices:
        assert choice.logprobs == pytest.approx(logprobs_of(model, [5, 6, 7, 8, *choice.token_ids])[3:], abs=1e-4)


def tensors_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}


def manifest_of(tensors: dict[str, torch.Tensor]) -> WeightManifest:
    return WeightManifest(
        tuple(
            TensorSpec(name, str(one.dtype).removeprefix("torch."), tuple(one.shape), one.numel() * one.itemsize)
            for name, one in tensors.items()
        )
    )


class Trainer:
    """The sending end: a store, and bytes in the order of the manifest."""

    def __init__(self) -> None:
        self.seconds = 5.0
        timeout = timedelta(seconds=self.seconds)
        self._store = torch.distributed.TCPStore("127.0.0.1", 0, None, True, timeout, wait_for_workers=False)

    def plan(self, manifest: WeightManifest, version: int) -> WeightTransfer:
        return WeightTransfer(
            version=version,
            digest=manifest.digest,
            address=f"127.0.0.1:{self._store.port}",
            offer=uuid.uuid4().hex,
            group=uuid.uuid4().hex,
            world=2,
            backend="gloo",
            bucket_bytes=BUCKET,
            seconds=self.seconds,
        )

    def send(self, tensors: dict[str, torch.Tensor], transfer: WeightTransfer, *, buckets: int | None = None) -> None:
        """Send all, or only the first `buckets`."""
        flat = [one.contiguous().view(-1).view(torch.uint8) for one in tensors.values()]
        self._store.set(transfer.offer, "begun")
        group = TransferGroup.gather(torch, transfer, self._store, "cpu")
        for pieces in list(manifest_of(tensors).buckets(transfer.bucket_bytes))[:buckets]:
            data = group.buffer(pieces[-1].end)
            for piece in pieces:
                data[piece.offset : piece.end] = flat[piece.tensor][piece.start : piece.start + piece.length]
            group.broadcast(data)
        group.close()


@pytest.fixture
def trainer() -> Trainer:
    return Trainer()


async def deliver(
    client: Any, trainer: Trainer, tensors: dict[str, torch.Tensor], version: int, **options: Any
) -> None:
    manifest = manifest_of(tensors)
    await client.offer_weights(manifest)
    transfer = trainer.plan(manifest, version)
    sending = asyncio.to_thread(trainer.send, tensors, transfer, **options)
    await asyncio.gather(client.receive_weights(transfer), sending)


@pytest.mark.parametrize("over_http", [False, True], ids=["in process", "over HTTP"])
async def test_received_weights_answer_exactly(
    make_engine: Any, serve: Any, new_model: Any, logprobs_of: Any, trainer: Trainer, over_http: bool
) -> None:
    """In the trainer's own precision, with the tied head left out, as a trainer sends it."""
    engine = await make_engine()
    client = HttpEngineClient(serve(engine).url) if over_http else engine.client()
    for version, dtype in ((7, torch.float32), (8, torch.bfloat16)):
        new = new_model(version)
        for weight in new.parameters():
            weight.data = weight.data.to(dtype).float()
        sent = {name: tensor.to(dtype) for name, tensor in tensors_of(new).items()}
        await deliver(client, trainer, sent, version)
        answer = await engine.generate(ask(max_tokens=6))
        assert answer.weight_version == version
        assert_from(answer, new, logprobs_of)
    await client.close()


@pytest.mark.usefixtures("slow_steps")
async def test_a_response_belongs_to_one_version_while_weights_come_in_under_load(
    make_engine: Any, new_model: Any, logprobs_of: Any, plain_model: Any, trainer: Trainer
) -> None:
    engine = await make_engine(max_batch_size=4)
    new = new_model(9)
    tasks = [asyncio.create_task(engine.generate(ask(max_tokens=20 + 7 * i))) for i in range(8)]
    await asyncio.sleep(0.05)
    await deliver(engine.client(), trainer, tensors_of(new), 1)
    tasks += [asyncio.create_task(engine.generate(ask(max_tokens=5))) for _ in range(3)]
    responses = await asyncio.gather(*tasks)
    versions = [response.weight_version for response in responses]
    assert set(versions) == {-1, 1}
    assert versions[-3:] == [1, 1, 1]
    for response in responses:
        assert_from(response, new if response.weight_version == 1 else plain_model, logprobs_of)


async def test_a_trainer_that_stops_half_way_leaves_the_old_weights_serving(
    make_engine: Any, serve: Any, new_model: Any, trainer: Trainer
) -> None:
    engine = await make_engine()
    client = HttpEngineClient(serve(engine).url)
    before = await engine.generate(ask(seed=1, max_tokens=20))
    with pytest.raises(WeightTransferError, match=r"weights 1 did not arrive: the transfer broke off") as caught:
        await deliver(client, trainer, tensors_of(new_model(4)), 1, buckets=1)
    assert "trainer.transfer.host" in caught.value.next_step
    after = await engine.generate(ask(seed=1, max_tokens=20))
    assert (after.choices, after.weight_version) == (before.choices, -1)
    await deliver(client, trainer, tensors_of(new_model(4)), 2)
    assert (await engine.generate(ask(max_tokens=1))).weight_version == 2
    await client.close()


async def test_values_that_are_not_finite_are_refused_after_they_came(
    make_engine: Any, new_model: Any, trainer: Trainer
) -> None:
    engine = await make_engine()
    tensors = tensors_of(new_model(4))
    tensors["model.norm.weight"] = torch.full((64,), float("nan"))
    with pytest.raises(EngineError, match=r"'model\.norm\.weight' holds values that are not finite"):
        await deliver(engine.client(), trainer, tensors, 1)
    assert (await engine.generate(ask(max_tokens=1))).weight_version == -1


async def test_an_offer_that_does_not_fit_is_refused_before_anything_is_sent(
    make_engine: Any, serve: Any, new_model: Any
) -> None:
    client = HttpEngineClient(serve(await make_engine()).url)
    whole = manifest_of(tensors_of(new_model(4)))
    first = whole.tensors[0]
    for tensors, said in (
        (whole.tensors[1:], r"it lacks"),
        ((*whole.tensors, TensorSpec("model.extra", "float32", (2,), 8)), r"has no 'model\.extra'"),
        ((TensorSpec(first.name, "float32", (1, 2), 8), *whole.tensors[1:]), r"has shape \[1, 2\]"),
        ((TensorSpec(first.name, "float4", first.shape, first.size), *whole.tensors[1:]), r"type 'float4'"),
        ((*whole.tensors, first), r"a name is there twice"),
    ):
        with pytest.raises(EngineError, match=said):
            await client.offer_weights(WeightManifest(tensors))
    await client.close()


async def test_a_malformed_transfer_is_told_by_field(make_engine: Any, serve: Any, call: Any) -> None:
    url = serve(await make_engine()).url
    status, answer = await call("POST", f"{url}/v1/weights/receive", {"version": -1})
    assert status == 422
    assert {"version", "address", "group"} <= {field["field"] for field in answer["error"]["fields"]}
    status, answer = await call("POST", f"{url}/v1/weights/offer", {"tensors": []})
    assert (status, answer["error"]["fields"][0]["field"]) == (422, "tensors")
