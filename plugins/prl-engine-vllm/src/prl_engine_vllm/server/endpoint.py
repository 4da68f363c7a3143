"""The entry point `vllm.endpoint_plugins`: vLLM calls it while it builds its API server."""

from __future__ import annotations

import importlib
import json
import os
import signal
import threading
from argparse import Namespace
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from prl_engine_vllm.checkpoint import served_directory
from prl_engine_vllm.sockets import remove_folder

from .adapters import AdapterService
from .chat import ChatService
from .generate import GenerateService
from .limits import Limits
from .routes import Services, attach
from .schemas import InfoAnswer
from .state import WeightState
from .vllm_api import InstalledVllm, chat_request_class
from .weights import WeightService

INSTANCE = "PRL_VLLM_INSTANCE"
"""Environment variable with a token of whoever started this server: `GET /v1/engine` repeats it, and the server ends
when its standard input does, so that it never outlives a launcher that was killed."""


class EndpointPlugin:
    """Adds prl's routes to a server that generates."""

    name = "prl"
    required_tasks: tuple[str, ...] | None = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Register the routes."""
        attach(app, _chat_schema(chat_request_class()))

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Make the services of the routes from vLLM's own state."""
        state.prl = make_services(engine_client, state, args)
        if token := os.environ.get(INSTANCE):
            threading.Thread(target=_end_with_standard_input, args=(token,), daemon=True).start()


def make_services(engine: Any, state: Any, args: Namespace) -> Services:
    """Return the services over an engine client and vLLM's app state."""
    config = engine.vllm_config
    model = config.model_config
    vllm = InstalledVllm()
    ranks = int(config.parallel_config.data_parallel_size)
    limits = Limits(
        vocabulary=int(model.get_vocab_size()),
        context=int(model.max_model_len),
        ranks=ranks,
        scores_prompts=config.lora_config is None or config.device_config.device_type != "cpu",
    )
    weight_state = WeightState()
    # Where the checkpoint was at the start: vLLM's own config may be pointed elsewhere later.
    source, load_format = str(model.model), str(config.load_config.load_format)
    weights = WeightService(
        engine,
        weight_state,
        lambda: served_directory(source, load_format),
        tied=bool(getattr(model.hf_text_config, "tie_word_embeddings", False)),
        copies=ranks,
    )
    rank = config.lora_config.max_lora_rank if config.lora_config is not None else None
    servers = int(getattr(args, "api_server_count", None) or 1)
    models = state.openai_serving_models
    return Services(
        engine=engine,
        models=models,
        limits=limits,
        state=weight_state,
        generate=GenerateService(engine, models, vllm, limits, weight_state),
        chat=ChatService(getattr(state, "openai_serving_chat", None), chat_request_class(), vllm, limits, weight_state),
        weights=weights,
        adapters=AdapterService(models, weights, rank=rank, servers=servers),
        info=InfoAnswer(
            engine="vllm",
            plugin_version=version("prl-engine-vllm"),
            vllm_version=str(importlib.import_module("vllm").__version__),
            logprobs_mode=str(model.logprobs_mode),
            lora=rank is not None,
            model=models.base_model_paths[0].name,
            instance=os.environ.get(INSTANCE) or None,
        ),
    )


def _chat_schema(request_class: Any) -> dict[str, Any]:
    """Return the schema of vLLM's chat body; fields of its own types are named only: references would point nowhere."""
    fields: dict[str, Any] = {}
    for name, field in request_class.model_json_schema()["properties"].items():
        is_plain = "$ref" not in json.dumps(field)
        fields[name] = field if is_plain else {"description": field.get("description", f"As in vLLM: {name}.")}
    fields["messages"] = {"type": "array", "minItems": 1, "items": {"type": "object"}}
    return {"type": "object", "title": "ChatBody", "properties": fields, "required": ["messages"]}


def _end_with_standard_input(token: str) -> None:
    while os.read(0, 1):  # not sys.stdin: its lock, held by a thread, breaks the interpreter's end
        pass
    remove_folder(token)
    os.kill(os.getpid(), signal.SIGTERM)
