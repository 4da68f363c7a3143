"""Tensors arrive as they were sent, or nobody gets half of them and nobody waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch

from prl.transfer import GroupError, WeightIntake
from prl.types import ConfigError, TensorSpec, WeightManifest
from prl_train.transfer.config import TransferConfig
from prl_train.transfer.sender import WeightSender, manifest_of

from .ends import CPU, Ends, outgoing

Make = Callable[..., Ends]
torch.manual_seed(0)
TENSORS = {
    "wide": torch.randn(7, 33),
    "half": torch.randn(5, 3).bfloat16(),
    "one": torch.tensor(2.5),
    "none": torch.empty(0, 4),
    "whole": torch.arange(9).view(3, 3),
    "flags": torch.tensor([True, False, True]),
    "sliced": torch.randn(6, 8)[:, ::2],
}
SENT = outgoing(TENSORS)
MANIFEST = manifest_of(SENT)


def assert_all(received: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor]) -> None:
    assert list(received) == list(tensors)
    for name, tensor in tensors.items():
        assert received[name].dtype == tensor.dtype
        assert received[name].shape == tensor.shape
        assert torch.equal(received[name], tensor), name


@pytest.mark.parametrize("bucket", [16, 100, 1_000_000], ids=["tiny", "small", "all in one"])
def test_every_kind_of_tensor_arrives_in_buckets_of_any_size(make_ends: Make, bucket: int) -> None:
    ends = make_ends()
    transfer = ends.plan(MANIFEST, receivers=2, bucket=bucket)
    coming = [ends.receive(WeightIntake(torch, "cpu"), MANIFEST, transfer) for _ in range(2)]
    ends.send(SENT, transfer)
    for one in coming:
        assert_all(one.result(10), TENSORS)


def test_a_group_is_used_again_and_a_new_one_takes_its_place(make_ends: Make) -> None:
    ends, intakes = make_ends(), [WeightIntake(torch, "cpu") for _ in range(2)]
    identities = [intake.identity for intake in intakes]
    for group, round_ in (("a", 0), ("a", 1), ("b", 2), ("b", 3)):
        tensors = {"t": torch.full((40,), float(round_))}
        sent = outgoing(tensors)
        transfer = ends.plan(manifest_of(sent), receivers=2, group=group)
        coming = [ends.receive(intake, manifest_of(sent), transfer) for intake in intakes]
        ends.send(sent, transfer)
        for one in coming:
            assert_all(one.result(10), tensors)
        assert ends.sender.held == group
    assert [intake.identity for intake in intakes] == identities, "the next group would be made anew for nothing"


def test_a_receiver_that_never_comes_costs_the_sender_its_time_limit_and_no_more(make_ends: Make) -> None:
    ends = make_ends(seconds=1.0)
    transfer = ends.plan(MANIFEST, receivers=2)
    intake = WeightIntake(torch, "cpu")
    identity = intake.identity
    began = time.monotonic()
    coming = ends.receive(intake, MANIFEST, transfer)
    with pytest.raises(GroupError, match="1 of 2 receivers came"):
        ends.send(SENT, transfer)
    assert time.monotonic() - began < 30
    with pytest.raises(GroupError):
        coming.result(10)
    assert intake.identity != identity, "the orchestrator would count on the old group"


def test_a_receiver_that_stops_in_the_middle_costs_the_time_limit_and_a_new_group_works(make_ends: Make) -> None:
    ends = make_ends(seconds=2.0)
    large = {"t": torch.randn(4_000_000)}
    sent = outgoing(large)
    manifest = manifest_of(sent)
    transfer = ends.plan(manifest, receivers=1, bucket=8_000_000)

    given_up = threading.Event()

    class Stops(WeightIntake):
        def _fill(self, *words: object) -> dict[str, torch.Tensor]:
            assert given_up.wait(60), "the sender waits for ever"
            raise GroupError("it stopped")

    coming = ends.receive(Stops(torch, "cpu"), manifest, transfer)
    began = time.monotonic()
    with pytest.raises(GroupError, match="the transfer broke off"):
        ends.send(sent, transfer)
    assert time.monotonic() - began > 1.5
    given_up.set()
    ends.sender.leave()
    again = ends.plan(manifest, receivers=1, group="again", bucket=8_000_000)
    other = ends.receive(WeightIntake(torch, "cpu"), manifest, again)
    ends.send(sent, again)
    assert_all(other.result(10), large)
    with pytest.raises(GroupError, match="it stopped"):
        coming.result(10)


def test_one_receiver_too_many_is_turned_away(make_ends: Make) -> None:
    ends = make_ends()
    transfer = ends.plan(MANIFEST, receivers=1)
    coming = [ends.receive(WeightIntake(torch, "cpu"), MANIFEST, transfer) for _ in range(2)]
    ends.send(SENT, transfer)
    failures = [one.exception(10) for one in coming]
    assert sorted(failure is None for failure in failures) == [False, True]
    assert any("all 1 seats of the group are taken" in str(failure) for failure in failures)


def test_nobody_waits_for_a_sender_that_is_gone() -> None:
    ends = Ends(seconds=1.0)
    transfer = ends.plan(MANIFEST, receivers=1)
    with pytest.raises(GroupError, match="did not begin"):
        WeightIntake(torch, "cpu").receive(MANIFEST, transfer)
    ends.close()
    del ends.sender
    with pytest.raises(GroupError, match="cannot be reached"):
        WeightIntake(torch, "cpu").receive(MANIFEST, transfer)


def test_other_tensors_than_the_offered_ones_are_refused_before_anything_comes(make_ends: Make) -> None:
    ends = make_ends()
    transfer = ends.plan(MANIFEST, receivers=1)
    other = WeightManifest(MANIFEST.tensors[1:])
    with pytest.raises(GroupError, match="not what was offered"):
        WeightIntake(torch, "cpu").receive(other, transfer)
    intake = WeightIntake(torch, "cpu")
    with pytest.raises(GroupError, match="which this torch does not know"):
        intake.check(WeightManifest((TensorSpec("a", "float4_of_tomorrow", (2,), 1),)))
    with pytest.raises(GroupError, match=r"'a' has 7 bytes, which are not \[2\] float32"):
        intake.check(WeightManifest((TensorSpec("a", "float32", (2,), 7),)))


def test_an_address_of_another_machine_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0"):
        WeightSender(TransferConfig(host="192.0.2.1"), CPU)
