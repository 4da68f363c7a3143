"""Build report.html from a run folder: metrics, and a token view of a few rollouts."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any

from prl.tokenizer import Tokenizer
from prl_train.run import RunFolder
from prl_train.run.files import write_text
from prl_train.run.metrics import read_metrics

from .summary import summarise

NOBODY = -1


def write_report(folder: RunFolder, tokenizer: Tokenizer, *, rollouts: int = 6) -> Path:
    """Write the run's report.html and return its path; `rollouts` of the first and the last step are shown in full."""
    write_text(folder.report, build_report(folder, tokenizer, rollouts=rollouts))
    return folder.report


def build_report(folder: RunFolder, tokenizer: Tokenizer, *, rollouts: int = 6) -> str:
    """Return the page: style, script and data inline, nothing fetched."""
    rows = read_metrics(folder.metrics)
    data = {
        "name": folder.root.name,
        "metrics": rows,
        "summary": asdict(summarise(rows)),
        "config": folder.config.read_text(encoding="utf-8") if folder.config.is_file() else "",
        "about": _about(folder),
        "rollouts": [_view(record, step, tokenizer) for step, record in _choose(folder, rollouts)],
    }
    page = _asset("page.html")
    # "<" is written as an escape so that no token text can end the script element.
    inline = json.dumps(_plain(data), allow_nan=False).replace("<", "\\u003c")
    for mark, text in (("/*STYLE*/", _asset("style.css")), ("/*SCRIPT*/", _asset("page.js")), ("/*DATA*/", inline)):
        page = page.replace(mark, text, 1)
    return page


def _plain(value: Any) -> Any:
    """Return the value with null for numbers that JSON does not have: a page must come of any run."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _asset(name: str) -> str:
    return files("prl_train.report").joinpath(name).read_text(encoding="utf-8")


def _about(folder: RunFolder) -> list[str]:
    """Return a few words on what was run, from the resolved configuration."""
    if not folder.config.is_file():
        return []
    config = tomllib.loads(folder.config.read_text(encoding="utf-8"))
    environments = ", ".join(entry["name"] for entry in config["environments"])
    model = config["model"].get("path") or "from scratch"
    engine = config["engine"].get("url") or config["engine"]["kind"]
    return [f"environment {environments}", f"model {model}", f"renderer {config['renderer']}", f"engine {engine}"]


def _choose(folder: RunFolder, count: int) -> list[tuple[int, dict[str, Any]]]:
    """Choose rollouts of the first and the last logged step, of different rewards where there are some."""
    steps = folder.rollout_steps()
    ends = [steps[0], steps[-1]] if len(steps) > 1 else steps
    chosen: list[tuple[int, dict[str, Any]]] = []
    for position, step in enumerate(ends):
        room = (count - len(chosen)) if position == len(ends) - 1 else count // 2
        chosen += [(step, record) for record in _varied(_read(folder.rollout_path(step)))[:room]]
    return chosen


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _varied(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order records so that each reward comes up before one repeats, those with more turns first."""
    by_reward: dict[float, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda record: -len(record["messages"])):
        by_reward.setdefault(record["reward"], []).append(record)
    rounds = zip_longest(*by_reward.values())
    return [record for one in rounds for record in one if record is not None]


def _view(record: dict[str, Any], step: int, tokenizer: Tokenizer) -> dict[str, Any]:
    keys = ("trajectory_id", "environment", "example_id", "reward", "advantage", "stop_reason", "error", "breaks")
    shown: dict[str, Any] = {key: record[key] for key in keys}
    roles = [message["role"] for message in record["messages"]]
    samples = [_tokens(sample, roles, tokenizer) for sample in record["samples"]]
    return shown | {"step": step, "versions": record["weight_versions"], "samples": samples}


def _tokens(sample: dict[str, Any], roles: Sequence[str], tokenizer: Tokenizer) -> dict[str, Any]:
    ids = sample["prompt_ids"] + sample["completion_ids"]
    before = len(sample["prompt_ids"])
    mask = [0] * before + sample["mask"]
    sampled = sample["logprobs"] or [None] * len(sample["mask"])  # None: tokens that nobody sampled
    logprobs = [None] * before + [value if flag else None for value, flag in zip(sampled, sample["mask"], strict=True)]
    spans = sample["spans"]
    blocks = None if spans is None else [[start, end, _role(owner, roles)] for start, end, owner in spans]
    return {
        "ids": ids,
        "text": [tokenizer.decode([token]) for token in ids],
        "mask": mask,
        "logprobs": logprobs,
        "blocks": blocks,
    }


def _role(owner: int, roles: Sequence[str]) -> str:
    return "template" if owner == NOBODY else roles[owner]
