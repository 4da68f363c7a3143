"""Whether the weights that vLLM holds are known."""

from __future__ import annotations

from prl_engine_vllm.errors import WeightsUndefinedError


class WeightState:
    """Known weights, or the reason why they are not."""

    def __init__(self) -> None:
        self.problem: str | None = None

    def check(self) -> None:
        """Raise `WeightsUndefinedError` after a load that failed half way."""
        if self.problem is not None:
            raise WeightsUndefinedError(
                f"the weights are undefined: {self.problem}",
                where="an earlier POST /v1/weights",
                next_step="load a complete weights directory, or start the server again",
            )
