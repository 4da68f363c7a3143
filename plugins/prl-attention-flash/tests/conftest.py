"""Stand-ins for the libraries: each version's own parameters, real numbers behind them, and a record of every call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch

from prl.contracts import Scoring
from prl.testing.checks.attention_oracle import plain_attention
from prl_attention_flash.known import KNOWN, Known
from prl_attention_flash.libraries import LIBRARIES, Library

TYPES = {"T": "Tensor", "f": "float", "i": "int", "b": "bool"}
_numbers = itertools.count()


@dataclass
class Fake:
    """A library's module, and what its two functions were called with: parameter -> value, defaults included."""

    known: Known
    module: ModuleType
    forward_calls: list[dict[str, Any]] = field(default_factory=list)
    backward_calls: list[dict[str, Any]] = field(default_factory=list)

    @property
    def library(self) -> Library:
        return next(one for one in LIBRARIES if one.name == self.known.library)


def source_of(name: str, parameters: str, returned: int, filled: bool) -> str:
    """Write a function with exactly these parameters that hands them to `_run`."""
    written = []
    for one in parameters.split():
        head, _, default = one.partition("=")
        label, _, kind = head.partition(":")
        hint = TYPES.get(kind[:1], "")
        if hint:
            hint = f": Optional[{hint}]" if kind.endswith("?") else f": {hint}"
        written.append(f"{label}{hint}{f' = {default}' if default else ''}")
    result = "Tensor" if filled else f"Tuple[{', '.join(['Tensor'] * returned)}]"
    return f"def {name}({', '.join(written)}) -> {result}:\n    return _run(dict(locals()))\n"


def make_function(name: str, parameters: str, run: Callable[[dict[str, Any]], Any], known: Known, filled: bool) -> Any:
    from typing import Optional

    scope: dict[str, Any] = {"Tensor": torch.Tensor, "Optional": Optional, "Tuple": tuple, "_run": run}
    exec(compile(source_of(name, parameters, known.returned, filled), name, "exec"), scope)
    if not known.is_operator:
        return scope[name]
    mutated = ("dq", "dk", "dv") if filled else ()
    label = f"prl_fake_{next(_numbers)}::{name.strip('_')}"
    return torch.library.custom_op(label, mutates_args=mutated, device_types="cpu")(scope[name])


def check_common(call: dict[str, Any]) -> None:
    """Refuse what the libraries' own code refuses or reads wrongly."""
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        assert call[name].dtype == torch.int32
        assert call[name].is_contiguous()
        assert type(call[f"max_seqlen_{name[-1]}"]) is int
        assert call[f"max_seqlen_{name[-1]}"] >= int(call[name].diff().max())
    for name in ("q", "k", "v", "dout", "out"):
        assert call.get(name) is None or call[name].stride(-1) == 1


def scoring_of(call: dict[str, Any], infinite: int | None) -> Scoring:
    left, right = (
        call["window_size"] if "window_size" in call else (call["window_size_left"], call["window_size_right"])
    )
    if infinite is None:
        assert left != -1
        assert right != -1
    else:
        assert left is not None
        assert right is not None
    return Scoring(
        window=(-1 if left is None else left, -1 if right is None else right),
        causal=call["causal"] if "causal" in call else call["is_causal"],
        scale=call["softmax_scale"],
        softcap=call["softcap"] or 0.0,
    )


def lengths_of(call: dict[str, Any]) -> list[list[int]]:
    return [call[name].diff().tolist() for name in ("cu_seqlens_q", "cu_seqlens_k")]


class Numbers:
    """What the stand-ins compute, and how the libraries write a query without keys."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake
        self.infinite = None if fake.known.library == "flash-4" else -1

    def forward(self, call: dict[str, Any]) -> Any:
        self.fake.forward_calls.append(call)
        check_common(call)
        out, lse = plain_attention(call["q"], call["k"], call["v"], scoring_of(call, self.infinite), *lengths_of(call))
        if self.fake.known.library == "flash-2":
            lse = lse.masked_fill(lse == -torch.inf, torch.inf)
        wants_lse = call.get("return_lse", True)
        rest = [torch.empty(0) if self.fake.known.is_operator else None for _ in range(self.fake.known.returned - 2)]
        return (out.to(call["q"].dtype), lse.contiguous() if wants_lse else None, *rest)

    def backward(self, call: dict[str, Any]) -> Any:
        self.fake.backward_calls.append(call)
        check_common(call)
        q, k, v, lse = call["q"], call["k"], call["v"], call.get("softmax_lse", call.get("lse"))
        assert (lse.shape, lse.dtype) == ((q.shape[1], q.shape[0]), torch.float32)
        assert lse.is_contiguous()
        assert not bool((lse == -torch.inf).any())
        with ThreadPoolExecutor(1) as elsewhere:  # inside an operator torch records no gradient
            grads = elsewhere.submit(self.gradients, call, q, k, v, lse).result()
        for name, grad in zip(("dq", "dk", "dv"), grads, strict=True):
            call[name].copy_(grad)
        if self.fake.known.fills_gradients:
            return torch.empty(0)
        return tuple(torch.full_like(grad, torch.nan) for grad in grads)  # nobody may read what is returned

    def gradients(self, call: dict[str, Any], q: Any, k: Any, v: Any, lse: Any) -> Any:
        leaves = [x.detach().float().requires_grad_(True) for x in (q, k, v)]
        out, own = plain_attention(*leaves, scoring_of(call, self.infinite), *lengths_of(call))
        # The probabilities of a given log-sum-exp are those of the own one, times exp(own - given).
        factor = torch.exp((own.detach() - lse).nan_to_num(nan=0.0, neginf=-torch.inf)).T[..., None]
        return torch.autograd.grad((out * call["dout"].float() * factor).sum(), leaves)


def make_fake(known: Known) -> Fake:
    library = next(one for one in LIBRARIES if one.name == known.library)
    fake = Fake(known, ModuleType(library.module))
    numbers = Numbers(fake)
    forward = make_function(library.forward, known.forward, numbers.forward, known, filled=False)
    backward = make_function(library.backward, known.backward, numbers.backward, known, filled=known.fills_gradients)
    setattr(fake.module, library.forward, forward)
    setattr(fake.module, library.backward, backward)
    return fake


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


_made: dict[str, Fake] = {}


@pytest.fixture(params=KNOWN, ids=lambda known: f"{known.library} {known.version}")
def fake(request: pytest.FixtureRequest) -> Fake:
    """One library, as one version of it is. Operators are registered once."""
    known: Known = request.param
    if known.version not in _made:
        _made[known.version] = make_fake(known)
    found = _made[known.version]
    found.forward_calls.clear()
    found.backward_calls.clear()
    return found


@pytest.fixture
def fake_of() -> Callable[[Known], Fake]:
    return make_fake
