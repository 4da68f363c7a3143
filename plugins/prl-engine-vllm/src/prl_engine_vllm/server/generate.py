"""`POST /v1/generate`: checked requests into vLLM's engine client, checked answers out."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from prl.serving.errors import EngineFailedError
from prl.serving.limits import unknown_model
from prl.serving.retries import RetryBook
from prl.types import EngineUnavailableError, MalformedRequestError

from .answers import REMEMBERED_TOKENS, generate_answer, total_tokens
from .limits import Limits
from .schemas import GenerateBody
from .state import WeightState
from .vllm_api import Vllm, error_message

SEEDS = 2**62
"""vLLM reads seed -1 as none, adds the choice's index to it, and sends it as a signed 64-bit integer."""
PASSED_ON = ("top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


class GenerateService:
    """Answers generate bodies with an engine client; `models` is vLLM's table of served models and adapters."""

    def __init__(self, engine: Any, models: Any, vllm: Vllm, limits: Limits, state: WeightState) -> None:
        self._engine = engine
        self._models = models
        self._vllm = vllm
        self._limits = limits
        self._state = state
        self._book = RetryBook(REMEMBERED_TOKENS, total_tokens)
        self.running = 0

    async def answer(self, body: GenerateBody, rank: int | None, headers: Mapping[str, str]) -> dict[str, Any]:
        """Return the JSON-ready answer; raise the `EngineError` family. Cancelling aborts the request."""
        self._state.check()
        adapter = await self.adapter(body.model)
        self._limits.check_prompt(body.prompt_token_ids, "prompt_token_ids")
        self._limits.check_ids(body.stop_token_ids, "stop_token_ids")
        self._limits.check_scoring(body.prompt_logprobs)
        return await self._book.answer(
            body.request_id,
            lambda: _fingerprint(body),
            lambda: asyncio.ensure_future(self._run(body, rank, adapter, headers)),
        )

    async def adapter(self, model: str) -> Any:
        """Return the adapter that `model` names, None for the base model; raise `UnknownModelError` for others."""
        if self._models.is_base_model(model):
            return None
        found = self._models.lora_requests.get(model)
        if found is None:
            # an adapter that another server process loaded, or that a resolver of vLLM's can find
            found = await self._models.resolve_lora(model)
        if error_message(found) is not None:
            bases = (base.name for base in self._models.base_model_paths)
            raise unknown_model(model, [*bases, *self._models.lora_requests])
        return found

    async def _run(
        self, body: GenerateBody, rank: int | None, adapter: Any, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        self.running += 1
        try:
            output = await self._final_output(body, rank, adapter, headers)
        except self._vllm.dies as error:
            raise EngineUnavailableError(
                f"vLLM's engine has died: {error}", where="POST /v1/generate", next_step="start the server again"
            ) from error
        except self._vllm.fails as error:
            raise EngineFailedError(
                f"vLLM failed: {error.__cause__ or error}", where="POST /v1/generate", next_step="read the server's log"
            ) from error
        except self._vllm.rejects as error:
            raise MalformedRequestError(
                f"vLLM refuses the request: {error}", where="POST /v1/generate", next_step="correct the request"
            ) from error
        finally:
            self.running -= 1
        return generate_answer(output, body)

    async def _final_output(
        self, body: GenerateBody, rank: int | None, adapter: Any, headers: Mapping[str, str]
    ) -> Any:
        outputs = self._engine.generate(
            self._vllm.prompt(body.prompt_token_ids, body.cache_salt),
            self._vllm.sampling(self._sampling_fields(body)),
            f"prl-{uuid.uuid4().hex}",
            lora_request=adapter,
            trace_headers=self._vllm.trace(headers),
            priority=body.priority,
            data_parallel_rank=rank,
        )
        last = None
        async with aclosing(outputs):
            async for output in outputs:
                last = output
        if last is None:
            raise EngineUnavailableError(
                "vLLM ended the request without an answer", where="POST /v1/generate", next_step="send it again"
            )
        return _repeated(last, body.n) if _is_greedy(body) else last

    def _sampling_fields(self, body: GenerateBody) -> dict[str, Any]:
        room = self._limits.context - len(body.prompt_token_ids)
        most = min(room, body.max_tokens or room)
        return {
            **{name: getattr(body, name) for name in PASSED_ON},
            "n": 1 if _is_greedy(body) else body.n,
            "temperature": body.temperature,
            "top_k": min(max(body.top_k, 0), self._limits.vocabulary),
            "seed": None if body.seed is None else body.seed % SEEDS,
            "stop_token_ids": body.stop_token_ids,
            "ignore_eos": True,  # the request names every id that ends it
            "max_tokens": most,
            "min_tokens": min(body.min_tokens, most),
            "logprobs": 0,  # the sampled token's own; one more would cost a top-k over the vocabulary
            "prompt_logprobs": 0 if body.prompt_logprobs else None,
        }


def _is_greedy(body: GenerateBody) -> bool:
    return body.temperature == 0


def _repeated(output: Any, n: int) -> Any:
    """Give each of `n` choices the one greedy completion: vLLM refuses to compute it more than once."""
    output.outputs = list(output.outputs) * n
    return output


def _fingerprint(body: GenerateBody) -> bytes:
    """Return what a retry must repeat; not the rank: a client may try again on another one."""
    return hashlib.sha256(body.model_dump_json().encode()).digest()
