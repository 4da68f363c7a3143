"""Trainer and orchestrator side by side in one process; the first to fail ends the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from prl_train.orchestrator.loop import Outcome
from prl_train.run import RunFolder

TELL_SECONDS = 2.0


async def train_beside(
    folder: RunFolder, train: Callable[[threading.Event], object], orchestrate: Coroutine[Any, Any, Outcome]
) -> Outcome:
    """Train in a thread beside the orchestrator; the first error is the run's. `train` ends when its event is set."""
    stop = threading.Event()
    training = asyncio.create_task(asyncio.to_thread(train, stop))
    orchestrating = asyncio.create_task(orchestrate)
    try:
        await asyncio.wait({training, orchestrating}, return_when=asyncio.FIRST_COMPLETED)
        if training.done():
            training.result()
        outcome = await orchestrating
        await _no_more_batches(folder, training)
        return outcome
    finally:
        stop.set()
        orchestrating.cancel()
        await asyncio.gather(training, orchestrating, return_exceptions=True)


async def _no_more_batches(folder: RunFolder, training: asyncio.Task[object]) -> None:
    """Say that no batch will come, and wait until those that are there are trained and their checkpoint is written.

    A resumed trainer may still be training again what came after its checkpoint, or be a process that is only coming
    up, which hears nothing that was said before it began.
    """
    while not training.done():
        folder.status.set("orchestrator", "done")
        await asyncio.wait({training}, timeout=TELL_SECONDS)
    training.result()
