"""Checks of an attention kernel: packed sequences against plain float32 attention, one document at a time.

Shapes: T tokens, Hq query heads, Hkv key heads, D head size. torch is found when a check runs, never on import.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from prl.contracts import AttentionKernel
from prl.types import ConfigError

from .check import NotApplicable, check, expect, fail

_PACKINGS = ((5,), (1, 1, 1), (7, 3, 3, 1, 6), (33, 2), (64, 1, 17))
_HEAD = 64
_TOLERANCES = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 5e-3}


@dataclass
class AttentionSubject:
    """A kernel under check, on one device and in one dtype; `features` are those of its record."""

    name: str
    kernel: AttentionKernel
    features: Collection[str] = ()
    device: str = "cpu"
    dtype: str = "float32"
    quirks: Mapping[str, str] = field(default_factory=dict)

    @property
    def tolerance(self) -> float:
        """The largest absolute difference that rounding explains."""
        return _TOLERANCES[self.dtype]

    def has(self, feature: str) -> None:
        """Skip the check where the kernel does not offer a feature."""
        if feature not in self.features:
            raise NotApplicable(f"the kernel does not offer {feature!r}")


@check("attention_kernel")
def documents_do_not_see_each_other(subject: AttentionSubject) -> None:
    """Samples that share a row leak into each other, and log-probabilities depend on the packing."""
    for lengths in _PACKINGS:
        _compare(subject, lengths)


@check("attention_kernel")
def a_token_sees_no_later_one(subject: AttentionSubject) -> None:
    """The model is trained to read the answer off the next token."""
    torch = _torch()
    q, k, v, cu = _inputs(subject, (9, 6), heads=2, kv_heads=2)
    before = subject.kernel(q, k, v, cu_seqlens=cu, max_seqlen=9)
    changed = [x.clone() for x in (k, v)]
    for x in changed:
        x[8] += 5
    after = subject.kernel(q, *changed, cu_seqlens=cu, max_seqlen=9)
    expect(torch.equal(before[:8], after[:8]), "a change to the last token changes earlier ones")


@check("attention_kernel")
def gradients_are_those_of_plain_attention(subject: AttentionSubject) -> None:
    """The loss falls, and along the wrong direction."""
    torch = _torch()
    inputs = _inputs(subject, (7, 3, 12), heads=2, kv_heads=2)
    gradients = []
    for attend in (lambda q, k, v: subject.kernel(q, k, v, cu_seqlens=inputs[3], max_seqlen=12), _plain((7, 3, 12))):
        leaves = [x.detach().clone().requires_grad_(True) for x in inputs[:3]]
        out = attend(*leaves)
        weights = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape)
        gradients.append(torch.autograd.grad((out.float() * weights).sum(), leaves))
    for label, mine, theirs in zip("qkv", *gradients, strict=True):
        _expect_close(mine, theirs, subject.tolerance * 2, f"the gradient of {label}")


@check("attention_kernel")
def shared_key_heads_are_shared_right(subject: AttentionSubject) -> None:
    """Query heads read the wrong keys in every model with grouped heads."""
    subject.has("gqa")
    for heads, kv_heads in ((4, 2), (3, 1), (6, 3)):
        _compare(subject, (7, 3, 12), heads=heads, kv_heads=kv_heads)


@check("attention_kernel")
def the_scale_is_the_callers(subject: AttentionSubject) -> None:
    """A model that scales its logits differently is trained as another model."""
    subject.has("softmax_scale")
    _compare(subject, (7, 3, 12), softmax_scale=0.3)


@check("attention_kernel")
def windows_count_tokens_as_the_contract_says(subject: AttentionSubject) -> None:
    """Sliding-window layers see one token too many, or too few."""
    subject.has("window")
    for window in ((3, 0), (0, 0), (63, 0)):
        _compare(subject, (7, 3, 12), window=window)


@check("attention_kernel")
def sinks_take_their_share(subject: AttentionSubject) -> None:
    """Models with attention sinks are trained without them."""
    subject.has("sinks")
    torch = _torch()
    sinks = torch.tensor([0.5, -1.0], device=subject.device, dtype=getattr(torch, subject.dtype))
    _compare(subject, (7, 3, 12), sinks=sinks)


@check("attention_kernel")
def an_option_it_lacks_is_refused(subject: AttentionSubject) -> None:
    """A model that needs the option is trained without it, and nobody is told."""
    torch = _torch()
    sinks = torch.zeros(2, device=subject.device, dtype=getattr(torch, subject.dtype))
    asked = {"window": {"window": (3, 0)}, "sinks": {"sinks": sinks}, "softmax_scale": {"softmax_scale": 0.3}}
    q, k, v, cu = _inputs(subject, (7, 3), heads=2, kv_heads=2)
    for feature, options in asked.items():
        if feature in subject.features:
            continue
        try:
            subject.kernel(q, k, v, cu_seqlens=cu, max_seqlen=7, **options)
        except ConfigError as error:
            expect(feature in str(error), f"the refusal does not name {feature!r}: {error}")
        else:
            fail(f"{feature!r} is no feature of the kernel, and is accepted")


def _compare(
    subject: AttentionSubject, lengths: Sequence[int], *, heads: int = 2, kv_heads: int = 2, **options: Any
) -> None:
    """Compare the kernel's output with plain attention."""
    q, k, v, cu = _inputs(subject, lengths, heads, kv_heads)
    out = subject.kernel(q, k, v, cu_seqlens=cu, max_seqlen=max(lengths), **options)
    expect(tuple(out.shape) == tuple(q.shape), f"the output is {tuple(out.shape)}, the queries {tuple(q.shape)}")
    expect(out.dtype == q.dtype, f"the output is {out.dtype}, the queries {q.dtype}")
    what = f"documents of {tuple(lengths)} tokens, {heads} on {kv_heads} heads, {options or 'no options'}"
    _expect_close(out, _plain(lengths, **options)(q, k, v), subject.tolerance, what)


