"""Trainer and orchestrator agree on each version: sent, sent once more, or through a directory; never lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from prl.transfer import GroupError, WeightIntake
from prl.types import EngineError, EngineUnavailableError, Seats, WeightManifest, WeightTransfer, WeightTransferError
from prl_train.orchestrator.weights import WeightFollower
from prl_train.run import RunFolder
from prl_train.trainer import Trainer, TrainerConfig
from prl_train.transfer.board import Offer, TransferBoard
from prl_train.transfer.broadcast import Broadcast
from prl_train.transfer.desk import TransferDesk, choose_backend

SECONDS = 30.0  # a busy machine is no engine that fails


class Engine:
    """Receives for real; `faults` are raised, one a transfer, instead of receiving or after it."""

    def __init__(self) -> None:
        self.intake = WeightIntake(torch, "cpu")
        self.manifest = WeightManifest(())
        self.tensors: dict[str, torch.Tensor] = {}
        self.events: list[str] = []
        self.transfers: list[WeightTransfer] = []
        self.refusal: EngineError | None = None
        self.absent = 0
        self.refuses_after = False

    async def load_weights(self, directory: str, version: int) -> None:
        self.tensors = load_file(Path(directory) / "model.safetensors")
        self.events.append(f"directory {version}")

    async def offer_weights(self, manifest: WeightManifest) -> Seats:
        if self.refusal is not None:
            raise self.refusal
        self.manifest = manifest
        return Seats(("cpu",), self.intake.identity)

    async def receive_weights(self, transfer: WeightTransfer) -> None:
        self.transfers.append(transfer)
        if self.absent:
            self.absent -= 1
            raise EngineUnavailableError("it was killed")
        try:
            received = await asyncio.to_thread(self.intake.receive, self.manifest, transfer)
        except GroupError as error:
            raise WeightTransferError(str(error)) from error
        if self.refuses_after:
            raise EngineError("it does not fit")
        self.tensors = received
        self.events.append(f"received {transfer.version}")

    async def _nothing(self, *_: Any) -> Any:
        raise AssertionError("not a part of this test")

    generate = chat = models = health = close = _nothing


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture(scope="module")
def trainer(model_dir: Path) -> Trainer:
    made = Trainer(TrainerConfig(model=str(model_dir), weight_transfer="broadcast", transfer={"seconds": SECONDS}))
    made.load()
    return made


class Run:
    """The trainer's half in a thread, and the orchestrator's follower in the test's loop."""

    def __init__(self, trainer: Trainer, folder: RunFolder) -> None:
        self.trainer, self.folder, self.engine = trainer, folder, Engine()
        self.broadcast = Broadcast(trainer, folder)
        self.follower = WeightFollower(self.engine, folder, wait_seconds=20)  # type: ignore[arg-type]
        self.over = threading.Event()

    def be_patient_for(self, seconds: float) -> None:
        """Let the trainer wait so long from now on."""
        self.broadcast._config = self.broadcast._config.model_copy(update={"seconds": seconds})

    async def send(self, version: int) -> bool:
        """Send changed weights; write the directory where that is needed."""
        with torch.no_grad():
            self.trainer.model.model.norm.weight.fill_(float(version))
        following = asyncio.create_task(self.follower.follow(lambda _: None, until=version))
        sent = await asyncio.to_thread(self.broadcast.send, version, self.over.is_set)
        if not sent:
            directory = self.trainer.publish_weights(self.folder.weights, version)
            self.folder.write_weights_pointer(version, directory)
        await asyncio.wait_for(following, 20)
        return sent

    def assert_served(self, version: int) -> None:
        state = self.trainer.model.state_dict()
        assert self.follower.version == version
        assert self.engine.tensors["model.norm.weight"].unique().tolist() == [version]
        assert "lm_head.weight" not in self.engine.tensors, "a tied head goes over the wire once"
        for name, tensor in self.engine.tensors.items():
            assert torch.equal(tensor, state[name]), name


@pytest.fixture
def run(trainer: Trainer, folder: RunFolder) -> Iterator[Run]:
    made = Run(trainer, folder)
    yield made
    made.over.set()
    made.broadcast.close()


async def test_versions_go_over_one_group_and_no_directory_is_written(run: Run) -> None:
    for version in (1, 2, 3):
        assert await run.send(version)
        run.assert_served(version)
    assert run.engine.events == ["received 1", "received 2", "received 3"]
    assert len({transfer.group for transfer in run.engine.transfers}) == 1
    assert not run.folder.weights.exists()
    assert not (run.folder.transfer / "trainer/offer.json").exists(), "an offer that no longer stands would be taken"


