"""Where a run's engines are: one place, told wrong is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prl.types import ConfigError, EngineUnavailableError
from prl_train.config import RLConfig
from prl_train.launch.engines import run_engine
from prl_train.launch.parts import check_names


def config(directory: Path, **engine: Any) -> RLConfig:
    return RLConfig.model_validate(
        {
            "model": {"path": "m"},
            "environments": [{"name": "reverse-text"}],
            "run": {"directory": str(directory)},
            "engine": engine,
        }
    )


@pytest.mark.parametrize(
    "engine",
    [
        {"url": "http://a:1", "dns": "b:2"},
        {"url": "http://a:1", "base_urls": ["http://b:2"]},
        {"base_urls": ["http://b:2"], "dns": "b:2"},
    ],
)
def test_two_places_are_one_too_many(tmp_path: Path, engine: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"give one of engine\.url, engine\.base_urls and engine\.dns"):
        config(tmp_path, **engine)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"base_urls": ["a:1"]}, "no engine address"),
        ({"base_urls": ["http://a:1", "http://a:1/"]}, "one twice"),
        ({"url": "nowhere"}, "no engine address"),
        ({"dns": "engines"}, "no name of engines"),
        ({"url": "http://a:1", "route": "/v1/completions"}, "speaks no route"),
    ],
)
def test_an_address_or_route_that_is_none_is_told_before_anything_loads(
    tmp_path: Path, engine: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_names(config(tmp_path, **engine))
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("engine", "embedded"),
    [({}, True), ({"url": "http://a:1"}, False), ({"base_urls": ["http://a:1"]}, False), ({"dns": "a:1"}, False)],
)
def test_an_engine_is_embedded_unless_one_is_pointed_to(tmp_path: Path, engine: dict[str, Any], embedded: bool) -> None:
    assert config(tmp_path, **engine).engine.is_embedded is embedded


async def test_the_pool_closes_where_no_engine_comes_up(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")  # imported now: on a busy machine that alone outlasts the wait below
    section = config(tmp_path, base_urls=["http://127.0.0.1:9", "http://127.0.0.1:10"], start_seconds=0).engine
    with pytest.raises(EngineUnavailableError) as caught:
        async with run_engine(section, "m"):
            raise AssertionError("no engine is there")
    assert "http://127.0.0.1:9: the engine is not healthy" in caught.value.where
    assert "http://127.0.0.1:10" in caught.value.where
