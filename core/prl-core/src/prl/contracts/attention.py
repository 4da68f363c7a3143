"""An attention kernel over packed sequences."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class AttentionKernel(Protocol):
    """One callable over packed sequences; torch tensors are typed `Any` because core imports no torch.

    Shapes: q [T, Hq, D]; k, v [T, Hkv, D] with Hq a multiple of Hkv; cu_seqlens int32 [N + 1] on q's device;
    window (left, right) inclusive token counts, -1 for infinite; sinks [Hq] or None. A kernel refuses an option that
    its record's `features` do not name.
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
        """Return the attention output [T, Hq, D], differentiable in q, k and v."""
        ...
