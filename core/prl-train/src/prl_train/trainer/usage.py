"""What a step cost: seconds, tokens a second, and the peak of memory."""

from __future__ import annotations

import resource
import sys
import time

import torch

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Usage:
    """Measures from its making to `metrics`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._started = time.perf_counter()

    def metrics(self, tokens: int) -> dict[str, float]:
        """Return `seconds`, `tokens_per_second` (of all processes) and `memory_gb`.

        The last is this process's peak: on a GPU of the step's tensors, on a CPU of everything since the process began.
        """
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            peak = torch.cuda.max_memory_allocated(self._device)
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
        seconds = time.perf_counter() - self._started
        return {"seconds": seconds, "tokens_per_second": tokens / seconds, "memory_gb": peak / 1e9}
