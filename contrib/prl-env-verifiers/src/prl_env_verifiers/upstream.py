"""Where verifiers' interception servers send a rollout's requests: to the rollout's own endpoint, under its own key.

verifiers keeps a client for each distinct client config for as long as it serves, and reads keys from variables of the
process. A config for each rollout would leave a pool of connections behind for each, and the keys to all that run here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import Field, SecretStr
from verifiers.v1.clients import EvalClient, EvalClientConfig
from verifiers.v1.interception import Interception, Slot
from verifiers.v1.session import RolloutSession

from prl.contracts import AgentEndpoint


class EndpointConfig(EvalClientConfig):  # type: ignore[misc]
    """A rollout's endpoint as verifiers' config; its key is in no dump, so all rollouts of a gateway are one config."""

    api_key_var: str = "PRL_UNSET"  # verifiers' default would send a key of its own service
    rollout_key: SecretStr = Field(exclude=True)

    @classmethod
    def of(cls, endpoint: AgentEndpoint) -> EndpointConfig:
        """Return the config of an endpoint."""
        return cls(base_url=endpoint.base_url, rollout_key=SecretStr(endpoint.api_key))


class EndpointClient(EvalClient):  # type: ignore[misc]
    """Relays requests as they are, under one rollout's key, over the connections of the server that it is played on."""

    def __init__(self, config: EndpointConfig, shared: EvalClient) -> None:
        # Not the base's, which opens connections of its own.
        self.base_url = config.base_url
        self.api_key = config.rollout_key.get_secret_value()
        self.headers: dict[str, str] = {}
        self.client = shared.client

    async def close(self) -> None:
        """Leave the connections open: they are the server's."""


class EndpointInterception(Interception):  # type: ignore[misc]
    """The slots of another interception; sessions that ask prl's model get a client of their own key."""

    def __init__(self, inner: Interception) -> None:
        super().__init__()
        self._inner = inner

    async def start(self) -> None:
        """Start nothing: the inner one is its owner's."""

    @asynccontextmanager
    async def acquire(self, session: RolloutSession) -> AsyncIterator[Slot]:
        """Yield a slot of the inner interception."""
        async with self._inner.acquire(session) as slot:
            if isinstance(session.ctx.client, EndpointConfig):  # an agent with a client of its own keeps that
                session.client = EndpointClient(session.ctx.client, session.client)
            yield slot
