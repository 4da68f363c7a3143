"""`/v1/adapters`: LoRA adapters loaded, replaced and removed between requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from prl.serving.checkpoints import TOLD, Shapes
from prl.serving.errors import UnknownModelError
from prl_engine_vllm.errors import AdapterError

from .schemas import AdapterBody
from .vllm_api import adapter_request, error_message, unload_request
from .weights import WeightService

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
EXPERTS = ".experts"


class AdapterService:
    """Keeps vLLM's table of adapters; `models` is that table, `rank` the largest rank the server was started for."""

    def __init__(self, models: Any, weights: WeightService, *, rank: int | None, servers: int) -> None:
        self._models = models
        self._weights = weights
        self._rank = rank
        self._servers = servers

    @property
    def is_on(self) -> bool:
        """Whether the server was started with adapters."""
        return self._rank is not None

    async def load(self, body: AdapterBody) -> int:
        """Check an adapter, let requests end, load or replace it; return the version of later answers."""
        self._check_server()
        if self._models.is_base_model(body.name):
            raise self._error(f"{body.name!r} is the name of the base model", "choose another name")
        await asyncio.to_thread(lambda: check_adapter(body.directory, self._weights.expected(), self._rank or 0))
        async with self._weights.turn, self._weights.between_requests():
            answer = await self._models.load_lora_adapter(adapter_request(body.name, body.directory))
            if (message := error_message(answer)) is not None:
                raise self._error(f"vLLM refuses the adapter: {message}", "read the server's log")
            # vLLM keeps the flag beside the name, and then reads the files anew for every request that names it.
            self._models.lora_requests[body.name].load_inplace = False
            if body.version is not None:
                await self._weights.set_version(body.version)
        return await self._weights.version()

    async def remove(self, name: str) -> int:
        """Forget an adapter; requests that name it are refused from now on."""
        self._check_server()
        answer = await self._models.unload_lora_adapter(unload_request(name))
        if error_message(answer) is not None:
            raise UnknownModelError(
                f"there is no adapter {name!r}",
                where=f"adapters: {', '.join(map(repr, self._models.lora_requests)) or 'none'}",
                next_step="name one of these",
            )
        return await self._weights.version()

    def _check_server(self) -> None:
        if not self.is_on:
            raise self._error("this server was started without adapters", "start it with lora = true (--enable-lora)")
        if self._servers > 1:
            raise self._error(
                f"{self._servers} API server processes each keep their own adapters", "start the server with one"
            )

    @staticmethod
    def _error(what: str, next_step: str) -> AdapterError:
        return AdapterError(what, where="/v1/adapters", next_step=next_step)


def check_adapter(directory: str, model: Shapes | None, most_rank: int) -> None:
    """Raise `AdapterError` unless the directory holds an adapter whose every module the model has.

    vLLM itself ignores a module that it cannot place: an adapter of another model would load and do nothing.
    """
    path = Path(directory)
    try:
        is_whole = (path / CONFIG).is_file() and (path / TENSORS).is_file()
    except (OSError, ValueError) as error:
        raise _problem(f"the path cannot be read: {str(error)[:TOLD]}", directory) from error
    if not is_whole:
        raise _problem(f"it does not hold {CONFIG} and {TENSORS}", directory)
    _check_rank(path, most_rank)
    modules = _modules(path)
    if not modules:
        raise _problem("it adapts no module", directory)
    if model is None:
        return
    foreign = sorted(name for name in modules if EXPERTS not in name and f"{name}.weight" not in model)
    if foreign:
        raise _problem(
            f"{len(foreign)} of its {len(modules)} modules are not in the model, such as {foreign[0]!r}",
            directory,
        )


def _check_rank(path: Path, most: int) -> None:
    try:
        rank = json.loads((path / CONFIG).read_text(encoding="utf-8"))["r"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _problem(f"{CONFIG} is not an adapter's config ({error})", str(path)) from error
    if not isinstance(rank, int) or not 1 <= rank <= most:
        raise _problem(f"its rank is {rank}, the server was started for ranks up to {most}", str(path))


def _modules(path: Path) -> set[str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path / TENSORS), framework="pt") as tensors:
            names = list(tensors.keys())
    except (SafetensorError, OSError) as error:
        raise _problem(f"{TENSORS} cannot be read: {error}", str(path)) from error
    return {name.removeprefix(PREFIX).split(".lora_")[0] for name in names if ".lora_" in name}


def _problem(what: str, directory: str) -> AdapterError:
    return AdapterError(
        f"adapter not loaded: {what}",
        where=f"directory {directory!r}",
        next_step="publish an adapter of the served model (adapter_config.json, adapter_model.safetensors)",
    )
