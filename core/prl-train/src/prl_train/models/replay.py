"""Router replay: the trainer sends each token to the experts that the sampler used.

The routing of a row travels as one keyword of `model(...)` down to every decoder layer, as the attention kernel does;
so a layer that is run again by activation checkpointing sees the same. In a layer's mixture of experts the choice is
the one `torch.topk` over the experts: a replayed row answers that call with the sampler's indices and the model's own
scores for them, and whatever the model does with the scores (softmax before or after, renormalising, scaling) it does
as ever; the router is trained through the scores of the experts that were used.

Shapes: T tokens, L layers with routing, K experts per token, E experts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from prl.trajectory.routed import NO_ROUTE
from prl.types import AlignmentError, ConfigError, MicroBatch
from prl_train.errors import TrainingError

ROUTES = "routed_experts"
"""The keyword of `model(...)` that carries the routing [T, L, K], int64, `NO_ROUTE` where the model shall choose."""
_TOPK = (torch.topk, torch.Tensor.topk)


@dataclass(slots=True)
class _Block:
    """One mixture of experts: where it is, how many experts it has, and the routing of the pass under way."""

    name: str
    layer: int
    experts: int
    routes: Tensor | None = None
    is_replayed: bool = False
    choosing: list[_ForcedChoice] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RouterReplay:
    """The hooks on a model's mixtures of experts; made once by `install`. `compiled` names a layer that forbids it."""

    layers: int
    blocks: tuple[_Block, ...]
    compiled: str = ""

    @classmethod
    def install(cls, model: Any) -> RouterReplay:
        """Hook every mixture of experts of a model."""
        modules = dict(model.named_modules())
        names = [name for name, module in modules.items() if _router_of(module) is not None]
        blocks = []
        compiled = ""
        for order, name in enumerate(names):
            layer = _layer_name(name)
            router: Any = _router_of(modules[name])
            block = _Block(name, int(layer.rsplit(".", 1)[-1]), _experts_of(router))
            blocks.append(block)
            if "forward" in vars(modules[layer]):
                compiled = layer  # it would have to trace the hooks, for nothing
                continue
            modules[layer].register_forward_pre_hook(_receive(block, order, len(names)), with_kwargs=True)
            modules[name].register_forward_pre_hook(_begin(block))
            modules[name].register_forward_hook(_end(block), always_call=True)
        return cls(int(model.config.get_text_config().num_hidden_layers), tuple(blocks), compiled)

    def inputs(self, batch: MicroBatch, device: torch.device) -> dict[str, Tensor]:
        """Return the model's keyword for a row, none where the row has no routing.

        Raises `AlignmentError` where the routing is not that of this model, `ConfigError` where its layers are
        compiled: a compiled layer cannot be told its routing.
        """
        if batch.routed_experts is None:
            return {}
        if self.compiled:
            raise ConfigError(
                f"the layer {self.compiled!r} is compiled, and routing cannot be replayed in a compiled layer",
                where="trainer.router_replay",
                next_step="set trainer.compile = false, or trainer.router_replay = false",
            )
        table = np.asarray(batch.routed_experts)
        self._check(table, len(batch.input_ids))
        for block in self.blocks:
            block.is_replayed = False
        return {ROUTES: torch.as_tensor(table.astype(np.int64), device=device)}

    def _check(self, table: Any, length: int) -> None:
        experts = max((block.experts for block in self.blocks), default=0)
        fits = table.ndim == 3 and len(table) == length and table.shape[1] in (len(self.blocks), self.layers)
        if not self.blocks or not fits:
            what = f"routed_experts has the shape {table.shape}; the row has {length} tokens, the model {self.layers} "
            what += f"layers, {len(self.blocks)} of them with experts"
        elif table.size and not NO_ROUTE <= table.min() <= table.max() < experts:
            what = f"routed_experts names experts from {table.min()} to {table.max()}; the model has {experts}"
        else:
            return
        raise AlignmentError(
            what,
            where="a packed row",
            next_step="sample with the model that is trained, or set trainer.router_replay = false",
        )

    def confirm(self) -> None:
        """Raise `TrainingError` where a mixture of experts did not get the routing of the pass that was just run."""
        left_out = [block.name for block in self.blocks if not block.is_replayed]
        if left_out:
            raise TrainingError(
                f"the routing did not reach {len(left_out)} of {len(self.blocks)} mixtures of experts: the model does "
                "not pass its keywords on to its layers",
                where=left_out[0],
                next_step="set trainer.router_replay = false",
            )


