"""A supervised run in several processes: those that torchrun started, or `trainer.processes` started here."""

from __future__ import annotations

import sys
import threading

from prl_train.distributed import find_place, joined_world
from prl_train.distributed.configured import be_configured, run_configured

from .config import SftConfig
from .loop import SftResult, run_sft

MODULE = "prl_train.sft.processes"


def run_here(config: SftConfig, resume: bool) -> None:
    """Train as one process, as one of a launcher's, or by starting `trainer.processes` of them; tell the outcome."""
    if find_place().size == 1 and config.trainer.processes > 1:
        run_configured(MODULE, config, config.trainer.processes, threading.Event(), str(int(resume)))
        return
    parallel = config.trainer.parallel
    with joined_world(device=config.trainer.device, replicas=parallel.replicas, context=parallel.context) as world:
        result = run_sft(config, resume=resume, on_step=_tell_step)
        if world.is_main:
            _tell_result(result)


def _tell_step(step: int, metrics: dict[str, float]) -> None:
    held_out = f"  eval/loss {metrics['eval/loss']:.4f}" if "eval/loss" in metrics else ""
    print(f"step {step}  loss {metrics['loss']:.4f}{held_out}", flush=True)


def _tell_result(result: SftResult) -> None:
    for line in result.warnings:
        print(f"warning: {line}")
    print(f"trained to step {result.step}\n  weights     {result.weights}\n  checkpoint  {result.checkpoint}")


def main(settings: str, resume: str) -> int:
    """Be one of the processes."""
    return be_configured(SftConfig, settings, lambda config, _: run_here(config, bool(int(resume))))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
