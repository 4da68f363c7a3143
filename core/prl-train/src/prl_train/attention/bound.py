"""A kernel with what its record says of it, and what one forward pass hands to the model's layers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol, cast

from torch import Tensor

from prl.contracts import FEATURES, AttentionKernel, AttentionPasses
from prl.types import ConfigError

from .passes import DerivedKernel
from .sinks import SinksFromLse


@dataclass(frozen=True, slots=True)
class BoundKernel:
    """A kernel and what its record says it can do; `passes` are its two passes where it offers "lse"."""

    name: str
    kernel: AttentionKernel
    features: frozenset[str]
    passes: AttentionPasses | None = None

    def require(self, feature: str, why: str) -> None:
        """Raise `ConfigError` where the kernel lacks a feature that the model needs."""
        if feature not in self.features:
            raise ConfigError(
                f"the attention kernel {self.name!r} has no {feature!r} ({FEATURES[feature]}), and {why}",
                where=f"attention = {self.name!r}",
                next_step="choose another kernel: `prl plugins list --kind attention-kernel` shows their features",
            )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Call the kernel; options as `AttentionKernel`, and `softcap`, which only kernels that offer it are given."""
        if not options.get("softcap"):
            options.pop("softcap", None)
        attended: Tensor = self.kernel(q, k, v, **options)
        return attended


class Context(Protocol):
    """How a row that several ranks share is attended; `context_parallel.RowPlan` is one."""

    def attend(self, bound: BoundKernel, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Attend for this rank's queries."""
        ...


@dataclass(frozen=True, slots=True)
class PackedCall:
    """One forward pass: the kernel and where the documents lie in the row; `context` where ranks share the row."""

    bound: BoundKernel
    cu_seqlens: Tensor
    max_seqlen: int
    context: Context | None = None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Attend; q [T, Hq, D], k and v [T, Hkv, D], or this rank's shards of them."""
        if self.context is not None:
            return self.context.attend(self.bound, q, k, v, **options)
        return self.bound.attend(q, k, v, cu_seqlens=self.cu_seqlens, max_seqlen=self.max_seqlen, **options)


def bind(name: str, kernel: AttentionKernel | AttentionPasses, features: Collection[str]) -> BoundKernel:
    """Pair what a record's target made with its features.

    A kernel that gives the log-sum-exp has sinks by it, also where it offers none; its callable is derived where it is
    not callable itself.
    """
    if "lse" not in features:
        return BoundKernel(name, cast(AttentionKernel, kernel), frozenset(features))
    passes = cast(AttentionPasses, kernel)
    if "sinks" not in features:
        passes = SinksFromLse(passes)
    own = callable(kernel) and "sinks" in features
    call = cast(AttentionKernel, kernel) if own else DerivedKernel(passes)
    return BoundKernel(name, call, frozenset({*features, "sinks"}), passes)
