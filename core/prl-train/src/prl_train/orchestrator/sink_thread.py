"""A thread for each sink of others: one that is slow, hangs or fails costs its own records, never the run's time."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prl.contracts import Sink
from prl.types import Rollout

ROWS = 1024
"""Records of metrics that wait for a sink; some kilobytes each."""
ROLLOUTS = 4
"""Steps whose rollouts wait for a sink; they may be gigabytes."""


class SinkThread:
    """Serves one sink in order. What it does not take in time is left out, counted, and told once.

    `failure` says why the sink was switched off, where it was.
    """

    def __init__(self, name: str, sink: Sink) -> None:
        self.name = name
        self.failure: str | None = None
        self.left_out = 0
        self._sink = sink
        self._calls: deque[tuple[str, Callable[[], None]]] = deque()
        self._change = threading.Condition()
        self._ended = False
        # A daemon: a sink that never comes back must not keep the process from ending.
        self._thread = threading.Thread(target=self._serve, name=f"prl-sink-{name}", daemon=True)

    def open(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin to serve."""
        self._give("open", lambda: self._sink.open(run_dir, config), room=1)
        self._thread.start()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Have the sink take one step's metrics."""
        self._give("metrics", lambda: self._sink.metrics(step, values), room=ROWS)

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Have the sink take one step's rollouts."""
        self._give("rollouts", lambda: self._sink.rollouts(step, rollouts), room=ROLLOUTS)

    def end(self) -> None:
        """Have the sink end once it took what waits."""
        with self._change:
            self._calls.append(("close", self._sink.close))
            self._ended = True
            self._change.notify()

    def join(self, seconds: float) -> None:
        """Wait for the end; after `seconds` leave the sink behind, and say what it did not take."""
        if self._thread.ident is not None:
            self._thread.join(seconds)
        with self._change:
            waiting = sum(kind != "close" for kind, _ in self._calls)
        if self._thread.is_alive():
            self._tell(f"does not end and is left behind; {waiting + self.left_out} records did not get there")
        elif self.left_out:
            self._tell(f"was too slow: {self.left_out} records did not get there; metrics.jsonl has them all")

    def _give(self, kind: str, call: Callable[[], None], *, room: int) -> None:
        with self._change:
            if self.failure is not None or self._ended:
                return
            if sum(waiting == kind for waiting, _ in self._calls) < room:
                self._calls.append((kind, call))
                self._change.notify()
                return
            self.left_out += 1
            first = self.left_out == 1
        if first:
            self._tell(f"does not keep up ({room} records of {kind} wait); what it misses is left out")

    def _serve(self) -> None:
        while self.failure is None:
            with self._change:
                self._change.wait_for(lambda: bool(self._calls))
                kind, call = self._calls.popleft()
            try:
                call()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a sink is third-party code and must never stop a run
                self._switch_off(error)
            if kind == "close":
                return

    def _switch_off(self, error: BaseException) -> None:
        with self._change:
            self.failure = f"{type(error).__name__}: {error}"
            self._calls.clear()
        self._tell(f"failed and is switched off: {self.failure}")

    def _tell(self, text: str) -> None:
        print(f"prl: sink {self.name!r} {text}", file=sys.stderr)
