"""The routes through which an engine is given weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fastapi import APIRouter, Request, Response

from prl.client.http import LOAD, OFFER, RECEIVE
from prl.transfer import OfferAnswer, OfferBody, TransferBody
from prl.types import Seats

from .http import SMALL_BODY, described, json_response, read_body
from .schemas import ErrorAnswer, WeightsAnswer, WeightsBody

OFFER_BODY = 64 << 20  # a hundred bytes for each tensor; mixtures have tens of thousands
NOT_ARRIVED: dict[int | str, dict[str, Any]] = {
    409: {"model": ErrorAnswer, "description": "Weights did not arrive; those from before serve on."},
}


class WeightTaker(Protocol):
    """An engine's side of the routes. Whatever it raises, the weights from before serve on."""

    async def load(self, directory: str, version: int) -> int:
        """Load a safetensors directory; return the version that answers carry from now on."""
        ...

    async def offer(self, body: OfferBody) -> Seats:
        """Check that these tensors fit; return the processes that would receive them."""
        ...

    async def receive(self, body: TransferBody) -> int:
        """Receive the offered tensors and load them; return the version that answers carry from now on."""
        ...


def add_weight_routes(router: APIRouter, taker: Callable[[Request], WeightTaker]) -> None:
    """Register the routes; `taker` finds the engine's side of them, or raises `EngineUnavailableError`."""

    @router.post(LOAD, **described(WeightsBody, WeightsAnswer))
    async def weights(request: Request) -> Response:
        """Load a safetensors directory once running requests have ended."""
        body = await read_body(request, WeightsBody, SMALL_BODY)
        return _loaded(await taker(request).load(body.directory, body.version))

    @router.post(OFFER, **described(OfferBody, OfferAnswer))
    async def offer(request: Request) -> Response:
        """Check that tensors fit the served model, before a trainer sends them; say who would receive them."""
        body = await read_body(request, OfferBody, OFFER_BODY)
        return json_response(OfferAnswer.of(await taker(request).offer(body)).model_dump())

    @router.post(RECEIVE, **described(TransferBody, WeightsAnswer, NOT_ARRIVED))
    async def receive(request: Request) -> Response:
        """Receive the offered tensors from a trainer's process, and load them once running requests have ended."""
        body = await read_body(request, TransferBody, SMALL_BODY)
        return _loaded(await taker(request).receive(body))


def _loaded(version: int) -> Response:
    return json_response({"status": "ok", "weight_version": version})
