"""How kernels reach transformers' models: what a layer asks for arrives, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from prl.types import ConfigError
from prl_train.attention.binding import IMPLEMENTATION, BoundKernel, PackedCall, attend, bind
from prl_train.attention.model_needs import model_needs
from prl_train.attention.sdpa import sdpa
from prl_train.errors import TrainingError
from prl_train.plugin import prl_attention_kernels

LENGTHS = (9, 1, 6, 4)
FEATURES = {record.name: record.features for record in prl_attention_kernels()}["sdpa"]


def call(bound: BoundKernel | None, **options: object) -> None:
    q = torch.randn(1, 2, 3, 4)
    packed = PackedCall(bound, torch.tensor([0, 3], dtype=torch.int32), 3) if bound else None
    attend(torch.nn.Identity(), q, q, q, None, packed=packed, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        ({"sliding_window": 2}, "window"),
        ({"s_aux": torch.zeros(2)}, "sinks"),
        ({"softcap": 30.0}, "softcap"),
        ({"scaling": 0.3}, "softmax_scale"),
        ({"is_causal": False}, "non_causal"),
    ],
)
def test_a_feature_the_kernel_lacks_is_refused_not_ignored(options: dict[str, object], feature: str) -> None:
    with pytest.raises(ConfigError, match=f"has no '{feature}'"):
        call(bind("plain", sdpa, ()), **options)


def test_dropout_is_refused() -> None:
    with pytest.raises(ConfigError, match="no dropout"):
        call(bind("sdpa", sdpa, ("window",)), dropout=0.1)


def test_a_mask_of_the_models_own_is_refused() -> None:
    """Sparse attention comes as a mask: left out, the model would attend keys that it never attends."""
    q = torch.randn(1, 2, 3, 4)
    packed = PackedCall(bind("sdpa", sdpa, ()), torch.tensor([0, 3], dtype=torch.int32), 3)
    with pytest.raises(ConfigError, match="brings an attention mask of its own"):
        attend(torch.nn.Identity(), q, q, q, torch.zeros(1, 1, 3, 3), packed=packed)


def test_heads_of_its_own_scale_are_no_scale_of_the_callers() -> None:
    """Every model names its scale; a kernel without the option serves those that name the usual one."""
    call(bind("plain", sdpa, ()), scaling=0.5)


def test_a_call_without_boundaries_is_an_error_not_attention_across_documents() -> None:
    with pytest.raises(TrainingError, match="without the row's document boundaries"):
        call(None)


def test_a_sliding_window_counts_the_token_itself() -> None:
    """transformers' window of 2 is one token to the left: off by one here trains another model."""
    got: list[tuple[int, int]] = []

    def spy(q: Tensor, k: Tensor, v: Tensor, *, window: tuple[int, int], **_: object) -> Tensor:
        got.append(window)
        return q

    call(bind("spy", spy, ("window",)), sliding_window=2)  # type: ignore[arg-type]
    assert got == [(1, 0)]


def test_autocast_reaches_the_kernel() -> None:
    """Under autocast a layer's norms give float32 queries beside half precision values: kernels take one dtype."""
    got: list[torch.dtype] = []

    def spy(q: Tensor, k: Tensor, v: Tensor, **_: object) -> Tensor:
        got.extend(x.dtype for x in (q, k, v))
        return q

    q = torch.randn(1, 2, 3, 4)
    packed = PackedCall(bind("spy", spy, ()), torch.tensor([0, 3], dtype=torch.int32), 3)  # type: ignore[arg-type]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        attend(torch.nn.Identity(), q, q, q.bfloat16(), None, packed=packed)
    attend(torch.nn.Identity(), q, q, q.bfloat16(), None, packed=packed)
    assert got == [torch.bfloat16] * 3 + [torch.float32] * 3


@pytest.mark.parametrize("callable_of", ["the kernel's own callable", "the callable of its two passes"])
def test_a_packed_row_is_what_transformers_makes_of_each_document(
    family: str, callable_of: str, make_model: Callable[[str, str], Any]
) -> None:
    """A family is trained as another model: with other windows, scales, sinks, caps or heads than its own."""
    model, reference = make_model(family, IMPLEMENTATION), make_model(family, "eager")
    ids = torch.randint(0, 64, (sum(LENGTHS),), generator=torch.Generator().manual_seed(2))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    bound = bind("sdpa", sdpa, FEATURES)
    if callable_of == "the callable of its two passes":
        bound = bind("sdpa", sdpa, tuple(one for one in FEATURES if one != "sinks"))
    packed = PackedCall(bound, torch.tensor([0, *accumulate(LENGTHS)], dtype=torch.int32), max(LENGTHS))
    got = model(input_ids=ids[None], position_ids=positions[None], packed=packed, use_cache=False).logits[0]
    ends = [0, *accumulate(LENGTHS)]
    want = torch.cat([reference(input_ids=ids[None, a:b], use_cache=False).logits[0] for a, b in pairwise(ends)])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    weights = torch.linspace(-1, 1, want.numel()).view(want.shape)
    for logits in (got, want):
        (logits * weights).sum().backward()  # type: ignore[no-untyped-call]
    theirs = dict(reference.named_parameters())
    for name, weight in model.named_parameters():
        grad, wanted = weight.grad, theirs[name].grad
        assert (grad is None) == (wanted is None), name
        if grad is not None:
            assert (grad - wanted).abs().max() <= 1e-5 * max(1.0, float(wanted.abs().max())), name


NEEDS = {
    "qwen3": {"gqa"},
    "llama": {"gqa"},
    "glm4": {"gqa"},
    "gemma3_text": {"gqa", "window", "softmax_scale"},
    "gemma2": {"gqa", "window", "softmax_scale", "softcap"},
    "gpt_oss": {"gqa", "window", "sinks"},
}


def test_what_a_model_needs_is_read_off_it(family: str, make_model: Callable[[str, str], Any]) -> None:
    """`auto` takes a kernel that the first layer then refuses."""
    found = model_needs(make_model(family, IMPLEMENTATION))
    assert (set(found.features), found.head_size) == (NEEDS[family], 8)
