"""Checks of an attention kernel: packed sequences against plain float32 attention, one document at a time.

Shapes: T tokens, Hq query heads, Hkv key heads, D head size. torch is found when a check runs, never on import.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prl.contracts import AttentionKernel, AttentionPasses, Scoring
from prl.types import ConfigError

from .attention_oracle import borders, callable_of, plain_attention, torch_module, varlen_of
from .check import NotApplicable, check, expect, fail

_PACKINGS = ((5,), (1, 1, 1), (7, 3, 3, 1, 6), (33, 2), (64, 1, 17))
_HEAD = 64
_TOLERANCES = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 5e-3}
_UNEVEN = ((5, 1, 4), (9, 7, 4))
"""Lengths of queries and of keys of the same documents."""


@dataclass
class AttentionSubject:
    """A kernel under check, on one device and in one dtype; `features` are those of its record.

    `kernel` is what the record's target makes: `AttentionPasses` where the features have "lse". `has_backward` is False
    where the record names the device in `forward_only`.
    """

    name: str
    kernel: AttentionKernel | AttentionPasses
    features: Collection[str] = ()
    device: str = "cpu"
    dtype: str = "float32"
    has_backward: bool = True
    quirks: Mapping[str, str] = field(default_factory=dict)

    @property
    def tolerance(self) -> float:
        """The largest absolute difference that rounding explains."""
        return _TOLERANCES[self.dtype]

    def has(self, *features: str) -> None:
        """Skip the check where the kernel does not offer a feature."""
        for feature in features:
            if feature not in self.features:
                raise NotApplicable(f"the kernel does not offer {feature!r}")

    def call(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        """Call the kernel, or the callable that its two passes make."""
        kernel: Any = callable_of(self.kernel) if "lse" in self.features else self.kernel  # type: ignore[arg-type]
        return kernel(q, k, v, **options)

    @property
    def passes(self) -> Any:
        """The two passes; skip the check where there are none."""
        self.has("lse")
        return self.kernel


@check("attention_kernel")
def documents_do_not_see_each_other(subject: AttentionSubject) -> None:
    """Samples that share a row leak into each other, and log-probabilities depend on the packing."""
    for lengths in _PACKINGS:
        _compare(subject, lengths)


@check("attention_kernel")
def empty_documents_are_legal(subject: AttentionSubject) -> None:
    """A row whose document has no tokens on one rank stops the run, or shifts all that follow."""
    _compare(subject, (5, 0, 0, 3))


@check("attention_kernel")
def a_token_sees_no_later_one(subject: AttentionSubject) -> None:
    """The model is trained to read the answer off the next token."""
    torch = torch_module()
    q, k, v, cu = _inputs(subject, (9, 6))
    before = subject.call(q, k, v, cu_seqlens=cu, max_seqlen=9)
    changed = [x.clone() for x in (k, v)]
    for x in changed:
        x[8] += 5
    after = subject.call(q, *changed, cu_seqlens=cu, max_seqlen=9)
    expect(torch.equal(before[:8], after[:8]), "a change to the last token changes earlier ones")


@check("attention_kernel")
def gradients_are_those_of_plain_attention(subject: AttentionSubject) -> None:
    """The loss falls, and along the wrong direction."""
    _compare_gradients(subject, (7, 3, 12))


@check("attention_kernel")
def shared_key_heads_are_shared_right(subject: AttentionSubject) -> None:
    """Query heads read the wrong keys in every model with grouped heads."""
    subject.has("gqa")
    for heads, kv_heads in ((4, 2), (3, 1), (6, 3)):
        _compare(subject, (7, 3, 12), heads=heads, kv_heads=kv_heads)


@check("attention_kernel")
def gradients_of_shared_key_heads_add_up(subject: AttentionSubject) -> None:
    """Key and value projections of grouped heads are trained on a part of their gradient."""
    subject.has("gqa")
    _compare_gradients(subject, (7, 3, 12), heads=6, kv_heads=2)


@check("attention_kernel")
def the_scale_is_the_callers(subject: AttentionSubject) -> None:
    """A model that scales its logits differently is trained as another model."""
    subject.has("softmax_scale")
    _compare(subject, (7, 3, 12), softmax_scale=0.3)


@check("attention_kernel")
def without_a_causal_mask_all_is_seen(subject: AttentionSubject) -> None:
    """Layers that look ahead are trained blind to what follows."""
    subject.has("non_causal")
    _compare(subject, (7, 3, 12), causal=False)
    if "window" in subject.features:
        _compare(subject, (7, 3, 12), causal=False, window=(2, 1))


@check("attention_kernel")
def windows_count_tokens_as_the_contract_says(subject: AttentionSubject) -> None:
    """Sliding-window layers see one token too many, or too few."""
    subject.has("window")
    for window in ((3, 0), (0, 0), (63, 0)):
        _compare(subject, (7, 3, 12), window=window)


@check("attention_kernel")
def gradients_stay_in_the_window(subject: AttentionSubject) -> None:
    """Keys outside the window are trained by tokens that never saw them."""
    subject.has("window")
    _compare_gradients(subject, (7, 3, 12), window=(3, 0))


@check("attention_kernel")
def sinks_take_their_share(subject: AttentionSubject) -> None:
    """Models with attention sinks are trained without them."""
    subject.has("sinks")
    _compare(subject, (7, 3, 12), sinks=_sinks(subject))


@check("attention_kernel")
def sinks_are_trained(subject: AttentionSubject) -> None:
    """The sinks keep the values they came with, or go astray."""
    subject.has("sinks")
    _compare_gradients(subject, (7, 3, 12), sinks=_sinks(subject))


@check("attention_kernel")
def scores_are_capped(subject: AttentionSubject) -> None:
    """A model that caps its attention scores is trained without the cap."""
    subject.has("softcap")
    _compare(subject, (7, 3, 12), softcap=1.5)
    if subject.has_backward:
        _compare_gradients(subject, (7, 3, 12), softcap=1.5)


@check("attention_kernel")
def the_last_query_sees_the_last_key(subject: AttentionSubject) -> None:
    """A row that ranks share is masked askew: causality must be aligned to the bottom right."""
    passes = subject.passes
    q, k, v = _tensors(subject, sum(_UNEVEN[0]), sum(_UNEVEN[1]))
    for window in ((-1, -1), (2, 0)) if "window" in subject.features else ((-1, -1),):
        scoring = Scoring(True, window, 0.125)
        out, _ = passes.forward(q, k, v, varlen_of(*_UNEVEN, subject.device), scoring)
        wanted, _ = plain_attention(q, k, v, scoring, *_UNEVEN)
        _expect_close(out, wanted, subject.tolerance, f"queries {_UNEVEN[0]}, keys {_UNEVEN[1]}, {scoring}")


@check("attention_kernel")
def the_log_sum_exp_is_that_of_the_scores(subject: AttentionSubject) -> None:
    """Parts of a row that ranks computed apart are weighed wrongly when they are put together."""
    torch = torch_module()
    passes = subject.passes
    q, k, v = _tensors(subject, sum(_UNEVEN[0]), sum(_UNEVEN[1]))
    for sinks in (None, _sinks(subject)) if "sinks" in subject.features else (None,):
        scoring = Scoring(True, (-1, -1), 0.125, sinks)
        _, lse = passes.forward(q, k, v, varlen_of(*_UNEVEN, subject.device), scoring)
        expect(tuple(lse.shape) == (2, sum(_UNEVEN[0])), f"the log-sum-exp is {tuple(lse.shape)}, and not [Hq, Tq]")
        expect(lse.dtype == torch.float32, f"the log-sum-exp is {lse.dtype}, and not float32")
        _expect_close(lse, plain_attention(q, k, v, scoring, *_UNEVEN)[1], subject.tolerance * 4, "the log-sum-exp")


@check("attention_kernel")
def a_query_without_keys_gives_nothing(subject: AttentionSubject) -> None:
    """One rank's share of a row has no key for a query, and not-a-number spreads from there through the model."""
    torch = torch_module()
    passes = subject.passes
    q, k, v = _tensors(subject, 7, 4)
    varlen = varlen_of((5, 2), (2, 2), subject.device)
    scoring = Scoring(True, (-1, -1), 0.125)
    out, lse = passes.forward(q, k, v, varlen, scoring)
    expect(not bool(out[:3].any()), "a query without keys does not give zeros")
    expect(bool((lse[:, :3] == -torch.inf).all()), "the log-sum-exp of a query without keys is not -inf")
    if subject.has_backward:
        for grad in passes.backward(torch.ones_like(out), q, k, v, out, lse, varlen, scoring)[:3]:
            expect(bool(torch.isfinite(grad).all()), "a query without keys makes a gradient that is not finite")


