"""The pages on agents, filters and evaluations: what they have the reader write is accepted and is there."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
from fixtures.documents import titled
from fixtures.environments import ROOT

from prl.contracts import AgentEndpoint
from prl_train.config import RLConfig
from prl_train.environments.command_agent import CommandAgentOptions, create
from prl_train.launch.parts import check_names
from prl_train.launch.workers import check_workers
from prl_train.orchestrator.measure import step_metrics
from prl_train.orchestrator.pool import PoolCounts

COMMAND = ROOT / "docs" / "how-to" / "train-a-command.md"
BESIDE = ROOT / "docs" / "how-to" / "filter-and-evaluate.md"
REST = {"model": {"path": "m"}, "environments": [{"name": "reverse-text"}]}

FAKE_SDK = """
class OpenAI:
    class chat:
        class completions:
            @staticmethod
            def create(model, messages):
                assert model == "tiny"
                return Answer(messages[0]["content"].split()[3])


class Answer:
    def __init__(self, content):
        self.message = self
        self.choices = [self]
        self.content = content
"""


def accepted(text: str) -> RLConfig:
    config = RLConfig.model_validate(REST | tomllib.loads(text))
    check_workers(config, check_names(config))
    return config


@pytest.mark.parametrize("name", ["filters.toml", "age.toml", "evaluations.toml"])
def test_sections_are_accepted_as_the_page_writes_them(name: str) -> None:
    accepted(titled(BESIDE)[name])


def test_the_page_counts_what_a_step_counts() -> None:
    text = BESIDE.read_text(encoding="utf-8")
    named = set(re.findall(r"`(groups/\w+|reward/\w+)`", text))
    assert named == {"groups/filtered", "groups/stale", "groups/cancelled", "groups/expired", "reward/played"}
    assert named <= set(step_metrics([], PoolCounts(), step=0, seconds=1.0))


async def test_the_agent_of_the_page_is_run_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = titled(COMMAND)
    for name in ("tasks.jsonl", "agent.py", "run.toml"):
        (tmp_path / name).write_text(files[name])
    (tmp_path / "sdk").mkdir()
    (tmp_path / "sdk" / "openai.py").write_text(FAKE_SDK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    config = accepted(files["run.toml"])
    options = CommandAgentOptions.model_validate(
        config.environments[0].options | {"environment": {"PYTHONPATH": str(tmp_path / "sdk")}}
    )
    agent = create(options)
    endpoint = AgentEndpoint(base_url="http://127.0.0.1:9/v1", api_key="k", model="tiny")
    results = [await agent.run(agent.example(index), endpoint) for index in (0, 1)]
    # The model that stands in repeats the fourth word: "1 to answer.txt" is right, "in.txt says" is not.
    assert [(result.reward, result.output) for result in results] == [(1.0, "done\n"), (0.0, "done\n")]
    assert [json.loads(line)["id"] for line in files["tasks.jsonl"].splitlines()] == ["one", "two"]


def test_agents_in_containers_are_told_where_the_gateway_is() -> None:
    assert accepted(titled(COMMAND)["containers.toml"]).gateway.told_host == "host.docker.internal"
