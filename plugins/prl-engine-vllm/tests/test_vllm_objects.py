"""What the front end does with vLLM's own objects: the prompts of its chat, and its table of adapters."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from prl.types import MalformedRequestError
from prl_engine_vllm.server import chat
from prl_engine_vllm.server.adapters import AdapterService
from prl_engine_vllm.server.schemas import AdapterBody


@dataclass(frozen=True)
class Place:
    """A placeholder range as vLLM has it."""

    offset: int
    length: int
    is_embed: Any = None


class ChatOfImages:
    """vLLM's chat object, as far as it renders: two images, the second behind an answer that renders as one token."""

    async def render_chat_request(self, request: Any) -> Any:
        images = [Place(1, 2), Place(6, 2)]
        return [], [{"prompt_token_ids": [1, 9, 9, 2, 7, 3, 9, 9, 4], "mm_placeholders": {"image": images}}]


async def test_images_lie_where_the_exact_ids_have_them() -> None:
    """An answer sampled as other tokens than it renders to shifts every later image: its features land on text.

    https://github.com/PrimeIntellect-ai/prime-rl/pull/1739 https://github.com/huggingface/trl/issues/6401
    """
    view = chat._with_ids_and_versions(ChatOfImages())
    ids = [1, 9, 9, 2, 5, 9, 6, 3, 9, 9, 4]  # the model sampled a placeholder of its own
    chat._exchange.set(chat._Exchange(ids))
    _, [prompt] = await view.render_chat_request(None)
    assert prompt == {"prompt_token_ids": ids, "mm_placeholders": {"image": [Place(1, 2), Place(8, 2)]}}
    chat._exchange.set(chat._Exchange([1, 9, 9, 2, 5, 9, 6, 3, 4]))
    with pytest.raises(MalformedRequestError, match="do not hold image 1 of the messages, which takes 2 tokens"):
        await view.render_chat_request(None)


class TableOfAdapters:
    """vLLM's table of adapters: it keeps the request that loaded one, and serves by it."""

    def __init__(self) -> None:
        self.lora_requests: dict[str, Any] = {}

    def is_base_model(self, name: str) -> bool:
        return False

    async def load_lora_adapter(self, request: Any) -> str:
        self.lora_requests[request.lora_name] = request
        return "loaded"


async def test_an_adapter_is_read_once_not_for_every_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were replaced or swept meanwhile would be sampled from, or end the engine.

    https://github.com/vllm-project/vllm/pull/36373 https://github.com/NovaSky-AI/SkyRL/pull/1606
    """

    def request(name: str, directory: str) -> Any:
        return SimpleNamespace(lora_name=name, lora_path=directory, load_inplace=True)

    monkeypatch.setattr("prl_engine_vllm.server.adapters.adapter_request", request)
    (tmp_path / "adapter_config.json").write_text('{"r": 4}')
    save_file({"base_model.model.a.lora_A.weight": np.zeros((4, 2))}, tmp_path / "adapter_model.safetensors")
    weights: Any = SimpleNamespace(turn=asyncio.Lock(), expected=lambda: None)
    weights.between_requests, weights.version = nullcontext, lambda: asyncio.sleep(0, 3)
    table = TableOfAdapters()
    service = AdapterService(table, weights, rank=8, servers=1)
    assert await service.load(AdapterBody(name="policy", directory=str(tmp_path))) == 3
    assert (table.lora_requests["policy"].lora_path, table.lora_requests["policy"].load_inplace) == (
        str(tmp_path),
        False,
    )
