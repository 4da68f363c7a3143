"""Divided weights are sent by one process as whole as a directory holds them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from prl.transfer import WeightIntake
from prl.types import WeightTransfer
from prl_train.distributed import World
from prl_train.trainer import Trainer
from prl_train.transfer.config import TransferConfig
from prl_train.transfer.sender import TensorStream, WeightSender, manifest_of

from .cases import make_trainer, steps
from .spawn import run_world

BUCKET = 1000


def _work(world: World, folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, settings in {"plain": {}, "half": {"dtype": "bfloat16"}, "lora": {"lora": {"rank": 4}}}.items():
        trainer = make_trainer(folder / "model", world, **settings)
        steps(trainer, 0, 1)
        trainer.publish_weights(folder / name, 1)
        told[name] = _sent(trainer, world)
    return told


def _sent(trainer: Trainer, world: World) -> dict[str, torch.Tensor]:
    """Send a trainer's weights to a receiver in the main process; return what came."""
    outgoing = trainer.outgoing_weights()
    manifest = manifest_of(outgoing)
    stream = TensorStream(outgoing, manifest, BUCKET)
    if not world.is_main:
        stream.accompany()
        return {}
    sender = WeightSender(TransferConfig(seconds=30), torch.device("cpu"))
    transfer = WeightTransfer(
        version=1, digest=manifest.digest, address=sender.address, offer="o", group="g", world=2, backend="gloo",
        bucket_bytes=BUCKET, seconds=30,
    )  # fmt: skip
    received: dict[str, torch.Tensor] = {}
    intake = WeightIntake(torch, "cpu")
    receiving = threading.Thread(target=lambda: received.update(intake.receive(manifest, transfer)))
    receiving.start()
    send = sender.begin(transfer)
    stream.send(sender.buffer(stream.largest), send)
    receiving.join(30)
    sender.leave()
    return received


@pytest.fixture(scope="module")
def sent(model_dir: Path) -> dict[str, Any]:
    """Return what the main one of two processes sent."""
    told = run_world(2, _work, model_dir.parent)
    assert not isinstance(told[0], Exception), told
    main: dict[str, Any] = told[0]
    return main


@pytest.mark.parametrize("name", ["plain", "half", "lora"])
def test_what_is_sent_is_what_a_directory_holds(sent: dict[str, Any], model_dir: Path, name: str) -> None:
    """Shards of one process, adapters that are not added, or weights of another precision would be other weights."""
    expected = load_file(model_dir.parent / name / "version_000001" / "model.safetensors")
    assert sorted(sent[name]) == sorted(expected)
    for key, tensor in expected.items():
        assert sent[name][key].dtype == tensor.dtype
        assert torch.equal(sent[name][key], tensor), key
