"""Failures that only an engine has. Their codes are what crosses HTTP."""

from __future__ import annotations

from pydantic import ValidationError

from prl.types import EngineError, MalformedRequestError


class UnknownModelError(EngineError):
    """The request names a model that is not served here (HTTP 404)."""

    code = "unknown_model"


class WeightLoadError(EngineError):
    """A weights directory does not fit the served model (HTTP 400); the old weights keep serving."""

    code = "bad_weights"


class NotFiniteError(EngineError):
    """The model produced a value that is not finite (HTTP 500)."""

    code = "not_finite"


class EngineFailedError(EngineError):
    """The engine's own computation failed (HTTP 500)."""

    code = "engine_failed"


class InvalidFieldsError(MalformedRequestError):
    """Fields of a body are missing, unknown or out of range (HTTP 422); `fields` are (name, problem) pairs."""

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.fields: list[tuple[str, str]] = []

    @classmethod
    def of(cls, error: ValidationError, where: str) -> InvalidFieldsError:
        """Return the three-part error for what pydantic found."""
        found = error.errors(include_url=False)
        fields = [(".".join(map(str, item["loc"])) or "body", str(item["msg"])) for item in found]
        made = cls(
            "; ".join(f"{name}: {problem}" for name, problem in fields[:10]),
            where=where,
            next_step="correct these fields; the server's /openapi.json describes them",
        )
        made.fields = fields
        return made
