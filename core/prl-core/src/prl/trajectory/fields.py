"""Read fields of foreign JSON; each fault names the field, what it is and what it should be."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from prl.types import ConfigError, Message, ToolSpec

_SHOWN = 60


def wrong(field: str, value: object, wanted: str) -> ConfigError:
    """Return the error for a field that is not what it should be."""
    text = repr(value)
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return ConfigError(f"{field} is {shown}", where=field, next_step=f"Write {wanted}.")


def first_of(data: Mapping[str, Any], *keys: str) -> Any:
    """Return the first of several spellings of a field that is there and not null, else None."""
    return next((data[key] for key in keys if data.get(key) is not None), None)


def objects(value: Any, field: str) -> list[dict[str, Any]]:
    """Return an array of objects."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise wrong(field, value, "an array of objects")
    return value


def ids(value: Any, field: str) -> list[int] | None:
    """Return token ids, or None where the field is absent."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise wrong(field, value, "an array of token ids")
    for position, item in enumerate(value):
        if type(item) is not int or item < 0:
            raise wrong(f"{field}[{position}]", item, "a token id: an integer that is not negative")
    return value


def logprobs(value: Any, field: str, count: int) -> list[float] | None:
    """Return one number per sampled token from an array, or from the chat route's {"content": [...]}."""
    if value is None:
        return None
    if isinstance(value, dict):
        value = [entry.get("logprob") for entry in objects(value.get("content") or [], f"{field}.content")]
    if not isinstance(value, list):
        raise wrong(field, value, "an array of numbers")
    for position, item in enumerate(value):
        if not is_number(item) or math.isnan(item):
            raise wrong(f"{field}[{position}]", item, "a log-probability: a number")
    if len(value) != count:
        raise ConfigError(
            f"{field} has {len(value)} entries for {count} sampled tokens",
            where=field,
            next_step="Write one log-probability per sampled token, or leave the field out.",
        )
    return [float(item) for item in value]


def is_number(value: Any) -> bool:
    """Whether a value is a number that floating point can hold."""
    return isinstance(value, float) or (type(value) is int and abs(value) <= sys.float_info.max)


def messages(value: Any, field: str) -> tuple[Message, ...] | None:
    """Return chat messages, or None where the field is absent."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise wrong(field, value, 'an array of messages: [{"role": ..., "content": ...}, ...]')
    return tuple([message(item, f"{field}[{position}]") for position, item in enumerate(value)])


def message(value: Any, field: str) -> Message:
    """Return one chat message."""
    if not isinstance(value, dict):
        raise wrong(field, value, 'a message: {"role": ..., "content": ...}')
    if not isinstance(value.get("role"), str):
        raise wrong(f"{field}.role", value.get("role"), "the message's role: system, user, assistant or tool")
    content = value.get("content")
    if content is not None and not isinstance(content, str | list):
        raise wrong(f"{field}.content", content, "a text, null, or an array of parts")
    if not value.get("tool_calls"):
        return cast(Message, value)
    return cast(Message, {**value, "tool_calls": _calls(value["tool_calls"], f"{field}.tool_calls")})


def _calls(value: Any, field: str) -> list[dict[str, Any]]:
    """Return calls in OpenAI form; templates' own flat form {"name", "arguments"} is brought to it."""
    found = []
    for number, call in enumerate(objects(value, field)):
        function = call.get("function") or {key: call[key] for key in ("name", "arguments") if key in call}
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            form = '{"function": {"name": ..., "arguments": ...}}'
            raise wrong(f"{field}[{number}]", call, f"a call: {form}")
        arguments = function.get("arguments")
        known = {key: one for key, one in call.items() if key not in ("name", "arguments")}
        found.append({**known, "function": {**function, "arguments": {} if arguments in (None, "") else arguments}})
    return found


def tools(value: Any, field: str) -> tuple[ToolSpec, ...] | None:
    """Return tool declarations, or None where there are none."""
    return tuple(objects(value, field)) if value else None


def plain(data: Mapping[str, Any], skipped: Sequence[str]) -> dict[str, Any]:
    """Return the values that people read: texts, numbers and flags, without those that are read elsewhere."""
    return {
        key: value for key, value in data.items() if key not in skipped and isinstance(value, str | int | float | bool)
    }