async def test_an_engine_that_fails_once_gets_the_weights_by_the_second_try(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.be_patient_for(3.0)
    assert await run.send(1)
    run.engine.absent = 1
    with caplog.at_level(logging.WARNING, "prl.transfer"):
        assert await run.send(2)
    run.assert_served(2)
    groups = [transfer.group for transfer in run.engine.transfers]
    assert len(set(groups)) == len(groups) - 1 == 2, "the broken group was not used again"
    assert "weights 2 are sent once more, over a new group" in caplog.text
    assert TransferBoard(run.folder.transfer).wanted() is None


async def test_an_engine_that_fails_twice_gets_a_directory(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.be_patient_for(1.0)
    run.engine.absent = 2
    with caplog.at_level(logging.WARNING, "prl.transfer"):
        assert not await run.send(1)
    run.assert_served(1)
    assert run.engine.events == ["directory 1"]
    assert caplog.text.count("weights 1 were not sent: 0 of 1 receivers came") == 2
    run.be_patient_for(SECONDS)
    assert await run.send(2), "the next version is sent again"
    run.assert_served(2)


async def test_an_engine_that_takes_no_transfers_gets_directories_and_the_reason_is_told(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.engine.refusal = EngineError("this server has no such route")
    with caplog.at_level(logging.WARNING, "prl.transfer"):
        assert not await run.send(1)
    run.assert_served(1)
    assert "weights 1 go through a directory: this server has no such route" in caplog.text


async def test_weights_that_came_but_were_refused_are_wanted_in_a_directory(run: Run) -> None:
    """The trainer sent everything and goes on; without a word from the engines' side they would wait for ever."""
    run.engine.refuses_after = True
    with torch.no_grad():
        run.trainer.model.model.norm.weight.fill_(1.0)
    following = asyncio.create_task(run.follower.follow(lambda _: None, until=1))
    assert await asyncio.to_thread(run.broadcast.send, 1, run.over.is_set)
    while run.broadcast.wanted() is None:
        await asyncio.sleep(0.01)
    assert run.broadcast.wanted() == 1
    run.folder.write_weights_pointer(1, run.trainer.publish_weights(run.folder.weights, 1))
    await asyncio.wait_for(following, 10)
    run.assert_served(1)
    run.engine.refuses_after = False
    assert await run.send(2)
    assert run.broadcast.wanted() is None


async def test_a_version_that_engines_have_is_not_sent_again(run: Run) -> None:
    """A trainer that goes on from a checkpoint trains versions again that engines got before it was killed."""
    assert await run.send(5)
    following = asyncio.create_task(run.follower.follow(lambda _: None, until=6))
    again = Broadcast(run.trainer, run.folder)
    assert await asyncio.to_thread(again.send, 4, run.over.is_set)
    following.cancel()
    assert run.engine.events == ["received 5"]


async def test_a_trainer_whose_orchestrator_is_gone_waits_no_longer_than_it_must(run: Run) -> None:
    run.over.set()
    assert not await asyncio.to_thread(run.broadcast.send, 1, run.over.is_set)
    assert TransferBoard(run.folder.transfer).newest_offer() is None


async def test_what_a_killed_orchestrator_wanted_is_forgotten(folder: RunFolder) -> None:
    board = TransferBoard(folder.transfer)
    board.want(3)
    TransferDesk(Engine(), board)  # type: ignore[arg-type]
    assert board.wanted() is None


def test_an_answer_belongs_to_its_offer(folder: RunFolder, run: Run) -> None:
    board = TransferBoard(folder.transfer)
    offer = Offer(
        id="x", version=1, address="h:1", device="cpu", sender="s", held="", digest="d", backend="auto",
        bucket_bytes=16, seconds=1.0,
    )  # fmt: skip
    board.offer(offer, run.engine.manifest)
    assert TransferBoard(folder.transfer).newest_offer() == offer
    assert board.answer_to("x") is None


@pytest.mark.parametrize(
    ("wanted", "devices", "backend"),
    [
        ("auto", ["cpu", "cpu"], "gloo"),
        ("auto", ["GPU-1", "cpu"], "gloo"),
        ("auto", ["GPU-1", "GPU-2", "GPU-3"], "nccl"),
        ("auto", ["GPU-1", "GPU-2", "GPU-1"], "gloo"),
        ("gloo", ["GPU-1", "GPU-2"], "gloo"),
        ("nccl", ["GPU-1", "GPU-2"], "nccl"),
    ],
)
def test_nccl_is_used_where_every_process_has_a_gpu_of_its_own(wanted: str, devices: list[str], backend: str) -> None:
    """NCCL refuses two processes on one GPU, such as an engine beside the trainer."""
    assert choose_backend(wanted, devices) == backend
