"""What a run checks about executors, filters, evaluations and agents before anything heavy begins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prl.plugin import EnvironmentEntry, get_registry
from prl.testing.checks import Verdict
from prl.testing.fake_dist import active_site, write_fake_dist
from prl.testing.subjects import check_record
from prl.types import ConfigError, PluginError
from prl_train.config import RLConfig, SamplingOverrides
from prl_train.executor.agents import GatewayHost
from prl_train.launch.parts import check_names
from prl_train.launch.workers import check_workers

PLUGIN = """
from prl.plugin import ExecutorEntry, hookimpl


@hookimpl
def prl_executors():
    return [ExecutorEntry(name="far", target="far_executor:create")]
"""


@pytest.fixture
def far(tmp_path: Path) -> Iterator[None]:
    """Install a plugin whose executor plays rollouts elsewhere."""
    write_fake_dist(tmp_path / "site", "far-executor-dist", PLUGIN)
    with active_site(tmp_path / "site"):
        yield


def check(**values: Any) -> None:
    settings = {"model": {"path": "m"}, "environments": [{"name": "reverse-text"}], **values}
    config = RLConfig.model_validate(settings)
    check_workers(config, check_names(config))


def agents(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"prompt": "x", "check": ["true"]}))
    return {"name": "command-agent", "options": {"command": ["true"], "tasks": str(path)}}


def test_an_executor_in_other_processes_needs_an_engine_that_they_can_reach(far: None) -> None:
    with pytest.raises(ConfigError, match="executor 'far' plays rollouts in other processes") as caught:
        check(executor="far")
    assert "engine.url" in caught.value.next_step
    check(executor="far", engine={"url": "http://127.0.0.1:9"})


def test_an_executor_that_nobody_offers_is_named() -> None:
    with pytest.raises(PluginError, match="no executor is named 'loca'"):
        check(executor="loca")
    with pytest.raises(ConfigError, match="unknown key 'workers'"):
        check(executor_options={"workers": 3})


def test_options_of_a_filter_are_checked_before_the_run_begins() -> None:
    good = {"name": "length", "options": {"truncated": True}}
    with pytest.raises(ConfigError, match="unknown key 'hgih'") as caught:
        check(filters=[good, {"name": "difficulty", "options": {"hgih": 1}}])
    assert caught.value.where == "[[filters]] number 2, options"
    with pytest.raises(PluginError, match="no filter is named 'dificulty'") as missing:
        check(filters=[good, {"name": "dificulty"}])
    assert missing.value.where == "[[filters]] number 2, name = 'dificulty'"


def test_evaluations_have_names_of_their_own_and_environments_that_exist() -> None:
    exam = {"name": "exam", "environment": "reverse-text", "options": {"words": 1}}
    check(evaluations=[exam, {**exam, "name": "exam-2"}])
    with pytest.raises(ConfigError, match="two evaluations are named 'exam'"):
        check(evaluations=[exam, exam])
    with pytest.raises(PluginError, match="no environment is named 'reverse'"):
        check(evaluations=[{**exam, "environment": "reverse"}])
    with pytest.raises(ConfigError, match="unknown key 'wrods'") as caught:
        check(evaluations=[exam, {**exam, "name": "exam-2", "options": {"wrods": 1}}])
    assert caught.value.where == "[[evaluations]] number 2, options"


def test_an_agent_needs_a_client_mode_that_renders(tmp_path: Path) -> None:
    check(environments=[agents(tmp_path)])
    for places in ({"environments": [agents(tmp_path)]}, {"evaluations": [exam_of(agents(tmp_path))]}):
        with pytest.raises(ConfigError, match="'command-agent' runs an agent behind the gateway") as caught:
            check(client_mode="chat", **places)
        assert 'client_mode = "renderer"' in caught.value.next_step


def test_the_kit_says_why_it_cannot_check_an_environment_that_needs_options() -> None:
    (result,) = check_record(get_registry().find(EnvironmentEntry, "command-agent"))
    assert (result.verdict, result.finding) == (
        Verdict.SKIP,
        "'command-agent' cannot be made without options: command, tasks",
    )


def exam_of(environment: dict[str, Any]) -> dict[str, Any]:
    return {"name": "exam", "environment": environment["name"], "options": environment["options"]}


def test_an_evaluation_samples_as_training_does_but_for_what_it_overrides() -> None:
    from prl.types import SamplingParams

    training = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=7, stop_token_ids=(3,))
    assert SamplingOverrides(temperature=0.2).over(training) == SamplingParams(
        temperature=0.2, top_p=0.9, max_tokens=7, stop_token_ids=(3,)
    )


@pytest.mark.parametrize(
    ("told", "url"), [(None, "http://127.0.0.1:81/v1"), ("host.docker.internal", "http://host.docker.internal:81/v1")]
)
def test_agents_elsewhere_are_told_an_address_that_they_can_reach(told: str | None, url: str) -> None:
    from prl_train.config import GatewaySection

    host = GatewayHost(None, None, "m", GatewaySection(told_host=told))  # type: ignore[arg-type]
    assert host._told("http://127.0.0.1:81/v1") == url
