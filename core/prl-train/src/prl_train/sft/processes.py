"""A supervised run in several processes: those that torchrun started, or `trainer.processes` started here."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

from prl.types import PrlError
from prl_train.distributed import LocalProcesses, find_place, joined_world

from .config import SftConfig
from .loop import SftResult, run_sft

MODULE = "prl_train.sft.processes"


def run_here(config: SftConfig, resume: bool) -> None:
    """Train as one process, as one of a launcher's, or by starting `trainer.processes` of them; tell the outcome."""
    if find_place().size == 1 and config.trainer.processes > 1:
        _start_all(config, resume)
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
    print(f"trained to step {result.step}\n  weights     {result.weights}\n  checkpoint  {result.checkpoint}")


def _start_all(config: SftConfig, resume: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="prl-sft-") as folder:
        settings = Path(folder) / "config.json"
        settings.write_text(config.model_dump_json(), encoding="utf-8")
        processes = LocalProcesses(config.trainer.processes, ["-m", MODULE, str(settings), str(int(resume))])
        try:
            processes.wait(threading.Event())
        finally:
            processes.end()


def main(settings: str, resume: str) -> int:
    """Be one of the processes."""
    from prl_train.distributed.local import ParentLine

    ParentLine()
    config = SftConfig.model_validate_json(Path(settings).read_text(encoding="utf-8"))
    try:
        run_here(config, bool(int(resume)))
    except PrlError:
        return 1  # the parent has word of it
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
