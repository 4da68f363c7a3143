"""What a finished run says on the terminal."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prl_train.config import RLConfig
from prl_train.report import Summary, summarise
from prl_train.run import RunFolder
from prl_train.run.metrics import read_metrics


@contextmanager
def tell_stop(directory: Path, *again: str) -> Iterator[None]:
    """Where Ctrl-C stops the run, say that nothing is lost and with which words after `prl` it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        words = shlex.join(["prl", *again])
        print(f"prl: stopped; what {directory} holds is whole. Go on with: {words}", file=sys.stderr)
        raise


def tell_outcome(config: RLConfig, note: str = "") -> None:
    """Print the run's figures and where its outputs are."""
    folder = RunFolder(config.run.directory)
    if note:
        print(note)
    print("\n".join(outcome_lines(summarise(read_metrics(folder.metrics)), config)))
    print("outputs")
    for name, path in folder.outputs().items():
        print(f"  {name:<12} {path}")


def outcome_lines(summary: Summary, config: RLConfig) -> list[str]:
    """Return the figures as lines."""
    if summary.reward_start is None or summary.reward_end is None:
        return ["no step was trained"]
    samples = "not measured" if summary.samples_per_rollout is None else f"{summary.samples_per_rollout:.2f}"
    difference = "not measured" if summary.max_logprob_diff is None else f"{summary.max_logprob_diff:.1e}"
    level = config.orchestrator.max_async_level
    exact = f"same weights, {config.trainer.dtype}" if level == 0 else f"weights up to {level} versions apart"
    return [
        f"after {summary.steps} steps",
        f"  reward at the start                      {summary.reward_start:.3f}",
        f"  reward at the end                        {summary.reward_end:.3f}",
        f"  samples per rollout                      {samples}",
        f"  breaks                                   {summary.breaks}",
        f"  largest |engine - trainer| log-prob      {difference}  ({exact})",
        f"  failed rollouts                          {summary.errors}",
    ]