@check("attention_kernel")
def gradients_over_parts_of_the_keys_add_up(subject: AttentionSubject) -> None:
    """Ranks that each hold a part of the keys train on gradients that do not add up to the whole."""
    torch = torch_module()
    passes = subject.passes
    if not subject.has_backward:
        raise NotApplicable("the kernel has no backward here")
    q, k, v = _tensors(subject, sum(_UNEVEN[0]), sum(_UNEVEN[1]))
    scoring = Scoring(True, (-1, -1), 0.125)
    varlen = varlen_of(*_UNEVEN, subject.device)
    out, lse = passes.forward(q, k, v, varlen, scoring)
    dout = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype)
    leaves = [x.detach().float().requires_grad_(True) for x in (q, k, v)]
    wanted = torch.autograd.grad(
        (plain_attention(leaves[0], leaves[1], leaves[2], scoring, *_UNEVEN)[0] * dout.float()).sum(), leaves
    )
    mine = passes.backward(dout, q, k, v, out, lse, varlen, scoring)
    for label, one, other in zip("qkv", mine, wanted, strict=False):
        _expect_close(one, other, subject.tolerance * 2, f"the gradient of {label}, with more keys than queries")
    more = passes.backward(dout, q, k, v, out, lse + 1.0, varlen, scoring)
    _expect_close(more[2], wanted[2] / 2.718281828, subject.tolerance * 2, "the gradient of v by a given log-sum-exp")


