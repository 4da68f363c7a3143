"""One rollout of an agent: a gateway session on one side, the agent's own program on the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from prl.contracts import AgentEndpoint, AgentEnvironment, EngineClient, Example, Renderer
from prl.types import SamplingParams
from prl_train.config import GatewaySection
from prl_train.orchestrator.answers import check_agent_result
from prl_train.orchestrator.play import LiveRollout

if TYPE_CHECKING:
    from prl.gateway import Gateway

NO_LIMIT = 1_000_000


class GatewayHost:
    """The worker's gateway: started for the first agent, ended with the worker."""

    def __init__(self, engine: EngineClient, renderer: Renderer, model: str, section: GatewaySection) -> None:
        self.model = model
        self.section = section
        self._engine = engine
        self._renderer = renderer
        self._gateway: Gateway | None = None
        self._base_url = ""
        self._starting = asyncio.Lock()

    async def address(self) -> tuple[Gateway, str]:
        """Return the gateway and its base URL; start it on the first call."""
        from prl.gateway import Gateway, GatewaySettings  # an HTTP server, which only agents need

        async with self._starting:
            if self._gateway is None:
                settings = GatewaySettings(max_sessions=NO_LIMIT)  # the run's own concurrency is the limit
                gateway = Gateway(self._engine, self._renderer, model=self.model, settings=settings)
                self._base_url = self._told(await gateway.start(self.section.host, self.section.port))
                self._gateway = gateway
        return self._gateway, self._base_url

    def _told(self, base_url: str) -> str:
        """Return the base URL as agents see it."""
        if self.section.told_host is None:
            return base_url
        parts = urlsplit(base_url)
        return parts._replace(netloc=f"{self.section.told_host}:{parts.port}").geturl()

    async def close(self) -> None:
        """End the gateway, where it was started."""
        if self._gateway is not None:
            await self._gateway.close()
            self._gateway = None


class AgentPlayer:
    """Plays rollouts of agents, each with an API key of its own."""

    def __init__(self, host: GatewayHost, sampling: SamplingParams) -> None:
        self.host = host
        self.sampling = sampling

    async def play(self, live: LiveRollout, environment: AgentEnvironment, example: Example, cache_salt: str) -> None:
        """Fill `live` with what the agent asked under its key; turns are kept also where the agent fails."""
        gateway, base_url = await self.host.address()
        session = gateway.open_session(sampling=self.sampling, seed=live.seed, cache_salt=cache_salt)
        endpoint = AgentEndpoint(base_url=base_url, api_key=session.api_key, model=self.host.model)
        try:
            result = check_agent_result(await environment.run(example, endpoint), live.where)
            live.reward, live.output = result.reward, result.output
            live.metrics.update(result.metrics)
            live.stop_reason = "done"
        finally:
            live.turns = list(await session.close())
            live.messages, live.tools = list(session.messages), tuple(session.tools or ())
            live.is_truncated = any(turn.finish_reason == "length" for turn in live.turns)
