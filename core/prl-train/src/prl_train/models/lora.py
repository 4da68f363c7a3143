"""Low-rank adapters (peft): put them on a model, and read them back merged or alone, in the names that others know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from prl.types import ConfigError
from prl_train.distributed.sharding import whole

ADAPTER = "default"
_BASE = ".base_layer."
_PEFT_PREFIX = "base_model.model."


def add_adapters(
    model: nn.Module, *, rank: int, alpha: float, dropout: float, target_modules: Sequence[str], source: str
) -> None:
    """Put adapters on the linear layers whose names end in one of `target_modules` (none: all but the head).

    All other weights are frozen; an adapter begins as no change. Names inside the model stay, with `.base_layer` put
    in. `source` is the model's own name, for those who load the adapters. Raises `ConfigError` for a target that
    matches no layer, one that is not linear, or the head, and where peft is not installed.
    """
    peft = _peft()
    targets = sorted(_checked(model, target_modules) if target_modules else _all_linear(model))
    settings = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
        base_model_name_or_path=source,
    )
    peft.inject_adapter_in_model(settings, model, adapter_name=ADAPTER)


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ConfigError(
            "adapters need the package peft, which is not installed",
            where="[trainer.lora]",
            next_step='pip install "prl-train[lora]"',
        ) from error
    return peft


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _checked(model: nn.Module, targets: Sequence[str]) -> list[str]:
    head = _head(model)
    for target in targets:
        found = {name: module for name, module in model.named_modules() if _matches(name, target)}
        wrong = [name for name, module in found.items() if not isinstance(module, nn.Linear) or module is head]
        if found and not wrong:
            continue
        what = f"no module of the model is named {target!r}"
        if wrong:  # a head that is the embedding, too, could not be published with an adapter added
            what = f"{wrong[0]!r} is {'the head' if found[wrong[0]] is head else 'not a linear layer'}"
        raise ConfigError(
            f"{what}; adapters were asked for {', '.join(map(repr, targets))}",
            where="trainer.lora.target_modules",
            next_step=f"choose among {', '.join(sorted(_all_linear(model)))}",
        )
    return list(targets)


def _all_linear(model: nn.Module) -> set[str]:
    """Return the last parts of the names of all linear layers but the head."""
    head = _head(model)
    named = model.named_modules()
    return {name.rpartition(".")[2] for name, module in named if isinstance(module, nn.Linear) and module is not head}


def _head(model: nn.Module) -> nn.Module | None:
    head: nn.Module | None = getattr(model, "get_output_embeddings", lambda: None)()
    return head


def has_adapters(model: nn.Module) -> bool:
    """Whether `add_adapters` was called on the model."""
    return hasattr(model, "peft_config")


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers that carry adapters, by the name of their weight in the model without adapters."""
    if not has_adapters(model):
        return {}
    return {f"{name}.weight": module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def plain_name(name: str) -> str | None:
    """Return a tensor's name in the model without adapters, None for an adapter's own."""
    return None if ".lora_" in name else name.replace(_BASE, ".")


def merged(weight: Tensor, layer: Any) -> Tensor:
    """Return a layer's weight with its adapter added, whole and in float32 (a collective where weights are divided)."""
    down, up = whole(layer.lora_A[ADAPTER].weight), whole(layer.lora_B[ADAPTER].weight)
    delta = (up.float() @ down.float()) * layer.scaling[ADAPTER]
    added: Tensor = weight.float() + delta.to(weight.device)
    return added


def adapter_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the adapters' tensors in peft's names, still divided."""
    for name, tensor in model.state_dict().items():
        if ".lora_" in name:
            yield _PEFT_PREFIX + name.replace(f".{ADAPTER}.", "."), tensor


def save_adapter_config(model: Any, directory: Path) -> None:
    """Write adapter_config.json, in the form that every program that loads adapters reads."""
    model.peft_config[ADAPTER].save_pretrained(directory)
