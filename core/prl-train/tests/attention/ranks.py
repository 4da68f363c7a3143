"""Run by test_context_parallel: fork WORLD ranks, compare every case with one process, print the largest differences.

Usage: python ranks.py WORLD. Prints JSON: case -> the largest absolute difference over ranks, values and gradients.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from conftest import tiny_model
from torch import Tensor

from prl.types import ConfigError
from prl_train.attention.binding import IMPLEMENTATION, PackedCall, bind
from prl_train.attention.context_parallel import ContextParallel, shift_labels
from prl_train.attention.sdpa import Sdpa
from prl_train.plugin import prl_attention_kernels

FEATURES = {record.name: record.features for record in prl_attention_kernels()}["sdpa"]
PACKINGS = {"one": ([0, 24], 24), "many": ([0, 7, 7, 10, 19, 20, 21], 21), "padded": ([0, 2, 13], 18)}
HEADS = {"mha": (4, 4), "gqa": (8, 4), "gqa-few": (8, 2), "mqa": (4, 1)}
OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {},
    "window": {"window": (3, 0)},
    "sinks": {"sinks": True, "softmax_scale": 0.7},
    "window-sinks": {"window": (5, 0), "sinks": True},
    "softcap": {"softcap": 1.5},
    "full": {"causal": False},
}


def tensors(heads: tuple[int, int], length: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(length, heads[0], 8), (length, heads[1], 8), (length, heads[1], 8), (length, heads[0], 8), (heads[0],)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def given(options: dict[str, Any], sinks: Tensor) -> dict[str, Any]:
    named = {"causal": True, "window": (-1, -1), "softmax_scale": None, **options}
    return named | {"sinks": sinks if options.get("sinks") else None}


def compare_kernel(cp: ContextParallel, packing: str, heads: str, options: dict[str, Any]) -> float:
    """Return the largest difference of the output, its gradients, and the summed gradient of the sinks."""
    borders, length = PACKINGS[packing]
    bound = bind("sdpa", Sdpa(), FEATURES)
    cp = cp.settle(bound, heads=HEADS[heads][0], kv_heads=HEADS[heads][1])
    *inputs, flow, sinks = tensors(HEADS[heads], length)
    row = [*borders, length] if borders[-1] < length else borders
    whole = [x.clone().requires_grad_(True) for x in (*inputs, sinks)]
    packed = PackedCall(bound, torch.tensor(row, dtype=torch.int32), length)
    want = packed.attend(*whole[:3], **given(options, whole[3]))
    wanted = torch.autograd.grad((want * flow).sum(), whole, allow_unused=True)

    plan = cp.plan(borders, length)
    shards = [plan.shard(x).clone().requires_grad_(True) for x in inputs]
    mine = sinks.clone().requires_grad_(True)
    out = plan.call(bound).attend(*shards, **given(options, mine))
    grads = torch.autograd.grad((out * plan.shard(flow)).sum(), [*shards, mine], allow_unused=True)
    pairs = list(zip((out, *grads[:3]), (plan.shard(x) for x in (want, *wanted[:3])), strict=True))
    if grads[3] is not None:
        total = grads[3].clone()
        dist.all_reduce(total)
        pairs.append((total, wanted[3]))
    real = max(0, min(plan.shard_length, length - plan.rank * plan.shard_length))  # without padding
    worst = max((largest(a[:real] - b[:real]) for a, b in pairs[:4] if real), default=0.0)
    return max([worst, *(largest(a - b) for a, b in pairs[4:])])


def largest(difference: Tensor) -> float:
    return float(difference.detach().abs().max())


def compare_model(cp: ContextParallel, family: str) -> float:
    """Return the largest difference of a model's label log-probabilities and of its summed gradients."""
    borders, length = PACKINGS["many"]
    model = tiny_model(family, IMPLEMENTATION)
    bound = bind("sdpa", Sdpa(), FEATURES)
    cp = cp.settle(bound, heads=4, kv_heads=model.config.num_key_value_heads)
    ids = torch.randint(0, 64, (length,), generator=torch.Generator().manual_seed(2))
    positions = torch.cat([torch.arange(b - a) for a, b in pairwise(borders)])
    labels = shift_labels(ids, borders)
    weights = torch.linspace(-1, 1, length)

    def logprobs(ids: Tensor, positions: Tensor, labels: Tensor, packed: PackedCall) -> Tensor:
        logits = model(input_ids=ids[None], position_ids=positions[None], packed=packed, use_cache=False).logits[0]
        return -torch.nn.functional.cross_entropy(logits, labels, reduction="none", ignore_index=-100)

    def gradients() -> dict[str, Tensor]:
        found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        model.zero_grad()
        return found

    packed = PackedCall(bound, torch.tensor(borders, dtype=torch.int32), length)
    want = logprobs(ids, positions, labels, packed)
    (want * weights).sum().backward()
    wanted = gradients()
    plan = cp.plan(borders, length)
    local = logprobs(plan.shard(ids), plan.shard(positions), plan.shard(labels, fill=-100), plan.call(bound))
    got = plan.gather(local)
    (got * weights).sum().backward()
    worst = largest(got - want)
    for name, weight in wanted.items():
        mine = dict(model.named_parameters())[name].grad
        total = torch.zeros_like(weight) if mine is None else mine.clone()
        dist.all_reduce(total)
        worst = max(worst, largest(total - weight) / max(1.0, float(weight.abs().max())))
    which, place = plan.owned(torch.arange(length))
    assert torch.equal(ids[which], plan.shard(ids)[place])
    return worst


def run(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    ways = {
        "ring": ContextParallel.create("ring"),
        "ring-all-heads": ContextParallel.create("ring", head_stride=0),
        "ring-p2p": ContextParallel.create("ring-p2p"),
        "ulysses": ContextParallel.create("ulysses"),
    }
    found: dict[str, float] = {}
    for (way, cp), packing, heads, (name, options) in product(ways.items(), PACKINGS, HEADS, OPTIONS.items()):
        if way == "ring-all-heads" and (packing, name) != ("many", "window-sinks"):
            continue
        if way == "ring-p2p" and "window" in options:
            continue
        if packing != "many" and (name not in ("causal", "window-sinks") or heads not in ("gqa-few", "mqa")):
            continue
        found[f"{way} {packing} {heads} {name}"] = compare_kernel(cp, packing, heads, options)
    for way, family in product(("ring", "ring-p2p", "ulysses"), ("qwen3", "gpt_oss")):
        if (way, family) == ("ring-p2p", "gpt_oss"):
            continue  # it has sliding windows
        found[f"{way} model {family}"] = compare_model(ways[way], family)
    found["ulysses full-window"] = compare_kernel(ways["ulysses"], "many", "gqa", {"causal": False, "window": (2, 1)})
    refused: list[tuple[str, dict[str, Any]]] = [
        ("ring", {"causal": False, "window": (2, 1)}),
        ("ring-p2p", {"window": (2, 0)}),
    ]
    for way, options in refused:
        try:
            compare_kernel(ways[way], "many", "gqa", options)
        except ConfigError:
            found[f"{way} refuses a window"] = 0.0
    worst = torch.tensor(list(found.values()))
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps(dict(zip(found, worst.tolist(), strict=True))))
    dist.destroy_process_group()


def main(world: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(world):
            child = os.fork()
            if not child:
                code = 1
                try:
                    run(rank, world, Path(folder))
                    code = 0
                except BaseException:  # noqa: BLE001 - a forked child must end here, whatever it met
                    traceback.print_exc()
                sys.stdout.flush()
                os._exit(code)
            children.append(child)
        return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
