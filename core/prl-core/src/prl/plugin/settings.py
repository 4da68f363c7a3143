"""Which plugins may load, which must, and which of two providers is meant."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from prl.types import ConfigError

from .naming import same_name, split_names

ALLOW_VARIABLE = "PRL_PLUGINS"
DISABLE_VARIABLE = "PRL_DISABLE_PLUGINS"
STRICT_VARIABLE = "PRL_STRICT_PLUGINS"

_ON = ("1", "true", "yes", "on")
_OFF = ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSettings:
    """What the environment and the config say about plugins.

    Names are plugin names or distribution names. `allow` is None where every installed plugin may load; an empty
    `allow` permits core alone. `prefer` maps "kind:name" to a plugin.
    """

    allow: tuple[str, ...] | None = None
    disable: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    prefer: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False

    def __post_init__(self) -> None:
        prefer = {_one_spelling(key): plugin for key, plugin in self.prefer.items()}
        object.__setattr__(self, "prefer", prefer)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> PluginSettings:
        """Read `PRL_PLUGINS`, `PRL_DISABLE_PLUGINS` and `PRL_STRICT_PLUGINS`."""
        values = os.environ if environment is None else environment
        allow = values.get(ALLOW_VARIABLE)
        return cls(
            allow=None if allow is None else split_names(allow),
            disable=split_names(values.get(DISABLE_VARIABLE, "")),
            strict=_switch(STRICT_VARIABLE, values.get(STRICT_VARIABLE, "")),
        )

    def with_config(
        self,
        *,
        disable: Iterable[str] = (),
        require: Iterable[str] = (),
        prefer: Mapping[str, str] | None = None,
        strict: bool = False,
    ) -> PluginSettings:
        """Add what a config's `[plugins]` section says; the environment's own settings stay."""
        return replace(
            self,
            disable=tuple(dict.fromkeys((*self.disable, *disable))),
            require=tuple(dict.fromkeys((*self.require, *require))),
            prefer={**self.prefer, **(prefer or {})},
            strict=self.strict or strict,
        )


def _one_spelling(key: str) -> str:
    """Return "kind:name" with the kind as records have it: `tool-parser` is `tool_parser`, here as everywhere."""
    kind, separator, name = key.partition(":")
    return f"{kind.replace('-', '_')}{separator}{name}" if separator else key


def names_any(names: Iterable[str], *candidates: str) -> bool:
    """Whether one of `names` is one of the candidates (a plugin's name and its distribution's)."""
    return any(same_name(name, candidate) for name in names for candidate in candidates)


def _switch(variable: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in (*_ON, *_OFF):
        raise ConfigError(
            f"{text!r} is neither on nor off", where=f"environment variable {variable}", next_step="Use 1 or 0."
        )
    return word in _ON
