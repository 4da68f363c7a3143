"""What a strategy of context parallelism is, and the strategies by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from prl_train.attention.bound import BoundKernel

if TYPE_CHECKING:
    from .plan import RowPlan


class Strategy(Protocol):
    """How the ranks of a group attend together."""

    @property
    def name(self) -> str:
        """The name in the configuration."""
        ...

    def obstacle(self, bound: BoundKernel, *, heads: int, kv_heads: int, world: int) -> str:
        """Say why it cannot work with a kernel and a model's heads; "" where it can."""
        ...

    def attend(self, plan: RowPlan, bound: BoundKernel, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Attend for one rank's queries; q [S, Hq, D], k and v [S, Hkv, D], options of an `AttentionKernel`."""
        ...
