"""Refusals, in the shape that OpenAI clients read, with statuses that make their retries do the right thing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prl.types import PrlError


@dataclass(frozen=True, slots=True)
class Refusal:
    """An HTTP answer that is not 200."""

    status: int
    message: str
    code: str
    kind: str = "invalid_request_error"
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class GatewayFault(PrlError):
    """A request that the gateway refuses; `param` names the field."""

    def __init__(
        self, what: str, *, status: int = 400, fault: str = "invalid_request", param: str | None = None, next_step: str
    ) -> None:
        super().__init__(what, where=param or "", next_step=next_step)
        self.status = status
        self.fault = fault
        self.param = param

    def refusal(self) -> Refusal:
        """Return the answer to the client."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return Refusal(self.status, _message(self), self.fault, kind, self.param, _retry_headers(self.status))


@dataclass(frozen=True, slots=True)
class _Rule:
    status: int
    code: str
    kind: str = "invalid_request_error"
    param: str | None = None


_RULES = {
    "render": _Rule(400, "invalid_messages", param="messages"),
    "tokenizer": _Rule(400, "invalid_messages", param="messages"),
    "prompt_too_long": _Rule(400, "context_length_exceeded", param="messages"),
    "malformed_request": _Rule(400, "engine_refused"),
    "config": _Rule(500, "gateway_error", "server_error"),
    "engine_unavailable": _Rule(503, "engine_unavailable", "server_error"),
    "engine_unreachable": _Rule(503, "engine_unavailable", "server_error"),
    "aborted": _Rule(503, "engine_unavailable", "server_error"),
}
"""By `PrlError.code`. What is missing here is the engine's fault, or ours: 502, which clients try again."""
_OTHER = _Rule(502, "engine_error", "server_error")


def refusal_of(error: PrlError) -> Refusal:
    """Return the answer for any error of a request."""
    if isinstance(error, GatewayFault):
        return error.refusal()
    rule = _RULES.get(error.code, _OTHER)
    return Refusal(rule.status, _message(error), rule.code, rule.kind, rule.param, _retry_headers(rule.status))


def _retry_headers(status: int) -> dict[str, str]:
    """Return what tells clients whether and when to try again."""
    if status == 503:
        return {"Retry-After": "2"}
    return {"x-should-retry": "false"} if status < 500 and status not in (408, 429) else {}


def _message(error: PrlError) -> str:
    return f"{error.what}. Next: {error.next_step}" if error.next_step else error.what


def unauthorized() -> GatewayFault:
    """Return the refusal of a missing, wrong or ended key; it never repeats the key."""
    return GatewayFault(
        "the API key is missing, wrong, or its session has ended",
        status=401,
        fault="invalid_api_key",
        next_step="send `Authorization: Bearer KEY` with a key of this gateway",
    )


def restarting() -> GatewayFault:
    """Return the refusal of a request that the next gateway on the same output can answer."""
    return GatewayFault(
        "the gateway is being restarted", status=503, fault="gateway_restarting", next_step="try again in a moment"
    )


def session_closed() -> GatewayFault:
    """Return the refusal of a request whose session ended under it; not to be tried again."""
    return GatewayFault(
        "the session was closed while the request ran",
        status=403,
        fault="session_closed",
        next_step="open a new session",
    )
