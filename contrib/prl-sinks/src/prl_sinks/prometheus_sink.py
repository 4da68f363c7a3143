"""The sink `prometheus`.

Metric `reward/min` is the gauge `prl_reward_min`. What follows `env/`, `eval/` or `breaks/` is data, not a name: such
metrics share one gauge and carry it as a label, so that an alert is written once for all environments.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, start_http_server, write_to_textfile

from prl.types import Rollout

from .options import PrometheusOptions

_NO_NAME = re.compile(r"[^a-zA-Z0-9_]+")
_LABELLED = {"env": "environment", "eval": "evaluation", "breaks": "cause"}


class PrometheusSink:
    """Gauges of the newest step, and the time it was reported at."""

    def __init__(self, options: PrometheusOptions) -> None:
        self._options = options
        self._registry = CollectorRegistry()
        self._gauges: dict[str, Any] = {}
        self._server: Any = None
        self._newest = 0

    @property
    def port(self) -> int | None:
        """The port that is listened on."""
        return None if self._server is None else int(self._server.server_port)

    def open(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Begin to serve."""
        if self._options.port is not None:
            self._server, _ = start_http_server(self._options.port, self._options.host, self._registry)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Set the gauges."""
        for name, value in values.items():
            self._set(*gauge_name(name), value)
        self._newest = max(step, self._newest)  # a late evaluation has an earlier step
        self._set("prl_step", {}, float(self._newest))
        self._set("prl_step_time_seconds", {}, time.time())
        if self._options.textfile is not None:
            write_to_textfile(str(self._options.textfile), self._registry)

    def rollouts(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Serve no rollouts: they stay in the run folder."""

    def close(self) -> None:
        """Stop serving; a textfile stays, with the last step's time in it."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _set(self, name: str, labels: Mapping[str, str], value: float) -> None:
        every = {**self._options.labels, **labels}
        gauge = self._gauges.get(name)
        if gauge is None:
            gauge = self._gauges[name] = Gauge(name, "of the newest step", sorted(every), registry=self._registry)
        (gauge.labels(**every) if every else gauge).set(value)


def gauge_name(metric: str) -> tuple[str, dict[str, str]]:
    """Return a metric's gauge and labels: `env/game/reward` is `prl_env_reward{environment="game"}`."""
    words: list[str] = []
    labels: dict[str, str] = {}
    parts = iter(metric.split("/"))
    for part in parts:
        words.append(part)
        label = _LABELLED.get(part)
        value = next(parts, None) if label is not None else None
        if label is not None and value is not None:
            labels[label] = value
            # `breaks` is also a metric of its own, and one gauge has one set of labels.
            words[-1] = f"{part}_by_{label}" if label == "cause" else part
    return "prl_" + _NO_NAME.sub("_", "_".join(words)).strip("_"), labels


def create(options: PrometheusOptions) -> PrometheusSink:
    """Create the sink."""
    return PrometheusSink(options)
