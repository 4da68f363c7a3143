"""Where the engines of a pool are: fixed, or what a DNS name resolves to at the moment."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from prl.client.http import check_address
from prl.types import ConfigError, EngineUnavailableError

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> IP addresses; raises OSError where the name does not resolve."""


class Discovery(Protocol):
    """Says where engines are. `interval` is how often to ask (seconds), None for once."""

    interval: float | None

    async def addresses(self) -> Sequence[str]:
        """Return base URLs; raise `EngineUnavailableError` where they cannot be found out at the moment."""
        ...


class FixedAddresses:
    """The base URLs of a configuration."""

    interval: float | None = None

    def __init__(self, base_urls: Sequence[str]) -> None:
        self._urls = [url.rstrip("/") for url in base_urls]
        if not self._urls or len(set(self._urls)) != len(self._urls):
            raise ConfigError(
                f"{list(base_urls)} holds no address, or one twice",
                where="base_urls of the engine pool",
                next_step="list each engine once, as http://host:port; ranks of one server share its address",
            )
        for url in self._urls:
            check_address(url)

    async def addresses(self) -> Sequence[str]:
        """Return the addresses."""
        return self._urls


class DnsDiscovery:
    """Every address that `name` ("host:port") resolves to, such as the pods of a headless service."""

    def __init__(
        self, name: str, *, interval: float = 10.0, scheme: str = "http", resolve: Resolve | None = None
    ) -> None:
        host, _, port = name.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"{name!r} is no name of engines", where="dns", next_step='give "host:port"')
        self.interval: float | None = interval
        self._host, self._port, self._scheme = host, int(port), scheme
        self._resolve = resolve or resolve_with_system

    async def addresses(self) -> Sequence[str]:
        """Resolve the name; an address of IPv6 is put in brackets."""
        try:
            found = await self._resolve(self._host, self._port)
        except OSError as error:
            raise EngineUnavailableError(
                f"{self._host!r} does not resolve: {error}",
                where="dns of the engine pool",
                next_step="check the name; engines that were found before go on serving",
            ) from error
        return [f"{self._scheme}://{f'[{one}]' if ':' in one else one}:{self._port}" for one in dict.fromkeys(found)]


async def resolve_with_system(host: str, port: int) -> Sequence[str]:
    """Ask the system's resolver, off the event loop."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})