@check("attention_kernel")
def the_same_call_gives_the_same_bits(subject: AttentionSubject) -> None:
    """Two runs from one seed drift apart, and neither can be repeated."""
    subject.has("deterministic")
    torch = torch_module()
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        first, second = (_gradients(subject, subject.call, _inputs(subject, (64, 1, 17)), 64, {}) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(was)
    expect(all(torch.equal(a, b) for a, b in zip(first, second, strict=True)), "two equal calls give different bits")


@check("attention_kernel")
def an_option_it_lacks_is_refused(subject: AttentionSubject) -> None:
    """A model that needs the option is trained without it, and nobody is told."""
    asked: dict[str, dict[str, Any]] = {
        "window": {"window": (3, 0)},
        "sinks": {"sinks": _sinks(subject)},
        "softmax_scale": {"softmax_scale": 0.3},
        "non_causal": {"causal": False},
    }
    q, k, v, cu = _inputs(subject, (7, 3))
    for feature, options in asked.items():
        if feature in subject.features or ("lse" in subject.features and feature == "softmax_scale"):
            continue
        try:
            subject.call(q, k, v, cu_seqlens=cu, max_seqlen=7, **options)
        except ConfigError as error:
            expect(feature in str(error), f"the refusal does not name {feature!r}: {error}")
        else:
            fail(f"{feature!r} is no feature of the kernel, and is accepted")


def _compare(
    subject: AttentionSubject, lengths: Sequence[int], *, heads: int = 2, kv_heads: int = 2, **options: Any
) -> None:
    """Compare the kernel's output with plain attention."""
    q, k, v, cu = _inputs(subject, lengths, heads, kv_heads)
    out = subject.call(q, k, v, cu_seqlens=cu, max_seqlen=max(lengths), **options)
    expect(tuple(out.shape) == tuple(q.shape), f"the output is {tuple(out.shape)}, the queries {tuple(q.shape)}")
    expect(out.dtype == q.dtype, f"the output is {out.dtype}, the queries {q.dtype}")
    what = f"documents of {tuple(lengths)} tokens, {heads} on {kv_heads} heads, {options or 'no options'}"
    wanted, _ = plain_attention(q, k, v, Scoring.of(_HEAD, **options), lengths)
    _expect_close(out, wanted, subject.tolerance, what)


def _compare_gradients(
    subject: AttentionSubject, lengths: Sequence[int], *, heads: int = 2, kv_heads: int = 2, **options: Any
) -> None:
    """Compare the gradients of q, k, v and sinks with those of plain attention."""
    if not subject.has_backward:
        raise NotApplicable("the kernel has no backward here")

    def plain(q: Any, k: Any, v: Any, *, cu_seqlens: Any, max_seqlen: int, **given: Any) -> Any:
        return plain_attention(q, k, v, Scoring.of(_HEAD, **given), lengths)[0]

    inputs = _inputs(subject, lengths, heads, kv_heads)
    mine, theirs = (_gradients(subject, attend, inputs, max(lengths), options) for attend in (subject.call, plain))
    for label, one, other in zip(("q", "k", "v", "sinks"), mine, theirs, strict=False):
        _expect_close(one, other, subject.tolerance * 2, f"the gradient of {label}, {options or 'no options'}")


def _gradients(
    subject: AttentionSubject, attend: Any, inputs: tuple[Any, ...], longest: int, options: Mapping[str, Any]
) -> Any:
    torch = torch_module()
    leaves = [x.detach().clone().requires_grad_(True) for x in inputs[:3]]
    given = dict(options)
    if given.get("sinks") is not None:
        given["sinks"] = given["sinks"].detach().clone().requires_grad_(True)
        leaves.append(given["sinks"])
    out = attend(*leaves[:3], cu_seqlens=inputs[3], max_seqlen=longest, **given)
    weights = torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape)
    return torch.autograd.grad((out.float() * weights).sum(), leaves)


