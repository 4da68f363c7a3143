"""The two passes of every FlashAttention: the same arguments, each version's own names.

Shapes: Tq and Tk tokens, Hq and Hkv heads, D head size.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from prl.contracts import Scoring, Varlen
from prl.types import ConfigError, PluginError

from .binder import Bound

_BOTH = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "scale", "causal", "window")


class FlashPasses:
    """`AttentionPasses` on two functions of a library's module."""

    def __init__(self, name: str, module: ModuleType, forward: str, backward: str, *, version: str) -> None:
        """Bind both functions; raise `PluginError` where one is not there, or is not as any version that is known."""
        self._name = name
        self._version = version
        self._place = module.__name__
        self._forward = self._bind(module, forward, _BOTH, ("softcap", "wants_lse"))
        self._backward = self._bind(
            module, backward, (*_BOTH, "dout", "out", "lse", "dq", "dk", "dv"), ("softcap", "deterministic")
        )

    def forward(self, q: Tensor, k: Tensor, v: Tensor, varlen: Varlen, scoring: Scoring) -> tuple[Tensor, Tensor]:
        """Return out [Tq, Hq, D] and lse, float32 [Hq, Tq]; raise `ConfigError` for what the library has not."""
        self._refuse(scoring)
        result = self._forward(
            **_tensors(q=q, k=k, v=v),
            **_borders(varlen),
            **_asked(scoring),
            window=_window(scoring),
            wants_lse=True,
        )
        out, lse = self._checked(result, q, v)
        # A query without keys: +inf in FlashAttention 2, -inf in the contract.
        return out, lse.masked_fill(lse.isinf(), -torch.inf)

    def backward(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        varlen: Varlen,
        scoring: Scoring,
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of q, k and v; raise `ConfigError` for what the library has not."""
        self._refuse(scoring)
        # Only what is passed is read back: what the functions return differs from version to version.
        grads = {
            name: torch.empty_like(x, memory_format=torch.contiguous_format)
            for name, x in (("dq", q), ("dk", k), ("dv", v))
        }
        self._backward(
            **_tensors(dout=dout, q=q, k=k, v=v, out=out),
            **_borders(varlen),
            **grads,
            **_asked(scoring),
            window=_window(scoring),
            # exp(score - inf) is 0 in every version; exp(-inf + inf) is not a number.
            lse=lse.masked_fill(lse == -torch.inf, torch.inf).contiguous(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        return grads["dq"], grads["dk"], grads["dv"], None

    def _bind(self, module: ModuleType, name: str, needed: tuple[str, ...], optional: tuple[str, ...]) -> Bound:
        function = getattr(module, name, None)
        if function is None:
            raise PluginError(
                f"the attention kernel {self._name!r} finds no {name} in the installed library",
                where=f"{module.__name__}, version {self._version}",
                next_step="install a version that has it; flash-attn before 2.8.4 writes a stub over flash-attn-4",
            )
        return Bound(function, needed, optional, place=f"{module.__name__}.{name}", version=self._version)

    def _refuse(self, scoring: Scoring) -> None:
        lacks = {"sinks": scoring.sinks is not None, "softcap": bool(scoring.softcap) and not self._has_cap()}
        for feature, is_asked in lacks.items():
            if is_asked:
                raise ConfigError(
                    f"the attention kernel {self._name!r} has no {feature!r}",
                    where=f"{self._place}, version {self._version}",
                    next_step="choose a kernel that has it: `prl plugins list --kind attention-kernel`",
                )

    def _has_cap(self) -> bool:
        return self._forward.has("softcap") and self._backward.has("softcap")

    def _checked(self, result: Any, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return output and log-sum-exp; raise where another version put something else in their place."""
        given = tuple(result) if isinstance(result, tuple | list) else (result,)
        out, lse = (*given, None, None)[:2]
        self._check(out, "the output", (*q.shape[:2], v.shape[2]), q.dtype)
        self._check(lse, "the log-sum-exp", (q.shape[1], q.shape[0]), torch.float32)
        return out, lse

    def _check(self, found: Any, what: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        if isinstance(found, Tensor) and found.shape == shape and found.dtype == dtype:
            return
        told = f"{str(found.dtype)[6:]} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise PluginError(
            f"the attention kernel {self._name!r} got {told} for {what}, and not {str(dtype)[6:]} {shape}",
            where=f"{self._place}, version {self._version}",
            next_step="install a newer version of the library; FlashAttention 2 returns it so from 2.7 on",
        )


def _tensors(**named: Tensor) -> dict[str, Tensor]:
    """Return the tensors with a last dimension that is contiguous, as the libraries need it."""
    return {name: x if x.stride(-1) == 1 else x.contiguous() for name, x in named.items()}


def _borders(varlen: Varlen) -> dict[str, Any]:
    return {
        "cu_seqlens_q": varlen.cu_seqlens_q,
        "cu_seqlens_k": varlen.cu_seqlens_k,
        "max_seqlen_q": varlen.max_seqlen_q,
        "max_seqlen_k": varlen.max_seqlen_k,
    }


def _asked(scoring: Scoring) -> dict[str, Any]:
    said = {"scale": scoring.scale, "causal": scoring.causal}
    return {**said, "softcap": scoring.softcap} if scoring.softcap else said


def _window(scoring: Scoring) -> tuple[int, int]:
    """Return the window; beside a finite left side, causal is said as the right side too."""
    return (-1, -1) if scoring.causal and scoring.window[0] < 0 else scoring.sides
