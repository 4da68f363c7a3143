"""Which kernel a run gets: the one that is named, or for "auto" the best first-party one that serves the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from prl.plugin import AttentionEntry, get_registry
from prl.plugin.machine import Machine
from prl.testing.fake_dist import active_site, write_fake_dist
from prl.types import ConfigError, PluginError
from prl_train.attention import choose
from prl_train.attention.binding import IMPLEMENTATION, bind, resolve_kernel
from prl_train.attention.sdpa import sdpa

PLUGIN = """
from prl.plugin import AttentionEntry, hookimpl
@hookimpl
def prl_attention_kernels():
    return [AttentionEntry(name="quick", target="acme_quick:create", features=("gqa",), priority=1000)]
"""
KERNEL = """
from prl.types import ConfigError
def create():
    {body}
"""


@pytest.fixture
def rival(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Install a third party's kernel with the highest priority; its factory does what is given."""
    with active_site(tmp_path / "site") as site:

        def install(body: str = "return lambda q, k, v, **options: q") -> None:
            write_fake_dist(site, "acme", PLUGIN)
            (site / "acme_quick.py").write_text(KERNEL.format(body=body), encoding="utf-8")

        yield install


def test_auto_never_takes_a_third_partys_kernel(rival: Callable[[], None]) -> None:
    """Installing a package changes the numbers of a run that did not ask for it."""
    rival()
    assert resolve_kernel("auto", device="cpu", dtype="float32").name == "sdpa"
    assert resolve_kernel("quick", device="cpu", dtype="float32").name == "quick"


def test_auto_takes_the_first_by_priority_that_serves(
    rival: Callable[[], None], make_model: Callable[[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rival()
    monkeypatch.setattr(choose, "is_first_party", lambda dist, kind, name: True)
    found = [
        resolve_kernel("auto", device="cpu", dtype="float32", model=make_model(family, IMPLEMENTATION)).name
        for family in ("qwen3", "gemma3_text")
    ]
    assert found == ["quick", "sdpa"]


def test_auto_says_what_it_passes_over(rival: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is slower than it was, and nobody knows that the fast kernel did not load."""
    rival("raise ConfigError('the library is too old')")
    monkeypatch.setattr(choose, "is_first_party", lambda dist, kind, name: True)
    with pytest.warns(UserWarning, match="passes over 'quick': the library is too old"):
        assert resolve_kernel("auto", device="cpu", dtype="float32").name == "sdpa"


@pytest.mark.parametrize(("warn_only", "served"), [(False, False), (True, True)])
def test_a_run_that_must_repeat_its_bits_gets_no_kernel_that_cannot(
    rival: Callable[[], None], warn_only: bool, served: bool
) -> None:
    """torch refuses its own operations that differ from run to run; a plugin's kernel was taken without a word."""
    rival()
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        assert resolve_kernel("auto", device="cpu", dtype="float32").name == "sdpa"
        if served:
            assert resolve_kernel("quick", device="cpu", dtype="float32").name == "quick"
        else:
            with pytest.raises(ConfigError, match="'quick' has no 'deterministic'"):
                resolve_kernel("quick", device="cpu", dtype="float32")
    finally:
        torch.use_deterministic_algorithms(False)


def test_auto_on_a_gpu_takes_the_newest_flash_attention_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `auto` would do there, as far as records and devices tell it without a GPU."""
    loaded: list[str] = []

    def load(record: AttentionEntry) -> Any:
        loaded.append(record.name)
        return lambda: sdpa

    monkeypatch.setattr(choose, "load_target", load)
    monkeypatch.setattr(choose, "missing_needs", lambda record: [])
    names = {record.name for record in get_registry().all(AttentionEntry)}
    if not {"flash-2", "flash-3", "flash-4"} <= names:
        pytest.skip("prl-attention-flash is not installed")
    for capability in ((8, 0), (9, 0), (10, 0), (7, 5)):
        machine = Machine(devices=("cpu", "cuda"), capabilities=(capability,))
        monkeypatch.setattr(choose, "this_machine", lambda machine=machine: machine)
        resolve_kernel("auto", device="cuda", dtype="bfloat16")
    resolve_kernel("auto", device="cuda", dtype="float32")
    assert loaded == ["flash-2", "flash-3", "flash-4", "sdpa", "sdpa"]


def test_where_nothing_serves_every_reason_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_kernel("auto", device="tpu", dtype="float32")
    assert "sdpa: does not run on device 'tpu' (it offers cpu, cuda)" in caught.value.what
    assert "flex: does not run on device 'tpu'" in caught.value.what


def test_a_named_kernel_that_does_not_serve_is_refused() -> None:
    with pytest.raises(ConfigError, match="'flex' has no backward on cpu"):
        resolve_kernel("flex", device="cpu", dtype="float32")
    assert resolve_kernel("flex", device="cpu", dtype="float32", training=False).name == "flex"
    with pytest.raises(PluginError, match="sdpaa"):
        resolve_kernel("sdpaa", device="cpu", dtype="float32")


def test_flex_says_why_it_does_not_train_on_cpu() -> None:
    from prl_train.attention.flex import flex

    q = torch.randn(3, 1, 8, requires_grad=True)
    with pytest.raises(ConfigError, match="cannot train on CPU: torch's flex attention has no backward there"):
        flex(q, q, q, cu_seqlens=torch.tensor([0, 3], dtype=torch.int32), max_seqlen=3)


def test_a_kernel_with_the_log_sum_exp_has_sinks_by_it() -> None:
    """Models with sinks could not be trained on kernels that know none."""
    features = ("lse", "gqa", "window", "softmax_scale")
    bound = bind("plain", sdpa, features)
    assert "sinks" in bound.features
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(9, heads, 8, generator=generator).requires_grad_(True) for heads in (4, 2, 2))
    sinks = torch.randn(4, generator=generator, requires_grad=True)
    cu = torch.tensor([0, 4, 9], dtype=torch.int32)
    results = []
    for kernel in (bound.kernel, sdpa):
        out = kernel(q, k, v, cu_seqlens=cu, max_seqlen=5, sinks=sinks)
        results.append((out, *torch.autograd.grad((out**2).sum(), (q, k, v, sinks))))
    for mine, wanted in zip(*results, strict=True):
        torch.testing.assert_close(mine, wanted)
