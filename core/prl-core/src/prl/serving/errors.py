"""Failures that only an engine has, and the HTTP status of each. Their codes are what crosses HTTP."""

from __future__ import annotations

from pydantic import ValidationError

from prl.types import (
    EngineError,
    EngineUnavailableError,
    MalformedRequestError,
    PrlError,
    PromptTooLongError,
    RenderError,
    RequestAbortedError,
    WeightTransferError,
)

FIELDS_TOLD = 10
"""A body with a hundred thousand wrong ids gets no answer of that size."""

_STATUS: dict[type[PrlError], int] = {
    MalformedRequestError: 400,
    PromptTooLongError: 400,
    RenderError: 400,
    WeightTransferError: 409,
    RequestAbortedError: 503,
    EngineUnavailableError: 503,
}
"""Of the errors that clients raise as well. An engine's own error classes say theirs in an attribute `status`."""


def status_of(error: PrlError) -> int:
    """Return the HTTP status of an error: that of its nearest class which has one, 500 where none does."""
    for kind in type(error).__mro__:
        status = vars(kind).get("status") or _STATUS.get(kind)
        if isinstance(status, int):
            return status
    return 500


class ClientGoneError(PrlError):
    """The client closed its connection before the answer was ready."""

    code = "client_gone"
    status = 499


class UnknownModelError(EngineError):
    """The request names a model or adapter that is not served here."""

    code = "unknown_model"
    status = 404


class WeightLoadError(EngineError):
    """Weights do not fit the served model; the old ones keep serving."""

    code = "bad_weights"
    status = 400


class NotFiniteError(EngineError):
    """The model produced a value that is not finite."""

    code = "not_finite"


class EngineFailedError(EngineError):
    """The engine's own computation failed."""

    code = "engine_failed"


class BodyTooLargeError(MalformedRequestError):
    """The body is larger than any request for this model can be."""

    status = 413


class InvalidFieldsError(MalformedRequestError):
    """Fields of a body are missing, unknown or out of range; `fields` are (name, problem) pairs."""

    status = 422

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.fields: list[tuple[str, str]] = []

    @classmethod
    def of(cls, error: ValidationError, where: str) -> InvalidFieldsError:
        """Return the three-part error for what pydantic found."""
        found = error.errors(include_url=False, include_context=False, include_input=False)[:FIELDS_TOLD]
        return cls.with_fields([(".".join(map(str, item["loc"])) or "body", str(item["msg"])) for item in found], where)

    @classmethod
    def with_fields(cls, fields: list[tuple[str, str]], where: str) -> InvalidFieldsError:
        """Return the three-part error of these (name, problem) pairs."""
        made = cls(
            "; ".join(f"{name}: {problem}" for name, problem in fields),
            where=where,
            next_step="correct these fields; the server's /openapi.json describes them",
        )
        made.fields = fields
        return made
