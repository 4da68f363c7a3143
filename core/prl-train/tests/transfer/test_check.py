"""A configuration under which engines could never receive is refused before anything begins."""

from __future__ import annotations

from typing import Any

import pytest

from prl.types import ConfigError
from prl_train.config import RLConfig
from prl_train.transfer.check import check_transfer


def config(engine: dict[str, Any], **transfer: Any) -> RLConfig:
    return RLConfig.model_validate(
        {
            "model": {"path": "m"},
            "environments": [{"name": "reverse-text"}],
            "engine": engine,
            "trainer": {"weight_transfer": "broadcast", "transfer": transfer},
        }
    )


@pytest.mark.parametrize(
    "engine",
    [
        {"url": "http://10.0.0.7:8000"},
        {"base_urls": ["http://127.0.0.1:1", "http://gpu-1:8000"]},
        {"dns": "engines:80"},
    ],
)
def test_engines_elsewhere_need_an_address_of_the_trainer(engine: dict[str, Any]) -> None:
    """They would look for the trainer on their own machine, at every version anew."""
    with pytest.raises(ConfigError, match=r"cannot reach the trainer at '127\.0\.0\.1'") as caught:
        check_transfer(config(engine))
    assert caught.value.where == "trainer.transfer.host"
    check_transfer(config(engine, host="10.0.0.1"))


def test_engines_here_and_embedded_ones_need_none() -> None:
    for engine in ({"url": "http://127.0.0.1:8000"}, {"url": "http://[::1]:8000"}, {"url": "http://localhost:1"}, {}):
        check_transfer(config(engine))


def test_a_server_without_the_plugin_cannot_receive() -> None:
    with pytest.raises(ConfigError, match="cannot receive weights"):
        check_transfer(config({"url": "http://127.0.0.1:1", "route": "/inference/v1/generate"}))
