"""One checked config from file, environment and command line."""

from __future__ import annotations

import pickle
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from prl.config import (
    PluginsConfig,
    check_plugin_options,
    config_schema,
    load_config,
    locate_key,
    read_sources,
    to_toml,
)
from prl.config.lines import line_of
from prl.testing.fake_dist import active_site, write_fake_dist
from prl.types import ConfigError, PluginError, about_key


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Trainer(Strict):
    lr: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    betas: tuple[float, float] = (0.9, 0.999)


class EnvironmentConfig(Strict):
    name: str
    weight: float = 1.0
    options: dict[str, Any] = Field(default_factory=dict)


class RunConfig(Strict):
    name: str = "run"
    seed: int | None = None
    trainer: Trainer = Trainer()
    environments: list[EnvironmentConfig] = Field(default_factory=list)
    plugins: PluginsConfig = PluginsConfig()


TEXT = """\
# a run
name = "mine"

[trainer]
lr = 1e-4

[[environments]]
name = "first"

[[environments]]
name = "second"
weight = 2
[environments.options]
low = 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(TEXT)
    return path


def test_the_command_line_beats_the_environment_beats_the_file(file: Path) -> None:
    """A value given on the command line is not the one that counts."""
    environment = {"PRL_TRAINER__LR": "0.5", "PRL_SEED": "7", "PRL_PLUGINS": "acme", "PRL_UNRELATED": "x", "OTHER": "y"}
    config = load_config(RunConfig, file, ["trainer.lr=0.25"], environment=environment)
    assert (config.trainer.lr, config.seed, config.name) == (0.25, 7, "mine")
    assert load_config(RunConfig, file, environment=environment).trainer.lr == 0.5
    assert load_config(RunConfig, file, environment={}).trainer.lr == 1e-4
    assert load_config(RunConfig, None, environment={}).name == "run"


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("trainer.betas=[0.8, 0.95]", ("trainer", "betas"), (0.8, 0.95)),
        ("trainer.schedule=cosine", ("trainer", "schedule"), "cosine"),
        ('name="quoted"', ("name",), "quoted"),
        ("name=123", ("name",), "123"),
        ("name=a=b # c", ("name",), "a=b # c"),
        ("name=", ("name",), ""),
        ("environments.1.weight=0.5", ("environments", 1, "weight"), 0.5),
        ('environments.0.options."odd key"=true', ("environments", 0, "options", "odd key"), True),
        ('plugins.prefer."renderer:glm-4.5"=acme', ("plugins", "prefer", "renderer:glm-4.5"), "acme"),
    ],
)
def test_overrides_reach_any_key(file: Path, override: str, path: tuple[Any, ...], value: Any) -> None:
    """Some values cannot be given on the command line."""
    current: Any = load_config(RunConfig, file, [override], environment={}).model_dump()
    for part in path:
        current = current[part]
    assert current == value


@pytest.mark.parametrize(
    ("line", "what", "where", "next_step"),
    [
        (
            "[trainer]\nlearning_rte = 1",
            "unknown key 'trainer.learning_rte'",
            2,
            "Keys of trainer: lr, schedule, betas.",
        ),
        ("[trainer]\n\nshedule = 'cosine'", "unknown key 'trainer.shedule'", 3, "Did you mean 'schedule'?"),
        ("[trainr]\nlr = 1", "unknown key 'trainr'", 1, "Did you mean 'trainer'?"),
        ("[trainer]\nlr = 'fast'", "key 'trainer.lr': input should be a valid number", 2, "Correct trainer.lr."),
        ("trainer.lr = true and", "the config file is not valid TOML", None, "Correct that line."),
        (
            "[[environments]]\nname = 'a'\n[[environments]]\nweight = 2",
            "key 'environments[1].name' is missing",
            3,
            "Set",
        ),
        ("[[environments]]\nname='a'\nwieght = 1", "unknown key 'environments[0].wieght'", 3, "Did you mean 'weight'?"),
    ],
)
def test_a_wrong_key_or_value_names_file_line_and_close_name(
    tmp_path: Path, line: str, what: str, where: int | None, next_step: str
) -> None:
    """A misspelt key is ignored, and the run trains with the default."""
    path = tmp_path / "run.toml"
    path.write_text(line)
    with pytest.raises(ConfigError) as caught:
        load_config(RunConfig, path, environment={})
    assert what in caught.value.what
    assert caught.value.where == (f"{path}:{where}" if where else str(path))
    assert next_step in caught.value.next_step


@pytest.mark.parametrize(
    ("overrides", "environment", "where"),
    [
        (["trainer.lrr=1"], {}, "command line 'trainer.lrr=1'"),
        ([], {"PRL_TRAINER__LRR": "1"}, "environment variable PRL_TRAINER__LRR"),
        ([], {"PRL_TRANER__LR": "1"}, "environment variable PRL_TRANER__LR"),
        (["environments.5.weight=1"], {}, "command line 'environments.5.weight=1'"),
        (["name.first=1"], {}, "command line 'name.first=1'"),
        (["nothing"], {}, "command line"),
        (["=1"], {}, "command line"),
    ],
)
def test_wrong_keys_from_outside_the_file_name_their_place(
    file: Path, overrides: list[str], environment: dict[str, str], where: str
) -> None:
    """The error sends the user to the file, where nothing is wrong."""
    with pytest.raises(ConfigError) as caught:
        load_config(RunConfig, file, overrides, environment=environment)
    assert caught.value.where == where


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    """A wrong path ends in a traceback."""
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        load_config(RunConfig, tmp_path / "absent.toml", environment={})
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(RunConfig, tmp_path / "latin.toml", environment={})


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("name",), 2),
        (("trainer",), 4),
        (("trainer", "lr"), 5),
        (("trainer", "absent"), 4),
        (("environments", 0, "name"), 8),
        (("environments", 1, "weight"), 12),
        (("environments", 1, "options", "low"), 14),
        (("absent",), None),
    ],
)
def test_lines_of_keys(file: Path, path: tuple[str | int, ...], line: int | None) -> None:
    """The error points at another line than the one to correct."""
    assert line_of(TEXT, path) == line
    assert locate_key(file, path) == (f"{file}:{line}" if line else str(file))


@pytest.fixture
def _acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PRL_PLUGINS", "acme")
    with active_site(tmp_path / "site") as site:
        source = """
            from prl.plugin import EnvironmentEntry, hookimpl
            @hookimpl
            def prl_environments():
                return [EnvironmentEntry(name="guess", target="acme_env:create", options="acme_env:Options")]
        """
        write_fake_dist(site, "acme", source)
        model = "from pydantic import BaseModel\nclass Options(BaseModel):\n    low: int = 0\n    high: int = 9\n"
        (site / "acme_env.py").write_text(model)
        yield


@pytest.mark.usefixtures("_acme")
def test_a_plugins_section_is_checked_by_its_own_model(file: Path) -> None:
    """Options of plugins are taken unchecked until the run is under way."""
    section = ("environments", 1, "options")
    assert check_plugin_options("environment", "guess", {"low": 1}, section=section, path=file).model_dump() == {
        "low": 1,
        "high": 9,
    }
    file.write_text(TEXT + "hihg = 5\n")
    with pytest.raises(ConfigError) as caught:
        check_plugin_options("environment", "guess", {"low": 1, "hihg": 5}, section=section, path=file)
    assert caught.value.what == "unknown key 'hihg'"
    assert caught.value.where == f"[environments.1.options] of environment 'guess', {file}:15"
    assert caught.value.next_step == "Did you mean 'high'? Keys: low, high."


def test_an_error_that_names_keys_is_told_their_places_once(file: Path) -> None:
    """A check that only knows the config cannot say in which file, variable or flag its values were set."""
    read = read_sources(RunConfig, file, ["trainer.lr=3"], environment={"PRL_NAME": "x"})
    with pytest.raises(PluginError) as caught, read.telling(), read.telling(), about_key("name"):
        raise PluginError("wrong", where="name", keys=[("trainer", "lr"), ("name",), ("environments", 1)])
    assert caught.value.where == (
        f"name, command line 'trainer.lr=3', environment variable PRL_NAME, {file}:{line_of(TEXT, ('environments', 1))}"
    )
    with pytest.raises(ConfigError) as about, read.telling(), about_key("environments", 0), about_key("name"):
        raise ConfigError("wrong")
    assert about.value.where == "environment variable PRL_NAME", "the innermost key is the one it is about"
    moved = pickle.loads(pickle.dumps(ConfigError("wrong", keys=[("name",)])))
    assert moved.keys == (("name",),), "a check in another process"


def test_shown_config_loads_to_the_same_config(file: Path, tmp_path: Path) -> None:
    """The run folder's resolved config is not the one that ran."""
    config = load_config(
        RunConfig, file, ['plugins.prefer."renderer:x"=acme', 'name=odd "text" \\ \n é'], environment={}
    )
    shown = tmp_path / "shown.toml"
    shown.write_text(to_toml(config))
    assert load_config(RunConfig, shown, environment={}) == config
    assert '"properties"' in config_schema(RunConfig)


scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=8,
)


@given(st.dictionaries(keys, values, max_size=4))
def test_any_data_survives_being_written_as_toml(data: dict[str, Any]) -> None:
    """A value is written so that it reads back as another, or not at all."""
    assert tomllib.loads(to_toml(data)) == data


def test_plugins_section_adds_to_the_environment() -> None:
    """The config's `disable` switches the environment's off."""
    section = PluginsConfig(disable=("b",), require=("c",), prefer={"renderer:x": "d"}, strict=True)
    settings = section.settings({"PRL_DISABLE_PLUGINS": "a", "PRL_PLUGINS": "a,b,c"})
    assert (settings.disable, settings.require, settings.allow) == (("a", "b"), ("c",), ("a", "b", "c"))
    assert (settings.strict, settings.prefer) == (True, {"renderer:x": "d"})


def test_a_variable_with_one_underscore_is_told(file: Path) -> None:
    """PRL_TRAINER_LR=1e-4 sets nothing, and the run trains with another rate for a week."""
    with pytest.raises(ConfigError, match="PRL_TRAINER_LR sets nothing") as caught:
        load_config(RunConfig, file, environment={"PRL_TRAINER_LR": "1"})
    assert caught.value.next_step == "Write PRL_TRAINER__LR."
    load_config(RunConfig, file, environment={"PRL_TRAINER_HOME": "x", "PRL_LR": "1", "PRL_PLUGINS": ""})


def test_a_file_with_a_byte_order_mark_and_carriage_returns_is_read(tmp_path: Path) -> None:
    """Editors on Windows write both."""
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert load_config(RunConfig, path, environment={}).trainer.lr == 1e-4
    assert locate_key(path, ("trainer", "lr")) == f"{path}:5"
