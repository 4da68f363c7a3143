"""`prl gateway`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from prl.types import ConfigError

from .inputs import read_options

if TYPE_CHECKING:
    from prl.contracts import EngineClient
    from prl.gateway import Gateway, GatewaySettings


def run(
    *,
    engine_url: list[str],
    model: str,
    renderer: str = "auto",
    option: Annotated[list[str] | None, Parameter(name=("--option", "-o"))] = None,
    served_model: str | None = None,
    route: str = "/v1/generate",
    host: str = "127.0.0.1",
    port: int = 8100,
    api_key_env: str = "PRL_GATEWAY_KEY",
    operator_key_env: str = "PRL_GATEWAY_OPERATOR_KEY",
    out: Path = Path("rollouts.jsonl"),
    idle_minutes: float = 60.0,
    keep_open: bool = False,
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    max_request_mb: int = 32,
    max_messages: int = 4096,
    max_sessions: int = 10_000,
) -> None:
    """Serve an OpenAI-compatible address that records exact tokens, until interrupted.

    Parameters
    ----------
    engine_url
        The engine, such as http://127.0.0.1:8000; may be given again for several engines of one model.
    model
        A directory with the model's tokenizer, or a hub id.
    renderer
        A renderer's name, or auto.
    option
        A renderer option as key=value; may be given again.
    served_model
        The model's name at the engine, which is also its name here; needed only where the engine serves several.
    route
        The engine's route for ids: /v1/generate, or /inference/v1/generate of a vLLM without prl.
    host
        The address to listen on.
    port
        The port to listen on; 0 takes a free one.
    api_key_env
        The environment variable with the clients' keys, separated by commas.
    operator_key_env
        The environment variable with the key of /v1/rollouts; where it is unset, that route is closed.
    out
        The JSONL file that rollouts are appended to when their session ends.
    idle_minutes
        After how long without a request a session ends.
    keep_open
        Do not end open sessions when the gateway is stopped: the next one with the same --out goes on with them.
    temperature
        The temperature of every request, whatever clients ask for.
    top_p
        The top_p of every request, whatever clients ask for.
    max_tokens
        The most tokens of a completion; clients may ask for less.
    max_request_mb
        The largest body, in MiB.
    max_messages
        The most messages of a request.
    max_sessions
        The most sessions that may be open.
    """
    from prl import create_renderer, load_tokenizer
    from prl.gateway import GatewaySettings

    forced = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    settings = GatewaySettings(
        api_keys=_keys(api_key_env),
        operator_key=os.environ.get(operator_key_env) or None,
        sampling={name: value for name, value in forced.items() if value is not None},
        max_request_bytes=max_request_mb << 20,
        max_messages=max_messages,
        max_sessions=max_sessions,
        idle_seconds=idle_minutes * 60,
        out=out,
    )
    chosen = create_renderer(load_tokenizer(model), renderer, **read_options(option or []))
    asyncio.run(_serve(engine_url, route, chosen, served_model, settings, host, port, keep_open))


async def _serve(
    urls: list[str],
    route: str,
    renderer: Any,
    served: str | None,
    settings: GatewaySettings,
    host: str,
    port: int,
    keep_open: bool,
) -> None:
    from prl.gateway import Gateway

    engine = connect(urls, route)
    try:
        gateway = Gateway(engine, renderer, model=served or await _only_model(engine, urls), settings=settings)
        url = await gateway.start(host, port)
        print(f"gateway: {gateway.model!r} at {url}, renderer {renderer.name}, rollouts to {settings.out}", flush=True)
        if gateway.restored:
            print(f"gateway: open sessions that go on: {gateway.restored}", flush=True)
        await _until_interrupted()
        await _close(gateway, keep_open)
    finally:
        await engine.close()


async def _until_interrupted() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


async def _close(gateway: Gateway, keep_open: bool) -> None:
    print(f"gateway: closing, {'keeping' if keep_open else 'writing'} open sessions", flush=True)
    await gateway.close(keep_open=keep_open)


def connect(urls: list[str], route: str) -> EngineClient:
    """Return a pool, also of one engine: its requests wait for an engine that is away, and go to one that is back."""
    from prl.client import EnginePool, FixedAddresses, find_route
    from prl.client.pool import HttpConnect

    return EnginePool(FixedAddresses(urls), connect=HttpConnect(route=find_route(route)))


async def _only_model(engine: EngineClient, urls: list[str]) -> str:
    if not await engine.health():
        print(
            f"gateway: waiting for {' or '.join(urls)} to name its model; with --served-model NAME it need not wait",
            file=sys.stderr,
            flush=True,
        )
    names = [str(card["id"]) for card in await engine.models()]
    if len(names) != 1:
        raise ConfigError(
            f"the engine serves {len(names)} models: {', '.join(names)}",
            where="prl gateway --engine-url",
            next_step="say which one with --served-model NAME",
        )
    return names[0]


def _keys(variable: str) -> tuple[str, ...]:
    keys = tuple(key.strip() for key in os.environ.get(variable, "").split(",") if key.strip())
    if not keys:
        raise ConfigError(
            f"the environment variable {variable} holds no key for clients",
            where="prl gateway --api-key-env",
            next_step=f'export {variable}="$(openssl rand -hex 24)"',
        )
    return keys
