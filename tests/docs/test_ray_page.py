"""The page on Ray: its configurations are accepted, its examples are well-formed."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest
import yaml
from fixtures.documents import titled
from fixtures.environments import ROOT

from prl.plugin import ExecutorEntry, build_options, get_registry
from prl_train.config import RLConfig
from prl_train.launch.parts import check_names
from prl_train.launch.workers import check_workers

PAGE = ROOT / "docs" / "how-to" / "scale-rollouts-with-ray.md"
EXAMPLES = ROOT / "docs" / "examples"


@pytest.mark.parametrize("name", ["run.toml", "cluster.toml"])
def test_the_pages_configurations_are_accepted_down_to_the_executors_options(name: str) -> None:
    config = RLConfig.model_validate(tomllib.loads(titled(PAGE)[name]))
    check_workers(config, check_names(config))


def test_every_option_that_the_page_names_exists() -> None:
    record = get_registry().find(ExecutorEntry, "ray")
    options = type(build_options(record, {})).model_fields
    named = set(re.findall(r"`(?:executor_options\.)?(\w+_\w+)`", PAGE.read_text(encoding="utf-8")))
    assert {"max_replays", "start_seconds"} <= named & set(options)


def test_the_batch_script_is_a_shell_script_and_names_options_that_exist() -> None:
    script = EXAMPLES / "slurm" / "rollouts-on-ray.sbatch"
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "executor_options.address" in script.read_text(encoding="utf-8")


def test_the_cluster_is_a_kuberay_cluster() -> None:
    manifest = yaml.safe_load((EXAMPLES / "kubernetes" / "ray-workers.yaml").read_text(encoding="utf-8"))
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayCluster")
    groups = [manifest["spec"]["headGroupSpec"], *manifest["spec"]["workerGroupSpecs"]]
    assert {pod["image"] for group in groups for pod in group["template"]["spec"]["containers"]} == {"IMAGE"}
