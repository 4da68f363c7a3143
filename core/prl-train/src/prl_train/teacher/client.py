"""Ask an OpenAI-compatible server of someone else's: only what OpenAI's own API knows is sent."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from prl.client import HttpEngineClient, wire
from prl.types import ConfigError

from .config import TeacherRolloutsSection

PATH = "/chat/completions"


class TeacherClient(HttpEngineClient):
    """Sends chat bodies to `base_url + "/chat/completions"`, with retries that carry one idempotency key."""

    def __init__(self, section: TeacherRolloutsSection, environment: Mapping[str, str] | None = None) -> None:
        key = read_api_key(section, environment)
        super().__init__(
            section.base_url,
            timeout=section.request_seconds,
            retries=section.retries,
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
        )

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the server's answer; raise the `EngineError` family, which never names the key."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        raw = await self._send("POST", PATH, msgspec.json.encode(body), headers)
        return wire.decode_object(raw, f"teacher at {self.base_url}, {PATH}")


def read_api_key(section: TeacherRolloutsSection, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the key from the environment; raise `ConfigError` where the variable is not set or is no header value."""
    name = section.api_key_env
    if name is None:
        return None
    key = (os.environ if environment is None else environment).get(name, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"the environment variable {name} holds no API key",
            where="[teacher.rollouts] api_key_env",
            next_step=f"export {name}=..., in the environment of the processes that play rollouts",
        )
    return key