def _inputs(subject: AttentionSubject, lengths: Sequence[int], heads: int, kv_heads: int) -> tuple[Any, Any, Any, Any]:
    """Return q [T, Hq, D], k and v [T, Hkv, D], and the documents' borders, int32 [N + 1]."""
    torch = _torch()
    generator = torch.Generator().manual_seed(3)
    dtype = getattr(torch, subject.dtype)
    shapes = [(sum(lengths), count, _HEAD) for count in (heads, kv_heads, kv_heads)]
    q, k, v = (torch.randn(shape, generator=generator).to(subject.device, dtype) for shape in shapes)
    borders = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    return q, k, v, torch.tensor(borders, dtype=torch.int32, device=subject.device)


def _plain(lengths: Sequence[int], **options: Any) -> Any:
    """Return causal attention in float32, written out."""
    torch = _torch()
    left = options.get("window", (-1, -1))[0]
    sinks = options.get("sinks")

    def attend(q: Any, k: Any, v: Any) -> Any:
        scale = options.get("softmax_scale") or q.shape[2] ** -0.5
        group = q.shape[1] // k.shape[1]
        keys, values = (x.float().repeat_interleave(group, dim=1) for x in (k, v))
        parts = []
        for start, end in pairwise([sum(lengths[:n]) for n in range(len(lengths) + 1)]):
            scores = torch.einsum("qhd,khd->hqk", q[start:end].float(), keys[start:end]) * scale
            place = torch.arange(end - start, device=q.device)
            distance = place[:, None] - place[None, :]
            hidden = (distance < 0) | ((distance > left) if left >= 0 else torch.zeros_like(distance, dtype=torch.bool))
            scores = scores.masked_fill(hidden, float("-inf"))
            if sinks is not None:
                sink = sinks.float()[:, None, None].expand(-1, end - start, 1)
                weights = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
            else:
                weights = scores.softmax(-1)
            parts.append(torch.einsum("hqk,khd->qhd", weights, values[start:end]))
        return torch.cat(parts)

    return attend


def _expect_close(mine: Any, wanted: Any, tolerance: float, what: str) -> None:
    torch = _torch()
    expect(bool(torch.isfinite(mine).all()), f"{what}: the result is not finite")
    worst = (mine.float() - wanted.float()).abs().max().item()
    expect(worst <= tolerance, f"{what}: differs by up to {worst:.2e}, more than {tolerance:.0e}")


def _torch() -> Any:
    """Find torch, which prl-core does not depend on."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise NotApplicable("torch is not installed") from error
