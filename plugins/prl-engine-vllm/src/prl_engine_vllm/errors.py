"""Failures that only an engine has. Their codes are what crosses HTTP."""

from __future__ import annotations

from pydantic import ValidationError

from prl.types import EngineError, MalformedRequestError

FIELDS_TOLD = 10
"""A body with a hundred thousand wrong ids gets no answer of that size."""


class UnknownModelError(EngineError):
    """The request names a model or adapter that is not served here (HTTP 404)."""

    code = "unknown_model"


class WeightLoadError(EngineError):
    """A weights directory does not fit the served model (HTTP 400); the old weights keep serving."""

    code = "bad_weights"


class AdapterError(EngineError):
    """An adapter does not fit the served model, or the server was started without adapters (HTTP 400)."""

    code = "bad_adapter"


class WeightsUndefinedError(EngineError):
    """A load failed half way and the old weights could not be restored: nothing is served until a good load (503)."""

    code = "weights_undefined"


class NotFiniteError(EngineError):
    """The model produced a value that is not finite (HTTP 500)."""

    code = "not_finite"


class EngineFailedError(EngineError):
    """The engine's own computation failed (HTTP 500)."""

    code = "engine_failed"


class BodyTooLargeError(MalformedRequestError):
    """The body is larger than any request for this model can be (HTTP 413)."""


class InvalidFieldsError(MalformedRequestError):
    """Fields of a body are missing, unknown or out of range (HTTP 422); `fields` are (name, problem) pairs."""

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
