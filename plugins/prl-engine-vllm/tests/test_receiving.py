"""What the front end makes of its workers' word on weights that a trainer sends, over a stand-in for vLLM's engine."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from prl.serving.errors import WeightLoadError
from prl.transfer import OfferBody, TransferBody
from prl.types import WeightTransferError
from prl_engine_vllm.errors import WeightsUndefinedError
from prl_engine_vllm.server.state import WeightState
from prl_engine_vllm.server.weights import WeightService
from prl_engine_vllm.worker.load import WorkerLoadError, WorkerMethods

OFFER = OfferBody.model_validate({"tensors": [{"name": "w", "dtype": "float32", "shape": [2], "size": 8}]})
TRANSFER = TransferBody.model_validate(
    {
        "version": 5, "digest": "d", "address": "127.0.0.1:9", "offer": "o", "group": "g", "world": 3,
        "backend": "gloo", "bucket_bytes": 64, "seconds": 1.0,
    }
)  # fmt: skip


class Engine:
    """Remembers what was asked of workers; `faults` says which calls fail, and with what."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.faults: dict[str, str] = {}
        self.devices = ["GPU-1", "GPU-2"]
        self.errored = False
        self.version = "0"

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        self.calls.append(method)
        if method in self.faults:
            raise Exception(self.faults[method])  # vLLM raises just that
        return list(self.devices)

    async def is_paused(self) -> bool:
        return False

    async def pause_generation(self, **_: Any) -> None:
        self.calls.append("pause")

    async def resume_generation(self) -> None:
        self.calls.append("resume")

    async def update_weight_version(self, label: str) -> None:
        self.version = label


@pytest.fixture
def served(tmp_path: Path) -> str:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    return str(tmp_path)


def make(served: str, copies: int = 1) -> tuple[Engine, WeightService]:
    engine = Engine()
    return engine, WeightService(engine, WeightState(), lambda: served, tied=False, copies=copies)


async def test_requests_pause_for_the_load_and_not_for_the_transfer(served: str) -> None:
    """A transfer waits for the trainer; requests that run must not end for it."""
    engine, service = make(served)
    assert (await service.offer(OFFER)).devices == ("GPU-1", "GPU-2")
    assert await service.receive(TRANSFER) == 5
    assert engine.calls == [
        "prl_offer_weights", "prl_receive_weights", "prl_check_received", "pause", "prl_load_received", "resume",
    ]  # fmt: skip
    assert engine.version == "5"


async def test_every_copy_of_the_model_has_seats_of_its_own(served: str) -> None:
    """One that counts a GPU twice would take the slower way."""
    _, service = make(served, copies=2)
    devices = (await service.offer(OFFER)).devices
    assert len(set(devices)) == 4
    engine, service = make(served, copies=2)
    engine.devices = ["cpu"]
    assert (await service.offer(OFFER)).devices == ("cpu", "cpu")


async def test_a_worker_that_received_nothing_has_all_leave_the_group(served: str) -> None:
    engine, service = make(served)
    before = (await service.offer(OFFER)).identity
    assert (await service.offer(OFFER)).identity == before
    engine.faults["prl_receive_weights"] = "the transfer broke off"
    with pytest.raises(WeightTransferError, match="weights 5 did not arrive: a worker failed: the transfer broke off"):
        await service.receive(TRANSFER)
    assert engine.calls[-1] == "prl_drop_received"
    assert (await service.offer(OFFER)).identity != before
    assert engine.version == "0"


async def test_values_that_workers_refuse_are_not_loaded(served: str) -> None:
    engine, service = make(served)
    engine.faults["prl_check_received"] = "'w' holds values that are not finite"
    with pytest.raises(WeightLoadError, match="not finite"):
        await service.receive(TRANSFER)
    assert "prl_load_received" not in engine.calls


async def test_a_failed_load_never_goes_back_to_a_directory_that_is_older_than_what_was_sent(served: str) -> None:
    """The weights before came from a process: the newest directory would be served under a wrong version."""
    engine, service = make(served)
    await service.receive(TRANSFER)
    engine.faults["prl_load_received"] = "out of memory"
    with pytest.raises(WeightsUndefinedError, match="no directory of the weights before is known"):
        await service.receive(TRANSFER)
    assert engine.calls[-1] == "prl_load_received", "neither loaded nor resumed"
    assert await service.load(served, 6) == 6
    assert engine.version == "6"


def test_a_worker_says_in_plain_text_what_it_refuses() -> None:
    """What it raises crosses processes."""
    worker: Any = SimpleNamespace(device=torch.device("cpu"))
    assert WorkerMethods.prl_offer_weights(worker, OFFER.model_dump_json()) == "cpu"
    wrong = json.loads(OFFER.model_dump_json())
    wrong["tensors"][0]["size"] = 9
    with pytest.raises(WorkerLoadError, match="'w' has 9 bytes"):
        WorkerMethods.prl_offer_weights(worker, json.dumps(wrong))
    with pytest.raises(WorkerLoadError, match="not what was offered"):
        WorkerMethods.prl_receive_weights(worker, TRANSFER.model_dump_json())
    worker.prl_seat.tensors = {"w": torch.tensor([1.0, float("inf")])}
    with pytest.raises(WorkerLoadError, match="not finite"):
        WorkerMethods.prl_check_received(worker, False)
    assert WorkerMethods.prl_drop_received(worker)
    assert worker.prl_seat.tensors == {}
