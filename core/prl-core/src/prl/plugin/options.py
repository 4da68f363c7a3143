"""Build an options model from a plain mapping, with errors that name the key, the close one and the fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from prl.types import ConfigError, Key, close_names

M = TypeVar("M", bound=BaseModel)
_SHOWN = 120


class NoOptions(BaseModel):
    """The options of a plugin that has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def build_model(
    model: type[M], values: Mapping[str, Any], *, where: str, section: Sequence[str | int] | None = None
) -> M:
    """Validate values; raise `ConfigError` that tells every fault.

    `section` is the place of the values in a config: the error then names the keys there, for who read the config.
    """
    unknown = sorted(set(values) - set(field_names(model))) if model.model_config.get("extra") == "ignore" else []
    unknown = unknown or (sorted(set(values) - set(field_names(model))) if "extra" not in model.model_config else [])
    if unknown:  # a model that would drop unknown keys silently is held to the same rule as one that forbids them
        faults = [_unknown_key(model, (key,)) for key in unknown]
        paths: list[Key] = [(key,) for key in unknown]
    else:
        try:
            return model.model_validate(dict(values))
        except ValidationError as cause:
            errors = cause.errors(include_url=False, include_context=False)
            faults = [_fault(model, error) for error in errors]
            paths = [tuple(error["loc"]) for error in errors]
    raise ConfigError(
        "; ".join(what for what, _ in faults),
        where=where,
        next_step=" ".join(dict.fromkeys(step for _, step in faults if step)),
        keys=[] if section is None else [(*section, *path) for path in paths],
    )


def field_names(model: type[BaseModel]) -> list[str]:
    """Return the keys a model takes: field names, or aliases where it has them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _fault(model: type[BaseModel], error: Any) -> tuple[str, str]:
    path: Key = tuple(error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown_key(model, path)
    key = spelled(path)
    if error["type"] == "missing":
        return f"key {key!r} is missing", f"Set {key}."
    message = error["msg"].removeprefix("Value error, ")  # a validator's own words need no such title
    message = message[:1].lower() + message[1:]
    if not path:
        return message, "Correct the values together."
    given = repr(error["input"])
    shown = given if len(given) <= _SHOWN else f"{given[: _SHOWN - 3]}..."  # it may be a whole section
    return f"key {key!r}: {message}, and is {shown}", f"Correct {key}."


def _unknown_key(model: type[BaseModel], path: Key) -> tuple[str, str]:
    names = names_at(model, path[:-1])
    known = f"Keys{' of ' + spelled(path[:-1]) if path[:-1] else ''}: {', '.join(names) or 'none'}."
    return f"unknown key {spelled(path)!r}", f"{close_names(str(path[-1]), names)} {known}".strip()


def names_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the keys allowed at a path; all candidates where it passes a union."""
    current: list[type[BaseModel]] = [model]
    for part in path:
        fields = [one.model_fields[part] for one in current if isinstance(part, str) and part in one.model_fields]
        if fields:
            current = [found for field in fields for found in _models_in(field.annotation)]
    return [name for one in current for name in field_names(one)]


def _models_in(annotation: Any) -> Iterable[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)


def spelled(path: Sequence[str | int]) -> str:
    """Return a key path as one writes it: `trainer.lr`, `environments[0].weight`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
