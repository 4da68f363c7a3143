"""The adapters on every version that is known: right numbers, and each argument under the one name it has there."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from prl.contracts import AttentionKernel, AttentionPasses, Scoring, Varlen
from prl.plugin import get_registry, load_target
from prl.testing import AttentionSuite
from prl.types import ConfigError, PluginError
from prl_attention_flash.known import KNOWN, names_of, required_of
from prl_attention_flash.libraries import FLASH_3, LIBRARIES
from prl_attention_flash.passes import FlashPasses
from prl_attention_flash.plugin import prl_attention_kernels
from prl_attention_flash.signatures import EMPTY, parameters_of

RECORDS = {record.name: record for record in prl_attention_kernels()}
BY_VERSION = {known.version: known for known in KNOWN}


@pytest.fixture
def passes(fake: Any, monkeypatch: pytest.MonkeyPatch) -> FlashPasses:
    """The kernel as it is loaded where this library is installed."""
    monkeypatch.setitem(sys.modules, fake.library.module, fake.module)
    parent, _, child = fake.library.module.rpartition(".")
    if parent:
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        monkeypatch.setitem(sys.modules, parent.partition(".")[0], ModuleType(parent.partition(".")[0]))
        monkeypatch.setattr(sys.modules[parent], child, fake.module, raising=False)
    return fake.library.load()


class TestConformance(AttentionSuite):
    features = RECORDS["flash-3"].features

    @pytest.fixture
    def kernel(self, passes: FlashPasses) -> AttentionKernel | AttentionPasses:
        return passes


def call(passes: FlashPasses, *, causal: bool = True, window: tuple[int, int] = (3, 0), **more: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(6, heads, 8, generator=generator) for heads in (2, 1, 1))
    varlen = Varlen(torch.tensor([0, 4, 6], dtype=torch.int32), torch.tensor([0, 4, 6], dtype=torch.int32), 4, 4)
    scoring = Scoring(causal, window, 0.3, **more)
    out, lse = passes.forward(q, k, v, varlen, scoring)
    passes.backward(torch.ones_like(out), q, k, v, out, lse, varlen, scoring)


SAID = {
    "2.7.0": {"causal": True, "window_size_left": 3, "window_size_right": 0},
    "2.8.3": {"causal": True, "window_size_left": 3, "window_size_right": 0},
    "3.0.0b1": {"causal": True, "window_size": (3, 0)},
    "3.0.0": {"causal": True, "window_size_left": 3, "window_size_right": 0},
    "4.0.0b10": {"causal": True, "window_size_left": 3, "window_size_right": 0},
    "4.0.0b36": {"causal": True, "window_size_left": 3, "window_size_right": 0},
}
"""What the forward pass of each version must be told."""
UNLIMITED = {
    "2.7.0": {"window_size_left": -1, "window_size_right": -1},
    "2.8.3": {"window_size_left": -1, "window_size_right": -1},
    "3.0.0b1": {"window_size": (-1, -1)},
    "3.0.0": {"window_size_left": -1, "window_size_right": -1},
    "4.0.0b10": {"window_size_left": None, "window_size_right": None},
    "4.0.0b36": {"window_size_left": None, "window_size_right": None},
}


def told(recorded: dict[str, Any]) -> dict[str, Any]:
    names = ("causal", "is_causal", "window_size", "window_size_left", "window_size_right")
    return {name: recorded[name] for name in names if name in recorded}


def test_causality_and_window_go_by_the_one_name_that_they_have(fake: Any, passes: FlashPasses) -> None:
    """The arguments were renamed: passed under the old name the call fails, or the model sees what comes after."""
    call(passes)
    wanted = SAID[fake.known.version]
    assert told(fake.forward_calls[-1]) == wanted
    if fake.known.version == "3.0.0":  # there the backward pass alone has another name
        wanted = {"is_causal" if name == "causal" else name: value for name, value in wanted.items()}
    assert told(fake.backward_calls[-1]) == wanted


def test_no_window_is_said_in_the_librarys_own_word(fake: Any, passes: FlashPasses) -> None:
    """-1 where None is meant is a window of one token to the wrong side."""
    call(passes, window=(-1, -1))
    for recorded in (fake.forward_calls[-1], fake.backward_calls[-1]):
        found = told(recorded)
        assert {name: found[name] for name in UNLIMITED[fake.known.version]} == UNLIMITED[fake.known.version]
        assert recorded["softmax_scale"] == 0.3


def test_the_backward_pass_repeats_itself_where_torch_is_told_to(fake: Any, passes: FlashPasses) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    call(passes)
    assert fake.backward_calls[-1]["deterministic"] is before
    torch.use_deterministic_algorithms(not before, warn_only=True)
    try:
        call(passes)
    finally:
        torch.use_deterministic_algorithms(before)
    assert fake.backward_calls[-1]["deterministic"] is not before


def test_a_cap_reaches_both_passes(fake: Any, passes: FlashPasses) -> None:
    call(passes, softcap=2.0)
    assert [recorded[-1]["softcap"] for recorded in (fake.forward_calls, fake.backward_calls)] == [2.0, 2.0]


def test_sinks_are_refused_by_name(passes: FlashPasses) -> None:
    with pytest.raises(ConfigError, match="has no 'sinks'"):
        call(passes, sinks=torch.zeros(2))


def test_a_strided_tensor_is_made_what_the_library_takes(passes: FlashPasses) -> None:
    q = torch.randn(8, 2, 6).transpose(0, 2)
    borders = torch.tensor([0, 6], dtype=torch.int32)
    varlen = Varlen(borders, borders, 6, 6)
    scoring = Scoring(True, (-1, -1), 0.3)
    out, lse = passes.forward(q, q, q, varlen, scoring)
    grads = passes.backward(out, q, q, q, out, lse, varlen, scoring)
    assert all(bool(torch.isfinite(grad).all()) for grad in grads[:3])


@pytest.mark.parametrize(
    ("returned", "told_text"),
    [
        (
            lambda q, k: (q, k, torch.zeros(2, 6)),
            r"got float32 \(6, 1, 8\) for the log-sum-exp, and not float32 \(2, 6\)",
        ),
        (lambda q, k: (torch.zeros(2, 6), q), r"got float32 \(2, 6\) for the output, and not float32 \(6, 2, 8\)"),
        (lambda q, k: q, "got NoneType for the log-sum-exp"),
        (lambda q, k: (q,), "got NoneType for the log-sum-exp"),
        (lambda q, k: {"out": q}, "got dict for the output"),
    ],
)
def test_a_library_that_returns_something_else_is_told_at_the_first_call(
    returned: Callable[..., Any], told_text: str, fake_of: Callable[..., Any]
) -> None:
    """FlashAttention 2 before 2.7 returned its log-sum-exp in another place and shape."""
    fake = fake_of(BY_VERSION["3.0.0b1"])

    def changed(**named: Any) -> Any:
        return returned(named["q"], named["k"])

    changed.__signature__ = inspect.signature(fake.module._flash_attn_forward)  # type: ignore[attr-defined]
    fake.module._flash_attn_forward = changed
    passes = FlashPasses("flash-3", fake.module, FLASH_3.forward, FLASH_3.backward, version="9.9")
    with pytest.raises(PluginError, match=told_text) as caught:
        call(passes)
    assert "version 9.9" in caught.value.where


@pytest.mark.parametrize(
    ("change", "told_text"),
    [
        (("causal:b", "causality:b"), "no parameter for 'causal': looked for causal or is_causal, found dout, q, k"),
        (
            ("window_size=(-1,-1)", "reach:i=0"),
            "no parameter for 'window': looked for window_size or window_size_left with window_size_right, found dout",
        ),
        (("softmax_lse:T", "logsum:T"), "no parameter for 'lse': looked for softmax_lse or lse, found dout"),
        (("sm_margin:i=0", "new_knob:i"), "requires 'new_knob', which this adapter does not know"),
    ],
)
def test_a_version_with_other_names_fails_when_it_is_loaded(
    change: tuple[str, str], told_text: str, fake_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fail in the middle of a run, or train without what was meant."""
    known = BY_VERSION["3.0.0b1"]
    changed = known.backward.replace(*change)
    if "new_knob" in changed:
        words = [one for one in changed.split() if not one.startswith("new_knob")]
        changed = " ".join(["new_knob:i", *words])
    fake = fake_of(replace(known, backward=changed))
    monkeypatch.setitem(sys.modules, FLASH_3.module, fake.module)
    with pytest.raises(PluginError) as caught:
        FLASH_3.load()
    assert told_text in caught.value.what
    assert caught.value.where == "flash_attn_interface._flash_attn_backward, version unknown"


