"""The packed kernel against plain attention, one document at a time."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch
from torch import Tensor

from prl.contracts import AttentionKernel, AttentionPasses, Scoring, Varlen
from prl_train.attention import sdpa as module
from prl_train.attention.naive import NaivePasses
from prl_train.attention.sdpa import create, sdpa
from prl_train.attention.sdpa_cpu import CpuPasses
from prl_train.attention.sdpa_cuda import CudaPasses, serves


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


@pytest.mark.parametrize("scale", [0.0, -0.3])
@pytest.mark.parametrize("window", [(-1, -1), (2, 0)])
@pytest.mark.parametrize("far", [0.0, -200.0], ids=["plain", "with sinks that take nothing"])
def test_a_scale_of_nought_or_below_is_a_scale(scale: float, window: tuple[int, int], far: float) -> None:
    """Models learn or turn their scale; torch's operator multiplies its masked scores too, and gives nan."""
    torch.manual_seed(2)
    q, k, v = (torch.randn(9, heads, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    weights = torch.randn(9, 4, 8, dtype=torch.float64)
    sinks = torch.full((4,), far, dtype=torch.float64) if far else None
    borders = torch.tensor([0, 6, 9], dtype=torch.int32)
    got = sdpa(q, k, v, cu_seqlens=borders, max_seqlen=6, window=window, softmax_scale=scale, sinks=sinks)
    want = naive(q, k, v, [6, 3], True, window, scale)
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


def test_the_factory_returns_an_attention_kernel() -> None:
    assert isinstance(create(), AttentionKernel)
    assert isinstance(create(), AttentionPasses)


def test_the_cuda_operators_take_what_they_are_given() -> None:
    """Without a GPU, torch's own shape rules for CUDA are what can be asked: arguments, order, shapes and dtypes."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q = torch.empty(10, 4, 64, dtype=torch.bfloat16, device="cuda")
        k = torch.empty(12, 2, 64, dtype=torch.bfloat16, device="cuda")
        cu = torch.empty(3, dtype=torch.int32, device="cuda")
        scoring = Scoring(True, (3, 0), 0.3)
        assert serves(q, k, 0.0)
        assert not serves(q, k, 30.0)
        assert not serves(q.float(), k.float(), 0.0)
        odd = torch.empty(10, 4, 60, dtype=torch.bfloat16, device="cuda")
        assert not serves(odd, odd, 0.0)
        varlen = Varlen(cu, cu, 5, 6)
        out, lse = CudaPasses().forward(q, k, k, varlen, scoring)
        grads = CudaPasses().backward(q, q, k, k, out, lse, varlen, scoring)
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == (q.shape, q.dtype, (4, 10), torch.float32)
    assert [grad.shape for grad in grads if grad is not None] == [q.shape, k.shape, k.shape]
    assert {grad.dtype for grad in grads if grad is not None} == {torch.bfloat16}


@pytest.mark.parametrize("lengths", [((600,), (600,)), ((300,), (700,)), ((5, 0, 3), (5, 2, 7)), ((6, 2), (3, 9))])
@pytest.mark.parametrize("window", [(-1, -1), (40, 0), (-1, 0), (2, 3), (0, -1)])
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_queries_are_the_document_as_a_whole(
    lengths: tuple[tuple[int, ...], tuple[int, ...]], window: tuple[int, int], causal: bool
) -> None:
    """Long documents, windows and unequal lengths are cut to blocks, each over the keys that it can see."""
    generator = torch.Generator().manual_seed(4)
    heads = ((sum(lengths[0]), 4), (sum(lengths[1]), 2), (sum(lengths[1]), 2), (sum(lengths[0]), 4))
    q, k, v, dout = (torch.randn(*shape, 8, generator=generator, dtype=torch.float64) for shape in heads)
    borders = [torch.tensor([0, *accumulate(one)], dtype=torch.int32) for one in lengths]
    varlen = Varlen(*borders, max(lengths[0]), max(lengths[1]))
    scoring = Scoring(causal, window, 0.3)
    results = []
    for passes in (CpuPasses(), NaivePasses()):
        out, lse = passes.forward(q, k, v, varlen, scoring)
        results.append((out, lse, *passes.backward(dout, q, k, v, out, lse, varlen, scoring)[:3]))
    for mine, wanted in zip(*results, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-11)
