"""Divide a model's weights over processes with FSDP2, one group of weights a layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from .world import World


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the decoder's layers, by what the model itself says must not be split."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    decoder = getattr(model, "get_decoder", lambda: None)() or model
    return [module for module in decoder.modules() if type(module).__name__ in names]


def shard_model(
    model: nn.Module, world: World, *, dtype: torch.dtype, cpu_offload: bool = False, reshard_after_forward: bool = True
) -> None:
    """Divide the weights over `world`, in place; passes run in `dtype`, gradients are added up in float32.

    The gradient that comes out is the mean over the processes. Weights that are not part of a decoder layer
    (embeddings, the head, a vision tower) make one more group: a process whose rows have no image takes part in it all
    the same. With `cpu_offload` weights, gradients and optimizer state stay in CPU memory.
    """
    on_gpu = world.mesh.device_type == "cuda"
    # A precision of None is the weights' own, float32.
    passes = None if dtype == torch.float32 else dtype
    settings: dict[str, Any] = {
        "mesh": world.mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=passes, reduce_dtype=torch.float32 if passes else None),
        "offload_policy": CPUOffloadPolicy(pin_memory=on_gpu) if cpu_offload else OffloadPolicy(),
    }
    for layer in layers_of(model):
        fully_shard(layer, reshard_after_forward=reshard_after_forward, **settings)
    fully_shard(model, **settings).set_reduce_scatter_unused_params(True)


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return weights and buffers by name, those included that no checkpoint holds (a rotary embedding's)."""
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return parameters | dict(model.named_buffers())


@torch.no_grad()
def spread(model: nn.Module, source: Mapping[str, torch.Tensor]) -> None:
    """Give every process its part of the main one's tensors, one tensor after the other; a collective.

    `source` are the main process's whole tensors, by the names of `tensors_of`; the others give none.
    """
    for name, mine in tensors_of(model).items():
        if isinstance(mine, DTensor):
            whole_one = source.get(name, torch.empty(mine.shape, dtype=mine.dtype))
            part = distribute_tensor(whole_one, mine.device_mesh, mine.placements, src_data_rank=0)
            mine.to_local().copy_(part.to_local())
        else:
            if name in source:
                mine.copy_(source[name])
            dist.broadcast(mine, src=0)


def add_gradients_up(model: nn.Module, *, now: bool) -> None:
    """Say whether the next backward pass adds gradients up over processes; nothing to say for one process."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)
        model.set_is_last_backward(now)


@contextmanager
def passes_without_backward(model: nn.Module) -> Iterator[None]:
    """Divide the outermost weights again after passes that no backward pass follows: until then they are whole."""
    yield
    if isinstance(model, FSDPModule):
        model.reshard()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a divided tensor, in every process (a collective); any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