def test_a_stub_in_place_of_the_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older FlashAttention 2 writes a stub of its own over FlashAttention 4."""
    monkeypatch.setitem(sys.modules, FLASH_3.module, ModuleType(FLASH_3.module))
    with pytest.raises(PluginError, match="finds no _flash_attn_forward in the installed library"):
        FLASH_3.load()


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_an_absent_library_is_told_with_what_brings_it(library: Any) -> None:
    with pytest.raises(PluginError, match=f"cannot import {library.module}") as caught:
        library.load()
    assert library.distributions[0] in caught.value.next_step


def test_operators_and_schemas_tell_their_parameters(fake_of: Callable[..., Any]) -> None:
    """A custom operator's Python signature is (*args, **kwargs): read so, every argument would look missing."""
    known = BY_VERSION["3.0.0"]
    function = fake_of(known).module._flash_attn_backward
    assert list(parameters_of(function)) == names_of(known.backward)
    assert list(parameters_of(function._opoverload)) == names_of(known.backward)
    found = parameters_of(function)
    assert [name for name, default in found.items() if default is EMPTY] == required_of(known.backward)
    assert parameters_of(lambda *args, **kwargs: None) == {}


def test_a_function_that_hides_its_parameters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType(FLASH_3.module)
    module._flash_attn_forward = module._flash_attn_backward = lambda *args, **kwargs: None
    monkeypatch.setitem(sys.modules, FLASH_3.module, module)
    with pytest.raises(PluginError, match="does not tell its parameters"):
        FLASH_3.load()


def test_the_records_are_what_the_registry_finds() -> None:
    """A kernel that is installed cannot be chosen."""
    assert sorted(RECORDS) == ["flash-2", "flash-3", "flash-4"]
    for name, record in RECORDS.items():
        assert get_registry().find("attention_kernel", name) == record
        with pytest.raises(PluginError):
            load_target(record)()


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known.library} {known.version}")
def test_an_installed_library_is_as_it_is_known(known: Any) -> None:
    """Opt-in: compares with the library where this very version is installed."""
    library = next(one for one in LIBRARIES if one.name == known.library)
    if library.version() != known.version:
        pytest.skip(f"{known.library} {known.version} is not installed")
    module = pytest.importorskip(library.module)
    assert list(parameters_of(getattr(module, library.forward))) == names_of(known.forward)
    assert list(parameters_of(getattr(module, library.backward))) == names_of(known.backward)