def _inputs(
    subject: AttentionSubject, lengths: Sequence[int], heads: int = 2, kv_heads: int = 2
) -> tuple[Any, Any, Any, Any]:
    """Return q [T, Hq, D], k and v [T, Hkv, D], and the documents' borders, int32 [N + 1]."""
    q, k, v = _tensors(subject, sum(lengths), sum(lengths), heads, kv_heads)
    return q, k, v, borders(lengths, subject.device)


def _tensors(
    subject: AttentionSubject, queries: int, keys: int, heads: int = 2, kv_heads: int = 2
) -> tuple[Any, Any, Any]:
    torch = torch_module()
    generator = torch.Generator().manual_seed(3)
    dtype = getattr(torch, subject.dtype)
    shapes = [(queries, heads, _HEAD), (keys, kv_heads, _HEAD), (keys, kv_heads, _HEAD)]
    q, k, v = (torch.randn(shape, generator=generator).to(subject.device, dtype) for shape in shapes)
    return q, k, v


def _sinks(subject: AttentionSubject) -> Any:
    torch = torch_module()
    return torch.tensor([0.5, -1.0], device=subject.device, dtype=getattr(torch, subject.dtype))


def _expect_close(mine: Any, wanted: Any, tolerance: float, what: str) -> None:
    torch = torch_module()
    expect(bool(torch.isfinite(mine).all()), f"{what}: the result is not finite")
    worst = (mine.float() - wanted.float()).abs().max().item()
    expect(worst <= tolerance, f"{what}: differs by up to {worst:.2e}, more than {tolerance:.0e}")
