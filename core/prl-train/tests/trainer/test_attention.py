"""The packed kernel against plain attention, one document at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from prl.contracts import AttentionKernel
from prl.types import ConfigError
from prl_train.attention import sdpa as module
from prl_train.attention.binding import BoundKernel, PackedCall, attend, bind
from prl_train.attention.sdpa import create, sdpa
from prl_train.errors import TrainingError


def naive(
    q: Tensor, k: Tensor, v: Tensor, lengths: list[int], causal: bool, window: tuple[int, int], scale: float
) -> Tensor:
    """Attend per document with an explicit mask, softmax and matrix products."""
    out, start = torch.zeros(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype), 0
    group = q.shape[1] // k.shape[1]
    for length in lengths:
        rows = slice(start, start + length)
        for head in range(q.shape[1]):
            scores = q[rows, head] @ k[rows, head // group].T * scale
            for i in range(length):
                for j in range(length):
                    hidden = (causal and j > i) or (window[0] >= 0 and j < i - window[0])
                    if hidden or (window[1] >= 0 and j > i + window[1]):
                        scores[i, j] = -torch.inf
            out[rows, head] = scores.softmax(-1) @ v[rows, head // group]
        start += length
    return out


PACKINGS = [[5], [1, 1, 1], [7, 3, 3, 1, 6], [9, 2], [4, 4, 4, 3]]


@pytest.mark.parametrize("lengths", PACKINGS, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize(
    ("causal", "window"),
    [(True, (-1, -1)), (True, (2, 0)), (True, (0, 0)), (False, (-1, -1)), (False, (1, 2)), (False, (-1, 0))],
)
def test_packed_attention_and_gradients_equal_each_document_alone(
    lengths: list[int], heads: int, kv_heads: int, causal: bool, window: tuple[int, int]
) -> None:
    torch.manual_seed(1)
    total = sum(lengths)
    q = torch.randn(total, heads, 8, dtype=torch.float64, requires_grad=True)
    k = torch.randn(total, kv_heads, 8, dtype=torch.float64, requires_grad=True)
    v = torch.randn(total, kv_heads, 8, dtype=torch.float64, requires_grad=True)
    boundaries = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    weights = torch.randn(total, heads, 8, dtype=torch.float64)
    got = sdpa(q, k, v, cu_seqlens=boundaries, max_seqlen=max(lengths), causal=causal, window=window, softmax_scale=0.3)
    want = naive(q, k, v, lengths, causal, window, 0.3)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    gradients = [torch.autograd.grad((out * weights).sum(), (q, k, v)) for out in (got, want)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_padding_after_the_last_document_gives_zeros_and_touches_nobody() -> None:
    q, k, v = (torch.randn(6, 1, 4) for _ in range(3))
    boundaries = torch.tensor([0, 4], dtype=torch.int32)
    alone = sdpa(q[:4], k[:4], v[:4], cu_seqlens=boundaries, max_seqlen=4)
    padded = sdpa(q, k, v, cu_seqlens=torch.tensor([0, 4], dtype=torch.int32), max_seqlen=4)
    assert torch.equal(padded[:4], alone)
    assert torch.equal(padded[4:], torch.zeros(2, 1, 4))


def test_empty_documents_are_legal() -> None:
    q, k, v = (torch.randn(3, 1, 4) for _ in range(3))
    plain = sdpa(q, k, v, cu_seqlens=torch.tensor([0, 3], dtype=torch.int32), max_seqlen=3)
    with_empty = sdpa(q, k, v, cu_seqlens=torch.tensor([0, 0, 3, 3], dtype=torch.int32), max_seqlen=3)
    assert torch.equal(plain, with_empty)


def test_no_mask_over_the_whole_row_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """A T x T mask makes long packed rows slow and large: each call must stay within its documents' lengths."""
    seen: list[tuple[int, object]] = []
    real = module.scaled_dot_product_attention

    def spy(q: Tensor, *rest: Tensor, attn_mask: Tensor | None, **options: object) -> Tensor:
        seen.append((q.shape[2], attn_mask))
        return real(q, *rest, attn_mask=attn_mask, **options)

    monkeypatch.setattr(module, "scaled_dot_product_attention", spy)
    q, k, v = (torch.randn(64, 1, 4) for _ in range(3))
    sdpa(q, k, v, cu_seqlens=torch.arange(0, 65, 8, dtype=torch.int32), max_seqlen=8)
    assert seen == [(8, None)]


def test_sinks_are_refused_by_name() -> None:
    q = torch.randn(2, 1, 4)
    with pytest.raises(ConfigError, match="has no attention sinks"):
        sdpa(q, q, q, cu_seqlens=torch.tensor([0, 2], dtype=torch.int32), max_seqlen=2, sinks=torch.zeros(1))


def test_the_factory_returns_an_attention_kernel() -> None:
    assert isinstance(create(), AttentionKernel)


def call(bound: BoundKernel | None, **options: object) -> None:
    q = torch.randn(1, 2, 3, 4)
    packed = PackedCall(bound, torch.tensor([0, 3], dtype=torch.int32), 3) if bound else None
    attend(torch.nn.Identity(), q, q, q, None, packed=packed, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "feature"), [({"sliding_window": 2}, "window"), ({"s_aux": torch.zeros(2)}, "sinks")]
)
def test_a_feature_the_kernel_lacks_is_refused_not_ignored(options: dict[str, object], feature: str) -> None:
    with pytest.raises(ConfigError, match=f"has no '{feature}'"):
        call(bind("plain", sdpa, ()), **options)


def test_soft_cap_and_dropout_are_refused() -> None:
    with pytest.raises(ConfigError, match="neither a soft cap"):
        call(bind("sdpa", sdpa, ("window",)), softcap=30.0)
    with pytest.raises(ConfigError, match="nor dropout"):
        call(bind("sdpa", sdpa, ("window",)), dropout=0.1)


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
