"""Commands that are one process do not start under a launcher that makes several."""

from __future__ import annotations

from pathlib import Path

import pytest

from prl.types import ConfigError
from prl_train.config import RLConfig
from prl_train.launch.processes import run_everything


def test_a_whole_run_under_torchrun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight orchestrators would write into one folder."""
    for name, value in {"RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    values = {"model": {"path": "m"}, "environments": [{"name": "reverse-text"}], "run": {"directory": str(tmp_path)}}
    with pytest.raises(ConfigError, match="this command is one process, and a launcher started 8 of it"):
        run_everything(RLConfig.model_validate(values))
    assert list(tmp_path.iterdir()) == []