def _router_of(module: nn.Module) -> nn.Module | None:
    """Return the router of a mixture of experts, which transformers' models call `gate` or `router`; else None."""
    children = dict(module.named_children())
    router = children.get("gate", children.get("router"))
    return router if "experts" in children else None


def _experts_of(router: nn.Module) -> int:
    """Return E: a router's matrix has one row an expert."""
    return next(len(parameter) for parameter in router.parameters() if parameter.ndim == 2)


def _layer_name(name: str) -> str:
    """Return the name of the decoder layer that holds a module: its first numbered part."""
    matched = re.match(r"((?:[^.]+\.)*?\d+)(?:\.|$)", name)
    if matched is None:
        raise ConfigError(
            f"the mixture of experts {name!r} is in no numbered layer",
            where="router replay",
            next_step="set trainer.router_replay = false",
        )
    return matched.group(1)


def _receive(block: _Block, order: int, blocks: int) -> Callable[..., None]:
    """Return a hook that takes the block's routing from the layer's keywords; the layer passes them on as ever."""

    def hook(_: nn.Module, __: Any, kwargs: dict[str, Any]) -> None:
        table: Tensor | None = kwargs.get(ROUTES)
        if table is None:
            block.routes = None
            return
        # An engine reports every layer, or those with experts alone.
        block.routes = table[:, order if table.shape[1] == blocks else block.layer]

    return hook


def _begin(block: _Block) -> Callable[..., None]:
    def hook(_: nn.Module, __: Any) -> None:
        if block.routes is not None:
            choice: Any = _ForcedChoice(block.routes, block.experts)
            block.choosing.append(choice)
            choice.__enter__()

    return hook


def _end(block: _Block) -> Callable[..., None]:
    """Return a hook that ends the forced choice, also where the block failed (it then has no output)."""

    def hook(_: nn.Module, __: Any, output: Any) -> None:
        if not block.choosing:
            return
        choice: Any = block.choosing.pop()
        choice.__exit__(None, None, None)
        block.is_replayed = choice.answered == 1
        if output is not None and not block.is_replayed:
            raise TrainingError(
                f"the routing could not be replayed: the layer chose {choice.answered} times among "
                f"{block.experts} experts for routing of the shape {choice.shape} (tokens, experts a token); its calls "
                f"of topk were for {choice.seen or 'nothing'}",
                where=block.name,
                next_step="sample with the model that is trained, or set trainer.router_replay = false",
            )

    return hook


class _ForcedChoice(TorchFunctionMode):
    """Answers the `topk` over the experts with given indices; every other call goes its way."""

    def __init__(self, routes: Tensor, experts: int) -> None:
        super().__init__()
        self._routes = routes
        self._experts = experts
        self.shape = tuple(routes.shape)
        self.answered = 0
        self.seen: list[tuple[int, ...]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in _TOPK:
            return result
        scores: Tensor = args[0] if args else kwargs["input"]
        self.seen.append((*scores.shape, result.indices.shape[-1]))
        if scores.shape != (len(self._routes), self._experts) or result.indices.shape != self._routes.shape:
            return result
        self.answered += 1
        indices = torch.where(self._routes == NO_ROUTE, result.indices, self._routes)
        return torch.return_types.topk((scores.gather(-1, indices), indices))
