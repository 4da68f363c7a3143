"""From a model directory to a model that is ready to train: adapters, checkpointing, compilation, division."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

from prl.types import ConfigError
from prl_train.attention.binding import IMPLEMENTATION, BoundKernel, attend
from prl_train.attention.context_parallel import ContextParallel
from prl_train.distributed.sharding import layers_of, shard_model, spread, tensors_of
from prl_train.distributed.world import World
from prl_train.models.load import empty_model, has_tied_head, load_model
from prl_train.models.lora import add_adapters

from .config import TrainerConfig

_ATTENTION_LAYERS = {"full_attention", "sliding_attention"}


def prepare_model(config: TrainerConfig, world: World, device: torch.device, *, attention: str) -> Any:
    """Return the model as the settings want it; each process of a world keeps its part of the weights.

    Raises `ConfigError` where the model cannot be had, or adapters match no layer of it.
    """
    model = _first_model(config.model, world, device, attention)
    if config.lora is not None:
        settings = config.lora.model_dump(exclude={"publish"})
        add_adapters(model, source=config.model, **settings)
    model.train()
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if config.compile:
        compile_layers(model)
    if world.size > 1:
        source = tensors_of(model) if world.is_main else {}
        dtype: torch.dtype = getattr(torch, config.dtype)
        shard_model(model, world, dtype=dtype, cpu_offload=config.parallel.cpu_offload)
        spread(model, source)
    return model


def _first_model(name: str, world: World, device: torch.device, attention: str) -> Any:
    """Return the whole model; of several processes one alone reads it, and no device has to hold all of it.

    Master weights stay in float32: small updates would be lost in bfloat16.
    """
    if world.size == 1:
        return load_model(name, torch.float32, device, attention=attention)
    loaded = load_model(name, torch.float32, "cpu", attention=attention) if world.is_main else None
    tied = world.from_main(loaded is not None and has_tied_head(loaded))
    return loaded if world.is_main else empty_model(name, torch.float32, attention=attention, tied=tied)


def compile_layers(model: Any) -> None:
    """Compile each layer's own forward, so that names, hooks and checkpointing around it stay as they are.

    All layers of a kind share their code, so a deep model compiles as fast as a shallow one. Rows have any length,
    hence dynamic shapes. The attention kernel is called, not traced: what it does depends on where documents end.
    """
    untraced: Any = torch.compiler.disable
    AttentionInterface.register(IMPLEMENTATION, untraced(attend))
    for layer in layers_of(model):
        layer.forward = torch.compile(layer.forward, dynamic=True)


def share_rows(model: Any, kernel: BoundKernel, world: World, strategy: str) -> ContextParallel | None:
    """Return how the processes of a context group share a row, None where each has its rows alone.

    Raises `ConfigError` where the kernel or the number of heads does not allow it.
    """
    if world.context_size == 1:
        return None
    config = model.config.get_text_config()
    other = sorted(set(getattr(config, "layer_types", None) or ()) - _ATTENTION_LAYERS)
    if other:
        raise ConfigError(
            f"the model has layers of {', '.join(other)}, which carry a state from token to token",
            where="trainer.parallel.context",
            next_step="train this model with trainer.parallel.context = 1",
        )
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    return ContextParallel.create(strategy, world.context_group).settle(kernel, heads=heads, kv_heads=kv_heads)
