"""The engine's worker thread: requests join and leave between decode steps, weights change between requests."""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from prl.serving.errors import EngineFailedError, NotFiniteError
from prl.types import UNPUBLISHED, EngineError, RequestAbortedError

from .batch import Batch
from .options import LocalEngineOptions
from .runner import ModelRunner
from .sequence import Job, Sequence

HEADROOM = 32  # tokens a newcomer must have before the cache's budget could force someone out


@dataclass(slots=True)
class Counters:
    """What the worker has done since it started."""

    steps: int = 0
    sampled_tokens: int = 0
    prefilled_sequences: int = 0
    largest_batch: int = 0
    preempted: int = 0
    aborted: int = 0


class Scheduler:
    """Owns the running batch. `submit`, `load` and `stop` may be called from any thread."""

    def __init__(self, runner: ModelRunner, options: LocalEngineOptions, context: int) -> None:
        self.counters = Counters()
        self.weight_version = UNPUBLISHED
        self._batch = Batch(runner, options.prefill_tokens)
        self._max_rows = options.max_batch_size
        self._budget = max(options.max_batch_tokens, context)
        self._window = options.admission_window_ms / 1000
        self._changed = threading.Condition()
        self._incoming: list[Job] = []
        self._loads: deque[tuple[Callable[[], None], int, Future[int]]] = deque()
        self._stopping = False
        self._end: EngineError | None = None
        self._waiting: list[tuple[int, int, Job]] = []
        self._ready: deque[Sequence] = deque()
        self._started: dict[int, Job] = {}
        self._thread = threading.Thread(target=self._run, name="prl-engine-local", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job; its future gets the answer, or an `EngineError`."""
        with self._changed:
            if self._end is not None:
                raise self._end
            self._incoming.append(job)
            self._changed.notify()

    def load(self, apply: Callable[[], None], version: int) -> Future[int]:
        """Call `apply` in the worker once no started request is unfinished; later requests carry `version`."""
        future: Future[int] = Future()
        with self._changed:
            if self._end is not None:
                raise self._end
            self._loads.append((apply, version, future))
            self._changed.notify()
        return future

    def stop(self) -> None:
        """Abort everything and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def check_alive(self) -> None:
        """Raise what ended the worker thread, if it has ended."""
        if self._end is not None:
            raise self._end

    def queue_sizes(self) -> tuple[int, int]:
        """Return (running sequences, waiting requests and sequences)."""
        return len(self._batch), len(self._incoming) + len(self._waiting) + len(self._ready)

    def _run(self) -> None:
        end: EngineError = EngineFailedError(
            "the engine's worker thread ended unexpectedly",
            where="the local engine",
            next_step="read the traceback above and restart the engine",
        )
        try:
            with torch.inference_mode():
                while self._take_work():
                    self._turn()
            end = RequestAbortedError("the engine was stopped", where="the local engine", next_step="start it again")
        finally:
            self._finish_all(end)

    def _take_work(self) -> bool:
        """Wait until there is something to do; return False when the engine stops."""
        with self._changed:
            idle = not self._is_busy() and not self._incoming
            while not (self._stopping or self._incoming or self._loads or self._is_busy()):
                self._changed.wait()
            if self._stopping:
                return False
        if idle and self._window:
            time.sleep(self._window)
        with self._changed:
            incoming, self._incoming = self._incoming, []
        for job in incoming:
            heapq.heappush(self._waiting, (job.request.priority, job.order, job))
        return True

    def _is_busy(self) -> bool:
        return bool(len(self._batch) or self._ready or self._waiting)

    def _turn(self) -> None:
        self._drop_cancelled()
        if self._loads and not self._started:
            self._apply_loads()
        try:
            self._admit()
            if len(self._batch):
                self._step()
        except RuntimeError as error:  # torch: out of memory, a failed kernel; the requests fail, the engine lives
            self._fail_started(error)

    def _drop_cancelled(self) -> None:
        cancelled = [job for job in self._started.values() if job.future.cancelled()]
        for job in cancelled:
            self._forget(job)
        kept = [entry for entry in self._waiting if not entry[2].future.cancelled()]
        self.counters.aborted += len(cancelled) + len(self._waiting) - len(kept)
        if len(kept) < len(self._waiting):
            heapq.heapify(kept)
            self._waiting = kept

    def _apply_loads(self) -> None:
        while self._loads:
            apply, version, future = self._loads[0]
            apply()
            self._loads.popleft()
            self.weight_version = version
            if future.set_running_or_notify_cancel():
                future.set_result(version)

    def _admit(self) -> None:
        new: list[Sequence] = []
        longest = self._batch.longest
        while len(self._batch) + len(new) < self._max_rows:
            sequence = self._next()
            if sequence is None:
                break
            rows = len(self._batch) + len(new) + 1
            length = max(longest, min(sequence.limit, len(sequence.tokens) + HEADROOM))
            if rows > 1 and rows * length > self._budget:
                self._ready.appendleft(sequence)
                break
            longest = length
            new.append(sequence)
        if new:
            self._batch.add(new)
            self.counters.prefilled_sequences += len(new)
            self.counters.largest_batch = max(self.counters.largest_batch, len(self._batch))

    def _next(self) -> Sequence | None:
        """Return the next sequence to run; no new request starts while weights wait to be loaded."""
        if not self._ready and self._waiting and not self._loads:
            job = heapq.heappop(self._waiting)[2]
            job.weight_version = self.weight_version
            self._started[job.order] = job
            self._ready.extend(job.sequences)
        return self._ready.popleft() if self._ready else None

    def _step(self) -> None:
        while len(self._batch) > 1 and len(self._batch) * self._batch.longest > self._budget:
            self._preempt()
        broken = self._batch.step()
        self.counters.steps += 1
        self.counters.sampled_tokens += len(self._batch) - len(broken)
        for job in {sequence.job.order: sequence.job for sequence in broken}.values():
            self._fail(job, _not_finite(job))
        ended = [sequence for sequence in self._batch.sequences if sequence.finish_reason]
        self._batch.remove(ended)
        for job in {sequence.job.order: sequence.job for sequence in ended}.values():
            if job.is_finished:
                self._complete(job)

    def _preempt(self) -> None:
        """Send the youngest sequence back to the queue; it goes on from its tokens when there is room."""
        youngest = max(self._batch.sequences, key=lambda s: (s.job.request.priority, s.job.order))
        self._batch.remove([youngest])
        self._ready.append(youngest)
        self.counters.preempted += 1

    def _complete(self, job: Job) -> None:
        self._started.pop(job.order, None)
        if job.future.set_running_or_notify_cancel():
            job.future.set_result(job.response())

    def _fail(self, job: Job, error: EngineError) -> None:
        self._forget(job)
        if job.future.set_running_or_notify_cancel():
            job.future.set_exception(error)

    def _forget(self, job: Job) -> None:
        self._started.pop(job.order, None)
        self._batch.remove(job.sequences)
        if any(sequence.job is job for sequence in self._ready):
            self._ready = deque(sequence for sequence in self._ready if sequence.job is not job)

    def _fail_started(self, error: RuntimeError) -> None:
        jobs = list(self._started.values())
        self._batch.clear()
        for job in jobs:
            self._fail(
                job,
                EngineFailedError(
                    f"the forward pass failed: {error}",
                    where=f"a batch of {len(jobs)} requests in the local engine",
                    next_step="lower max_batch_size, max_batch_tokens or prefill_tokens if memory ran out",
                ),
            )

    def _finish_all(self, end: EngineError) -> None:
        with self._changed:
            self._end = end
            jobs = [*self._started.values(), *(entry[2] for entry in self._waiting), *self._incoming]
            futures: list[Future[Any]] = [job.future for job in jobs]
            futures += [load[2] for load in self._loads]
            self._incoming, self._waiting = [], []
            self._loads.clear()
        self._ready.clear()
        self._started.clear()
        self._batch.clear()
        for future in futures:
            if future.set_running_or_notify_cancel():
                future.set_exception(end)


def _not_finite(job: Job) -> NotFiniteError:
    return NotFiniteError(
        "the model gave a log-probability that is not finite",
        where=f"weight version {job.weight_version}, after {len(job.request.prompt_token_ids)} prompt tokens",
        next_step="check the published weights; this request has no answer",
    )
