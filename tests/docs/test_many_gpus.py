"""The page on many GPUs and the examples for clusters: configs are accepted, and every command has its flags."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from fixtures.documents import Block, blocks
from fixtures.environments import ROOT
from torch.distributed.run import get_args_parser

from prl.config import load_config
from prl.plugin import CommandEntry, EngineEntry, get_registry
from prl.plugin.loader import import_value
from prl_train.config import RLConfig

PAGE = ROOT / "docs" / "how-to" / "train-on-many-gpus.md"
EXAMPLES = ROOT / "docs" / "examples"
SLURM = EXAMPLES / "slurm" / "train.sbatch"
KUBERNETES = EXAMPLES / "kubernetes" / "prl.yaml"
VARIABLES = {
    "$CONFIG": str(EXAMPLES / "slurm" / "run.toml"),
    "/config/run.toml": str(EXAMPLES / "kubernetes" / "run.toml"),
    "run.toml": str(EXAMPLES / "slurm" / "run.toml"),
    "docs/examples/quickstart.toml": str(EXAMPLES / "quickstart.toml"),
    "$GPUS": "8",
    "$MODEL": "m",
    "engine.base_urls=[${urls%,}]": 'engine.base_urls=["http://node:8000"]',
    "--nnodes=${#TRAINERS[@]}": "--nnodes=2",
    "--nproc-per-node=$GPUS": "--nproc-per-node=8",
}


def slurm_commands() -> Iterator[list[str]]:
    """Yield the words after each srun's own, from `prl` or `torchrun` on."""
    text = SLURM.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip().startswith("srun"):
            yield shlex.split(re.search(r"\b(prl|torchrun) .*?(?= &$)", line)[0])  # type: ignore[index]


def kubernetes_commands() -> Iterator[list[str]]:
    for document in yaml.safe_load_all(KUBERNETES.read_text(encoding="utf-8")):
        template = document["spec"].get("template")
        for container in template["spec"]["containers"] if template else ():
            yield [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in container["command"]]


def page_commands() -> Iterator[list[str]]:
    for block in blocks(PAGE):
        if block.language in ("sh", "console"):
            yield from (shlex.split(line.removeprefix("$ ")) for line in block.text.strip().splitlines())


COMMANDS = [*slurm_commands(), *kubernetes_commands(), *page_commands()]


def test_all_commands_were_found() -> None:
    assert [words[0] for words in slurm_commands()] == ["prl", "torchrun", "prl"]
    assert [words[0] for words in kubernetes_commands()] == ["prl", "torchrun", "prl"]
    assert [words[0] for words in page_commands()] == ["prl", "torchrun"]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_has_its_flags(words: list[str]) -> None:
    """A flag that was renamed would be noticed after a night in the queue."""
    words = [VARIABLES.get(word, word) for word in words]
    if words[0] == "torchrun":
        arguments = get_args_parser().parse_args(words[1:])
        assert arguments.no_python
        words = [arguments.training_script, *arguments.training_script_args]
    assert words[0] == "prl"
    assert get_registry().find(CommandEntry, words[1]) if words[1] != "serve" else True
    flags = dict(pairwise(words))
    if words[1] == "serve":
        options = import_value(get_registry().find(EngineEntry, flags["--engine"]).options)
        given = {word.removeprefix("--") for word in words if word.startswith("--")} - {"engine"}
        assert given <= set(options.model_fields)
        return
    assert {word for word in words if word.startswith("-")} == {"-c"}
    pairs = [word for word in words[2:] if "=" in word]
    assert load_config(RLConfig, Path(flags["-c"]), pairs).environments


def test_the_batch_script_is_a_script() -> None:
    done = subprocess.run(["bash", "-n", str(SLURM)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_manifests_name_what_they_use() -> None:
    """A claim, config map or service that nobody declares keeps a pod pending for ever."""
    documents = list(yaml.safe_load_all(KUBERNETES.read_text(encoding="utf-8")))
    named = {(one["kind"], one["metadata"]["name"]) for one in documents}
    pods = [one["spec"]["template"] for one in documents if "template" in one["spec"]]
    assert len(pods) == 3
    labels = {(label, value) for pod in pods for label, value in pod.get("metadata", {}).get("labels", {}).items()}
    for one in documents:
        if one["kind"] == "Service":
            assert set(one["spec"]["selector"].items()) <= labels
    for pod in pods:
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        mounts = {mount["name"] for container in pod["spec"]["containers"] for mount in container["volumeMounts"]}
        assert mounts == set(volumes)
        claims = {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in volumes.values()} - {None}
        assert claims
        assert all(("PersistentVolumeClaim", claim) in named for claim in claims)
    dns = load_config(RLConfig, EXAMPLES / "kubernetes" / "run.toml").engine.dns
    assert dns is not None
    assert ("Service", dns.partition(":")[0]) in named


@pytest.mark.parametrize(
    "block", [one for one in blocks(PAGE) if one.language == "toml"], ids=lambda one: one.facts["run"]
)
def test_every_config_of_the_page_is_accepted(block: Block) -> None:
    rest = {"model": {"path": "m"}, "environments": [{"name": "reverse-text"}]}
    config = RLConfig.model_validate(tomllib.loads(block.text) | rest)
    assert config.trainer.processes % (config.trainer.parallel.replicas * config.trainer.parallel.context) == 0


def test_the_pages_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert links
    assert all((PAGE.parent / link).exists() for link in links)
