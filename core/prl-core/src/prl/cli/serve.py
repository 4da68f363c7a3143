"""`prl serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from prl.plugin import EngineEntry, build_options, check_needs, configure_registry, get_registry, load_target
from prl.types import ConfigError

from .inputs import read_options
from .settings import settings_for


def run(
    *pairs: str,
    engine: str,
    config: Annotated[Path | None, Parameter(name=("--config", "-c"))] = None,
    **options: str,
) -> None:
    """Serve a model with an engine plugin, until interrupted.

    Parameters
    ----------
    pairs
        Engine options as key=value.
    engine
        The engine's name (prl plugins list --kind engine).
    config
        A TOML file whose [engine.options] are the engine's options.
    options
        Engine options as --key value, such as --model DIRECTORY --port 8000.
    """
    registry = configure_registry(settings_for(["-c", str(config)])) if config else get_registry()
    entry = registry.find(EngineEntry, engine)
    check_needs(entry)
    values = _from_file(config) if config else {}
    written = [f"{key.replace('-', '_')}={value}" for key, value in options.items()]
    values.update(read_options([*pairs, *written]))
    checked = build_options(entry, values, where=f"prl serve --engine {engine}")
    load_target(entry)(checked).serve()


def _from_file(path: Path) -> dict[str, Any]:
    from prl.config.layers import read_toml

    section = read_toml(path)[0].get("engine", {})
    options = section.get("options", {}) if isinstance(section, dict) else None
    if not isinstance(options, dict):
        raise ConfigError(
            "engine options are not a table", where=str(path), next_step="Write them under [engine.options]."
        )
    return dict(options)
