"""Whether a kernel can run on a machine is told from its record, with the reason where it cannot."""

from __future__ import annotations

import pytest

from prl.plugin import AttentionEntry, is_first_party
from prl.plugin.machine import Machine, misfits, obstacle

HOPPER = AttentionEntry(
    name="hopper",
    target="acme.kernel:create",
    devices=("cuda",),
    dtypes=("bfloat16",),
    install="pip install acme",
    features=("window", "lse"),
    compute_capability=(9, 0),
    compute_capability_below=(10, 0),
    head_size_max=256,
    head_size_multiple=8,
)
ANY = AttentionEntry(name="any", target="acme.kernel:create")
BLIND = AttentionEntry(name="blind", target="acme.kernel:create", devices=("cpu", "cuda"), forward_only=("cpu",))
CPU = Machine()


def cuda(*capabilities: tuple[int, int]) -> Machine:
    return Machine(devices=("cpu", "cuda"), capabilities=capabilities)


@pytest.mark.parametrize(
    ("record", "machine", "reason"),
    [
        (ANY, CPU, ""),
        (HOPPER, CPU, "needs cuda, and torch finds cpu"),
        (HOPPER, cuda((9, 0)), ""),
        (HOPPER, cuda((8, 6), (9, 0)), ""),
        (HOPPER, cuda((8, 6)), "needs a compute capability of 9.0 or more and below 10.0, and the device has 8.6"),
        (HOPPER, cuda((10, 0)), "needs a compute capability of 9.0 or more and below 10.0, and the device has 10.0"),
        (BLIND, CPU, "has no backward on cpu, and cannot train"),
        (BLIND, cuda((7, 0)), ""),
    ],
)
def test_the_reason_is_the_first_thing_that_is_missing(record: AttentionEntry, machine: Machine, reason: str) -> None:
    assert obstacle(record, machine) == reason


def test_a_missing_module_is_told_with_what_brings_it() -> None:
    assert obstacle(HOPPER, CPU, missing=["acme"]) == "missing module acme: pip install acme"


def test_everything_that_does_not_fit_a_model_is_told_at_once() -> None:
    found = misfits(HOPPER, device="cpu", dtype="float32", head_size=300, features=("gqa", "window"))
    assert found == [
        "does not run on device 'cpu' (it offers cuda)",
        "does not run on dtype 'float32' (it offers bfloat16)",
        "takes heads of at most 256, and the model's have 300",
        "takes heads of a multiple of 8, and the model's have 300",
        "has no 'gqa'",
    ]


def test_what_fits_is_not_told() -> None:
    assert misfits(HOPPER, device="cuda", dtype="bfloat16", head_size=128, features=("window", "sinks")) == []
    assert misfits(BLIND, device="cpu", dtype="float32") == ["has no backward on cpu"]
    assert misfits(BLIND, device="cpu", dtype="float32", training=False) == []


def test_first_party_is_who_the_table_says() -> None:
    assert is_first_party("prl-train", "attention_kernel", "sdpa")
    assert not is_first_party("acme", "attention_kernel", "sdpa")
    assert not is_first_party("prl-train", "attention_kernel", "acme")
