"""The metrics of a loss, added up over the rows of a step and the ranks of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from prl.contracts import LossResult
from prl.types import PluginError

Reduce = Callable[[Tensor, Literal["sum", "max"]], Tensor]
"""Adds a tensor up over ranks, or takes its maximum, and returns the result."""


class LossSums:
    """Sums and maxima of one step; nothing leaves the device before `metrics`."""

    def __init__(self) -> None:
        self._means: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}

    def add(self, result: LossResult) -> None:
        """Add a row's metrics; raise `PluginError` where their names differ from the rows' before."""
        self._check_names(result)
        device = result.loss.device
        for name, (total, number) in result.means.items():
            pair = torch.stack([_scalar(total, device), _scalar(number, device)])
            self._means[name] = self._means[name] + pair if name in self._means else pair
        for name, value in result.maxima.items():
            new = _scalar(value, device)
            self._maxima[name] = torch.maximum(self._maxima[name], new) if name in self._maxima else new

    def _check_names(self, result: LossResult) -> None:
        given = {*result.means, *result.maxima}
        known = {*self._means, *self._maxima}
        if known and given != known:
            raise PluginError(
                f"the loss gave the metrics {', '.join(sorted(given))} for one row and {', '.join(sorted(known))} "
                "for another",
                where="trainer.loss",
                next_step="give the same names for every row, one without targets too",
            )

    def reduce(self, reduce: Reduce) -> None:
        """Make the sums those of all ranks; each has added at least one row (one without targets will do)."""
        if self._means:
            together = reduce(torch.stack([self._means[name] for name in sorted(self._means)]), "sum")
            self._means = dict(zip(sorted(self._means), together, strict=True))
        if self._maxima:
            largest = reduce(torch.stack([self._maxima[name] for name in sorted(self._maxima)]), "max")
            self._maxima = dict(zip(sorted(self._maxima), largest, strict=True))

    def metrics(self) -> dict[str, float]:
        """Return the means (0 where nothing was counted) and the maxima."""
        if not self._means and not self._maxima:
            return {}
        # One transfer from the device, not one a metric.
        flat = torch.cat([*self._means.values(), *(value[None] for value in self._maxima.values())]).tolist()
        totals = dict(zip(self._means, zip(flat[0::2], flat[1::2], strict=False), strict=False))
        means = {name: total / number if number else 0.0 for name, (total, number) in totals.items()}
        return means | dict(zip(self._maxima, flat[2 * len(means) :], strict=True))


def _scalar(value: Tensor | float, device: torch.device) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=device).detach()
