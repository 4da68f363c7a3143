"""Where the values of a config were set, so that whoever finds a fault later can still tell."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from prl.plugin.options import build_model, field_names, names_at
from prl.types import Key, PrlError

from .layers import Assignment, assign, from_environment, from_pairs, read_toml, refuse_near_misses
from .lines import line_of

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Sources:
    """The layers of a config: a file with its data and text, then what variables and the command line set."""

    path: str | Path | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    assignments: tuple[Assignment, ...] = ()

    def load(self, model: type[M]) -> M:
        """Return the checked config; raise `ConfigError` that says where each wrong value was set."""
        data = deepcopy(dict(self.data))
        for one in self.assignments:
            assign(data, one, one.value)
        _keep_texts(model, data, self.assignments)
        with self.telling():
            return build_model(model, data, where="", section=())

    def places(self, key: Key) -> list[str]:
        """Return where a key was set: "file:line", an environment variable or the command line; a section, in several.

        What is set nowhere has the place that it would have in the file.
        """
        parts = tuple(map(str, key))
        for one in reversed(self.assignments):
            if parts[: len(one.path)] == one.path:
                return [one.where]
        within = [one.where for one in self.assignments if one.path[: len(parts)] == parts]
        if within and not _holds(self.data, key):
            return within
        line = line_of(self.text, key)
        return [f"{self.path}:{line}" if line else str(self.path or ""), *within]

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Add to an error of the block where the keys that it names were set."""
        try:
            yield
        except PrlError as error:
            places = dict.fromkeys(place for key in error.keys for place in self.places(key))
            error.where = ", ".join(filter(None, [error.where, *places]))
            error.keys = ()  # told
            raise


def read_sources(
    model: type[BaseModel],
    path: str | Path | None,
    overrides: Sequence[str] = (),
    env_prefix: str = "PRL_",
    *,
    environment: Mapping[str, str] | None = None,
) -> Sources:
    """Read the layers of a model's config; raise `ConfigError` for a file or a text that cannot be read."""
    data, text = read_toml(Path(path)) if path is not None else ({}, "")
    variables = os.environ if environment is None else environment
    refuse_near_misses(variables, env_prefix, {name: names_at(model, [name]) for name in field_names(model)})
    assignments = from_environment(variables, env_prefix, field_names(model))
    return Sources(path, data, text, (*assignments, *from_pairs(overrides)))


def _holds(data: Any, key: Key) -> bool:
    """Whether a file's data has a key or section."""
    for part in key:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _keep_texts(model: type[BaseModel], data: dict[str, Any], assignments: Sequence[Assignment]) -> None:
    """Give text fields the text as it was written: `run.name=123` names a run, it is no number."""
    if not assignments:
        return
    try:
        model.model_validate(data)
    except ValidationError as error:
        wrong = {tuple(map(str, one["loc"])) for one in error.errors() if one["type"] == "string_type"}
        for one in assignments:
            if one.path in wrong:
                assign(data, one, one.text)
