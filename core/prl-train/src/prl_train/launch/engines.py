"""The engine of a run: one that lives as long as the run, or a pool of those that run already."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prl.client.pool import Discovery, DnsDiscovery, EnginePool, FixedAddresses, HttpConnect, PoolSettings
from prl.client.routes import find_route
from prl.contracts import EngineClient
from prl.plugin import create
from prl.types import EngineUnavailableError
from prl_train.config import EngineSection

POLL_SECONDS = 0.25


@asynccontextmanager
async def run_engine(section: EngineSection, model: str) -> AsyncIterator[EngineClient]:
    """Yield a client of the run's engine, or of its engines, once one is ready."""
    if section.is_embedded:
        engine = create("engine", section.kind, **{"model": model, **section.options})
        await engine.start()
        try:
            yield engine.client()
        finally:
            await engine.stop()
        return
    _allow_connections()
    pool = make_pool(section)
    try:
        await until_up(pool, section)
        yield pool
    finally:
        await pool.close()


def _allow_connections() -> None:
    """Raise the soft limit on open files to the hard one: each request in flight is a connection, 1024 are few."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def make_pool(section: EngineSection) -> EnginePool:
    """Return the pool of the engines that the section points to; raise `ConfigError` for addresses that are none."""
    settings = PoolSettings(
        data_parallel_ranks=section.data_parallel_ranks,
        max_concurrency=section.max_concurrency,
        patience=section.absent_seconds,
        health_interval=section.health_seconds,
    )
    connect = HttpConnect(
        timeout=section.request_seconds,
        route=find_route(section.route),
        ask_again=section.ask_again_seconds,
        health_timeout=2 * section.health_seconds,
    )
    return EnginePool(_discovery(section), settings, connect=connect)


def _discovery(section: EngineSection) -> Discovery:
    if section.dns:
        return DnsDiscovery(section.dns, interval=section.dns_seconds)
    return FixedAddresses(section.base_urls or [section.url or ""])


async def until_up(pool: EnginePool, section: EngineSection) -> None:
    """Wait until an engine is ready, or raise `EngineUnavailableError` that says what is wrong with each."""
    deadline = time.monotonic() + section.start_seconds
    while not await pool.health():
        if time.monotonic() > deadline:
            place = section.dns or ", ".join(section.base_urls) or section.url
            known = "".join(f"; {one.url}: {one.problem}" for one in pool.status())
            raise EngineUnavailableError(
                f"no engine was ready within {section.start_seconds:.0f} s",
                where=f"[engine], {place}{known}",
                next_step="start it with `prl serve`, correct its address in [engine], or raise engine.start_seconds",
            )
        await asyncio.sleep(POLL_SECONDS)


async def served_model(engine: EngineClient) -> str:
    """Return the name that requests use for the served model."""
    models = await engine.models()
    if not models:
        raise EngineUnavailableError(
            "the engine serves no model", where="GET /v1/models", next_step="give the engine a model and start it again"
        )
    return str(models[0]["id"])
