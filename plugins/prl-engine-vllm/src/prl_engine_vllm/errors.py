"""Failures that only vLLM has. Their codes are what crosses HTTP, under the status that each class names."""

from __future__ import annotations

from prl.types import EngineError


class AdapterError(EngineError):
    """An adapter does not fit the served model, or the server was started without adapters."""

    code = "bad_adapter"
    status = 400


class WeightsUndefinedError(EngineError):
    """A load failed half way and the old weights could not be restored: nothing is served until a good load."""

    code = "weights_undefined"
    status = 503
