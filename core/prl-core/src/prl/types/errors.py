"""Errors in three parts: what happened, where it comes from, what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

Key = tuple[str | int, ...]
"""The path of a key in a config, such as `("environments", 0, "options", "low")`."""


class PrlError(Exception):
    """Say what failed, where the cause is, and the next step.

    `code` is a stable, machine-readable name that crosses process borders (HTTP bodies, metrics). `keys` are the config
    keys that the error is about, where it is about any: who read the config can then tell where each was set.
    """

    code = "error"

    def __init__(self, what: str, *, where: str = "", next_step: str = "", keys: Iterable[Key] = ()) -> None:
        self.what = what
        self.where = where
        self.next_step = next_step
        self.keys = tuple(keys)
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.next_step:
            lines.append(f"  next:  {self.next_step}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.where, self.next_step, self.keys))


def _rebuild(cls: type[PrlError], what: str, where: str, next_step: str, keys: tuple[Key, ...] = ()) -> PrlError:
    error = cls(what, where=where, next_step=next_step)
    error.keys = keys
    return error


@contextmanager
def about_key(*key: str | int) -> Iterator[None]:
    """Let an error of the block that names no key of the config be about this one."""
    try:
        yield
    except PrlError as error:
        error.keys = error.keys or (key,)
        raise


class ConfigError(PrlError):
    """A configuration value, key or combination is wrong."""

    code = "config"


class PluginError(PrlError):
    """A plugin is missing, broken, incompatible, or two offer the same name."""

    code = "plugin"


class TokenizerError(PrlError):
    """A tokenizer cannot be read, or lacks a token that a renderer needs."""

    code = "tokenizer"


class RenderError(PrlError):
    """A conversation cannot be rendered; `where` names the message index."""

    code = "render"


class MaskUnavailableError(RenderError):
    """Token ownership could not be proven, so no mask exists (never zeros)."""

    code = "mask_unavailable"


class EngineError(PrlError):
    """An engine refused a request or could not be reached."""

    code = "engine"


class EngineUnavailableError(EngineError):
    """No engine answers at the given address; it asked to be left alone for `retry_after` seconds."""

    code = "engine_unavailable"
    retry_after = 0.0


class EngineUnreachableError(EngineUnavailableError):
    """The connection failed: the engine may be gone, or be back as a new process with other weights."""

    code = "engine_unreachable"


class PromptTooLongError(EngineError):
    """The prompt does not fit the model's context; a typed outcome, not a failure of the rollout."""

    code = "prompt_too_long"


class MalformedRequestError(EngineError):
    """The request's fields are wrong (HTTP 422) or an id lies outside the vocabulary (HTTP 400)."""

    code = "malformed_request"


class MalformedResponseError(EngineError):
    """The engine's answer is inconsistent: counts differ, a value is not finite, ids are missing."""

    code = "malformed_response"


class RequestAbortedError(EngineError):
    """The request was aborted before it finished."""

    code = "aborted"


class WeightTransferError(EngineError):
    """Weights did not arrive whole over a process group; those from before go on serving."""

    code = "transfer_failed"


class AlignmentError(PrlError):
    """Streams that must have one entry per token do not; training on them would shift every later token."""

    code = "alignment"


def close_names(name: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'x'?` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else ""
