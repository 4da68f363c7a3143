"""The three client modes train the same game; only the one that renders anew at each turn breaks rollouts apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures.environments import ROOT

from engines.local import local_server
from prl.config import load_config
from prl_train.config import RLConfig
from prl_train.launch.processes import run_everything
from prl_train.run import RunFolder
from prl_train.run.metrics import read_metrics

pytestmark = pytest.mark.heavy

QUICKSTART = ROOT / "docs" / "examples" / "quickstart.toml"
SHORT = (
    "orchestrator.steps=2",
    "orchestrator.group_size=6",
    "orchestrator.groups_per_step=2",
    "model.scratch.tokenizer_examples=64",
    "warmup.steps=50",
    "warmup.batch_size=8",
    "engine.options.chat_template=qwen3",
    "sinks=[]",
)


def run(folder: Path, *overrides: str) -> list[dict[str, float]]:
    """Train a short while with the template's own defaults, as the modes without a renderer do."""
    text = QUICKSTART.read_text(encoding="utf-8").replace("[renderer_options]\nenable_thinking = false\n", "")
    assert "renderer_options" not in text
    config = folder / "run.toml"
    config.write_text(text, encoding="utf-8")
    directory = folder / "run"
    run_everything(load_config(RLConfig, config, [*SHORT, f"run.directory={directory}", *overrides]))
    return read_metrics(RunFolder(directory).metrics)


@pytest.mark.parametrize(("mode", "breaks"), [("renderer", False), ("token", False), ("chat", True)])
def test_breaks_show_in_the_mode_that_renders_anew(tmp_path: Path, mode: str, breaks: bool) -> None:
    rows = run(tmp_path, f"client_mode={mode}")
    assert [row["step"] for row in rows] == [0, 1]
    assert all((row["breaks"] > 0) is breaks for row in rows)
    assert all((row["samples_per_rollout"] > 1) is breaks for row in rows)
    assert max(row["max_logprob_diff"] for row in rows) < 1e-3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a run, which servers of a later run begin with."""
    folder = tmp_path_factory.mktemp("first")
    run(folder, "orchestrator.steps=1")
    return folder / "run" / "model"


OPTIONS: dict[str, Any] = {"served_model_name": None, "max_model_len": 256, "dtype": "float32"}


def test_a_run_over_two_engines_updates_the_weights_of_both(tmp_path: Path, model: Path) -> None:
    """`engine.base_urls` is all that a run needs to use several engines."""
    with local_server(model, **OPTIONS) as one, local_server(model, **OPTIONS) as two:
        rows = run(tmp_path, f"engine.base_urls=['{one.url}', '{two.url}']", "engine.max_concurrency=4")
        counts = [server.engine.core.scheduler.counters.sampled_tokens for server in (one, two)]
        versions = [server.engine.core.scheduler.weight_version for server in (one, two)]
    assert [row["breaks"] for row in rows] == [0.0, 0.0]
    assert max(row["max_logprob_diff"] for row in rows) < 1e-3
    assert min(counts) > 0, "both engines worked"
    assert versions == [2, 2]


def test_a_run_finds_its_engines_by_name(tmp_path: Path, model: Path) -> None:
    """With the system's own resolver; an address of the name where no engine listens does no harm."""
    with local_server(model, **OPTIONS) as server:
        rows = run(tmp_path, f"engine.dns=localhost:{server.port}", "orchestrator.steps=1")
        assert server.engine.core.scheduler.weight_version == 1
    assert rows[0]["max_logprob_diff"] < 1e-3
