"""Compare the installed libraries with float32 attention on this GPU: python -m prl_attention_flash.check [--tokens N].

Prints a line a library: the largest differences of values and gradients, and the times of both passes. Exit 1 where one
is wrong, 2 where nothing could be checked.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from prl.contracts import Scoring, Varlen
from prl.testing.checks.attention_oracle import plain_attention
from prl.types import PluginError

from .known import KNOWN
from .libraries import LIBRARIES, Library
from .passes import FlashPasses

_TOLERANCE = 3e-2
_HEADS, _KV_HEADS, _HEAD_SIZE = 16, 4, 128
_CASES = (("causal", (-1, -1)), ("window of 128", (127, 0)))


def main(arguments: Sequence[str]) -> int:
    """Check every library; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m prl_attention_flash.check", description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of the packed row that is timed")
    tokens: int = parser.parse_args(arguments).tokens
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was checked; next: run this on a machine with a GPU", file=sys.stderr)
        return 2
    major, minor = torch.cuda.get_device_capability()
    print(f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}, torch {torch.__version__}")
    verdicts = [_check(library, tokens) for library in LIBRARIES]
    checked = [one for one in verdicts if one is not None]
    if not checked:
        print("no FlashAttention could be loaded; next: install one that fits this torch and CUDA", file=sys.stderr)
        return 2
    return 0 if all(checked) else 1


def _check(library: Library, tokens: int) -> bool | None:
    """Print what is found; return whether the library is right, None where it cannot be loaded."""
    try:
        passes = library.load()
    except PluginError as error:
        print(f"{library.name}: not checked: {error.what}")
        return None
    versions = [known.version for known in KNOWN if known.library == library.name]
    found = library.version()
    print(f"{library.name} {found}" + ("" if found in versions else f" (its tests know {', '.join(versions)})"))
    right = True
    for label, window in _CASES:
        worst = _compare(passes, window)
        forward, backward = _time(passes, window, tokens)
        is_right = worst <= _TOLERANCE
        right &= is_right
        print(
            f"  {label}: largest difference {worst:.1e} ({'right' if is_right else 'WRONG'}); "
            f"{tokens} tokens: forward {forward:.2f} ms, backward {backward:.2f} ms"
        )
    return right


def _inputs(lengths: Sequence[int]) -> tuple[list[Tensor], Varlen]:
    generator = torch.Generator("cuda").manual_seed(1)
    total = sum(lengths)
    tensors = [
        torch.randn(total, heads, _HEAD_SIZE, generator=generator, device="cuda", dtype=torch.bfloat16)
        for heads in (_HEADS, _KV_HEADS, _KV_HEADS, _HEADS)
    ]
    borders = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    return tensors, Varlen(borders, borders, max(lengths), max(lengths))


def _compare(passes: FlashPasses, window: tuple[int, int]) -> float:
    """Return the largest difference from float32 attention, of values and gradients."""
    lengths = (300, 1, 211)
    (q, k, v, dout), varlen = _inputs(lengths)
    scoring = Scoring.of(_HEAD_SIZE, window=window)
    out, lse = passes.forward(q, k, v, varlen, scoring)
    mine = [out, *passes.backward(dout, q, k, v, out, lse, varlen, scoring)[:3]]
    leaves = [x.float().requires_grad_(True) for x in (q, k, v)]
    wanted, _ = plain_attention(leaves[0], leaves[1], leaves[2], scoring, lengths)
    theirs = [wanted, *torch.autograd.grad((wanted * dout.float()).sum(), leaves)]
    return max(_difference(a, b) for a, b in zip(mine, theirs, strict=True))


def _difference(mine: Tensor, wanted: Tensor) -> float:
    """Return the largest difference as a share of the largest value, at least of 1."""
    size = max(1.0, float(wanted.detach().abs().max()))
    return float((mine.float() - wanted.detach()).abs().max()) / size


def _time(passes: FlashPasses, window: tuple[int, int], tokens: int, repeats: int = 20) -> tuple[float, float]:
    """Return milliseconds of a forward and of a backward pass over a row of eight documents."""
    (q, k, v, dout), varlen = _inputs([max(1, tokens // 8)] * 8)
    scoring = Scoring.of(_HEAD_SIZE, window=window)
    out, lse = passes.forward(q, k, v, varlen, scoring)
    passes.backward(dout, q, k, v, out, lse, varlen, scoring)
    cuda: Any = torch.cuda
    marks = [cuda.Event(enable_timing=True) for _ in range(3)]
    marks[0].record()
    for _ in range(repeats):
        passes.forward(q, k, v, varlen, scoring)
    marks[1].record()
    for _ in range(repeats):
        passes.backward(dout, q, k, v, out, lse, varlen, scoring)
    marks[2].record()
    torch.cuda.synchronize()
    return marks[0].elapsed_time(marks[1]) / repeats, marks[1].elapsed_time(marks[2]) / repeats


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
