"""From options to an env of verifiers, with errors that say what there is."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from verifiers.v1 import tasksets
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.utils.loaders import env_config_type, load_environment

from prl.types import ConfigError

from .options import VerifiersOptions

SUBPROCESS = {"type": "subprocess"}
WHERE = "options of environment 'verifiers'"


def make_env(options: VerifiersOptions) -> tuple[Any, str]:
    """Return verifiers' env and the name of its agent that plays with prl's model; raise `ConfigError`."""
    taskset = str(options.taskset["id"])
    with foreign(f"taskset {taskset!r} cannot be used", f"{WHERE}: taskset"):
        _import(taskset)
    with foreign("verifiers refuses the environment", WHERE):
        config_type = env_config_type(taskset, str(options.env.get("id", "")))
        agents = agents_of(config_type)
        agent = _ours(agents, options.env)
        config = config_type.model_validate(_block(options, agents, agent))
        _check_retries(config, agent)
        return load_environment(config), agent


@contextlib.contextmanager
def foreign(what: str, where: str) -> Iterator[None]:
    """Tell whatever the code of verifiers and of tasksets raises as a `ConfigError`, with its cause."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{what}: {type(error).__name__}: {error}",
            where=where,
            next_step="correct the options, or repair the taskset; its own error is the cause of this one",
        ) from error


def _import(taskset: str) -> None:
    """Import a taskset; say what can be imported where it is not there, and what it lacks where it is."""
    from verifiers.v1.utils.loaders import taskset_class

    try:
        taskset_class(taskset)
    except ModuleNotFoundError as error:
        module = _module(taskset)
        missing = getattr(error.__cause__, "name", None) or error.name
        if missing not in (None, module, f"{tasksets.__name__}.{module}"):
            raise ConfigError(
                f"taskset {taskset!r} needs {missing}, which is not installed",
                where=f"{WHERE}: taskset",
                next_step="install what the taskset requires",
            ) from error
        raise ConfigError(
            f"there is no taskset {taskset!r}: no module {module!r} can be imported",
            where=f"{WHERE}: taskset",
            next_step=f"install its package, or put its module's folder on PYTHONPATH; here are: {_importable()}",
        ) from error


def _module(taskset: str) -> str:
    """Return the module that verifiers looks for."""
    return short_name(taskset).replace("-", "_").lower()


def short_name(taskset: str) -> str:
    """Return a taskset's name without the owner and the version that its id may have."""
    return taskset.rsplit("/", 1)[-1].split("@", 1)[0]


def _importable() -> str:
    """Return the tasksets that come with verifiers, and the distributions that are built on it."""
    bundled = sorted(module.name for module in pkgutil.iter_modules(tasksets.__path__))
    built = {dist.metadata["Name"] for dist in distributions() if "verifiers" in _required(dist.requires or [])}
    return ", ".join([*bundled, *sorted(built - {"prl-env-verifiers"})])


def _required(requirements: list[str]) -> set[str]:
    names = set()
    for text in requirements:
        with contextlib.suppress(InvalidRequirement):
            names.add(Requirement(text).name)
    return names


def agents_of(config_type: Any) -> dict[str, Any]:
    """Return the agents that an env has, each with its author's defaults."""
    defaults = {name: field.default for name, field in config_type.model_fields.items()}
    return {name: default for name, default in defaults.items() if isinstance(default, AgentConfig)}


def _ours(agents: Mapping[str, Any], env: Mapping[str, Any]) -> str:
    """Return the one agent without a client of its own: what several ask under one key is one rollout."""
    ours = [name for name, default in agents.items() if not (_table(env, name).get("client") or default.client)]
    if len(ours) == 1:
        return ours[0]
    raise ConfigError(
        f"{len(ours)} agents of the env play with the trained model: {', '.join(ours) or 'none'}",
        where=f"{WHERE}: env",
        next_step="one must: give each of the others a client and a model of its own, "
        f"options.env.<agent>.client; the env's agents are {', '.join(agents)}",
    )


def _block(options: VerifiersOptions, agents: Mapping[str, Any], ours: str) -> dict[str, Any]:
    """Return verifiers' env block: the options' env, with what stands beside it in its place."""
    tables = {name: dict(_table(options.env, name)) for name in agents}
    for key, value in (("harness", options.harness), ("runtime", options.runtime)):
        if value is not None and key in tables[ours]:
            raise ConfigError(
                f"{key} is given twice", where=f"{WHERE}: {key}, and env.{ours}.{key}", next_step="keep one of them"
            )
        if value is not None:
            tables[ours][key] = value
    for name, default in agents.items():
        if "runtime" not in default.model_fields_set:  # else verifiers would rent a sandbox, and a tunnel to it
            tables[name].setdefault("runtime", SUBPROCESS)
    return {**options.env, "taskset": options.taskset, **tables}


def _table(env: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = env.get(name, {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"env.{name} is no table", where=WHERE, next_step=f"write [environments.options.env.{name}]")
    return table


def _check_retries(config: Any, agent: str) -> None:
    retries = getattr(config, agent).retries
    if retries.max_retries or any(rule.max_retries for rule in retries.rules):
        raise ConfigError(
            "a retry would be recorded in the rollout that failed",
            where=f"{WHERE}: env.{agent}.retries",
            next_step="leave it out; a rollout that fails is left out of its group",
        )
