"""An attention kernel over packed sequences: one callable, or a pair of passes that also give the log-sum-exp.

Torch tensors are typed `Any`, because core imports no torch. Shapes: Tq and Tk packed tokens, Hq query heads, Hkv key
heads (Hq a multiple of Hkv), D head size, N documents.

What every kernel means by its options:

- `causal` is aligned to the bottom right: the last query of a document sees its last key, also where lengths differ.
- `window` is (left, right), inclusive counts of tokens beside a query's own place; -1 is infinite, (0, 0) itself alone.
- The scale multiplies the scores before the softmax. `sinks` [Hq] is one more logit a head, which takes its share of
  the softmax and has no value.
- Documents of no tokens are legal. A query that sees no key gives zeros, and a log-sum-exp of -inf (of the sink's logit
  where there is one).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

FEATURES = {
    "non_causal": "causal = False",
    "window": "a sliding window",
    "softmax_scale": "a scale other than D ** -0.5",
    "sinks": "attention sinks",
    "softcap": "a soft cap on the scores: the keyword softcap, a float; cap * tanh(score / cap)",
    "gqa": "fewer key heads than query heads",
    "lse": "forward and backward passes with the log-sum-exp: the target makes `AttentionPasses`",
    "deterministic": "the same bits every time under torch.use_deterministic_algorithms",
}
"""Feature that a record may declare -> what a kernel then takes."""


@runtime_checkable
class AttentionKernel(Protocol):
    """One differentiable callable over packed sequences.

    Shapes: q [T, Hq, D]; k, v [T, Hkv, D]; cu_seqlens int32 [N + 1] on q's device. A kernel refuses an option that its
    record's `features` do not name, with a `ConfigError` that names the feature. `softcap` is passed only to kernels
    that offer it.
    """

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        cu_seqlens: Any,
        max_seqlen: int,
        causal: bool = True,
        window: tuple[int, int] = (-1, -1),
        softmax_scale: float | None = None,
        sinks: Any = None,
    ) -> Any:
        """Return the attention output [T, Hq, D], differentiable in q, k, v and sinks."""
        ...


@dataclass(frozen=True, slots=True)
class Varlen:
    """Where documents lie: int32 [N + 1], contiguous and on q's device, for queries and for keys; longest of each."""

    cu_seqlens_q: Any
    cu_seqlens_k: Any
    max_seqlen_q: int
    max_seqlen_k: int


@dataclass(frozen=True, slots=True)
class Scoring:
    """How queries weigh keys: the mask, the scale, one sink a head [Hq], and the soft cap, 0.0 where there is none."""

    causal: bool
    window: tuple[int, int]
    scale: float
    sinks: Any = None
    softcap: float = 0.0

    @classmethod
    def of(
        cls,
        head_size: int,
        *,
        causal: bool = True,
        window: tuple[int, int] = (-1, -1),
        softmax_scale: float | None = None,
        sinks: Any = None,
        softcap: float | None = None,
    ) -> Scoring:
        """Return what the options of an `AttentionKernel` say; a scale that is not given is D ** -0.5, 0.0 is one."""
        scale = head_size**-0.5 if softmax_scale is None else softmax_scale
        return cls(causal, window, scale, sinks, softcap or 0.0)

    @property
    def sides(self) -> tuple[int, int]:
        """The window with causality in it: nothing to the right."""
        return self.window[0], 0 if self.causal else self.window[1]


@runtime_checkable
class AttentionPasses(Protocol):
    """A kernel's two passes, which context parallelism needs; feature "lse". A callable is derived from them.

    Sinks, a soft cap, a window or `causal=False` are asked for only of kernels that offer them.
    """

    def forward(self, q: Any, k: Any, v: Any, varlen: Varlen, scoring: Scoring) -> tuple[Any, Any]:
        """Return the output [Tq, Hq, Dv] and the log-sum-exp, float32 [Hq, Tq], natural, a sink's share in it."""
        ...

    def backward(
        self,
        dout: Any,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        lse: Any,
        varlen: Varlen,
        scoring: Scoring,
    ) -> tuple[Any, Any, Any, Any]:
        """Return the gradients of q, k, v and sinks (None where there are none).

        `out` and `lse` are those of the forward pass over the same queries; the log-sum-exp may be that of more keys
        than are given here.
        """
        ...
