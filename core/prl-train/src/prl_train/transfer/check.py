"""What a configuration must fulfil for weights to go from process to process."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from prl.client.routes import PrlRoute
from prl.types import ConfigError
from prl_train.config import RLConfig


def check_transfer(config: RLConfig) -> None:
    """Raise `ConfigError` where engines could not receive what `weight_transfer = "broadcast"` sends."""
    if config.trainer.weight_transfer != "broadcast" or config.engine.is_embedded:
        return
    if config.engine.route != PrlRoute.path:
        raise ConfigError(
            f"engines behind {config.engine.route} cannot receive weights from a process",
            where='[trainer] weight_transfer = "broadcast"',
            next_step=f'serve them with prl\'s plugin and use engine.route = "{PrlRoute.path}"',
            keys=[("trainer", "weight_transfer"), ("engine", "route")],
        )
    host = config.trainer.transfer.host
    far = [name for name in _engine_hosts(config) if not _is_here(name)]
    if far and _is_here(host):
        raise ConfigError(
            f"engines on {far[0]!r} cannot reach the trainer at {host!r}, which means their own machine to them",
            where="trainer.transfer.host",
            next_step="give the address of the trainer's machine, as the engines see it",
            keys=[("trainer", "transfer", "host")],
        )


def _engine_hosts(config: RLConfig) -> list[str]:
    engine = config.engine
    if engine.dns:
        return [engine.dns.rpartition(":")[0]]
    return [urlsplit(url).hostname or "" for url in (engine.base_urls or [engine.url or ""])]


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
