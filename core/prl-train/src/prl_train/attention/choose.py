"""Choose a kernel: the one that is named, or for "auto" the best first-party one that serves the model here."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from prl.plugin import AttentionEntry, get_registry, is_first_party, load_target, missing_needs
from prl.plugin.machine import Machine, misfits, obstacle
from prl.types import ConfigError, PluginError

from . import AUTO
from .bound import BoundKernel, bind
from .model_needs import ModelNeeds, model_needs


def resolve_kernel(name: str, *, device: str, dtype: str, model: Any = None, training: bool = True) -> BoundKernel:
    """Find a kernel by name, or the best one for "auto"; raise `ConfigError` where it does not serve what is asked.

    `model` is the transformers model whose heads, windows and sinks must be served; without one only device and dtype
    are looked at. A third party's kernel must be named: `auto` never takes it.
    """
    wanted = model_needs(model) if model is not None else ModelNeeds()
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        wanted = replace(wanted, features=(*wanted.features, "deterministic"))
    asked: dict[str, Any] = {"device": device, "dtype": dtype, "head_size": wanted.head_size, "training": training}
    if name == AUTO:
        return _best(wanted.features, asked)
    record = get_registry().find(AttentionEntry, name)
    found = misfits(record, features=wanted.features, **asked)
    if found:
        raise ConfigError(
            f"the attention kernel {name!r} {'; it '.join(found)}",
            where=f"attention = {name!r}",
            next_step="choose another kernel: `prl plugins list --kind attention-kernel`",
        )
    return bind(name, load_target(record)(), record.features)


def this_machine() -> Machine:
    """Return the devices that torch finds in this process."""
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    return Machine(
        devices=("cpu", "cuda") if cuda else ("cpu",),
        capabilities=tuple(torch.cuda.get_device_capability(index) for index in cuda),
    )


def _best(features: Collection[str], asked: dict[str, Any]) -> BoundKernel:
    """Bind the first-party kernel of the highest priority that serves; one that cannot be loaded is passed over."""
    registry = get_registry()
    records = registry.all(AttentionEntry)
    own = [one for one in records if is_first_party(registry.provider(one).dist, one.kind, one.name)]
    machine, reasons = this_machine(), []
    for record in sorted(own, key=lambda one: -one.priority):
        found = misfits(record, features=features, **asked)
        why = "; ".join(found) or obstacle(record, machine) or obstacle(record, machine, missing=missing_needs(record))
        if not why:
            try:
                return bind(record.name, load_target(record)(), record.features)
            except (PluginError, ConfigError) as error:
                why = error.what
                warnings.warn(f"attention = 'auto' passes over {record.name!r}: {error}", stacklevel=3)
        reasons.append(f"{record.name}: {why}")
    raise ConfigError(
        f"no first-party attention kernel serves the model here ({' | '.join(reasons)})",
        where='attention = "auto"',
        next_step="install one that does, or name a third party's: `prl plugins list --kind attention-kernel`",
    )
