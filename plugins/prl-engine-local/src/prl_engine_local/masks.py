"""Attention masks by position, for the layer types this engine can serve."""

from __future__ import annotations

from typing import Any

import torch

from prl.types import ConfigError

FULL = "full_attention"
SLIDING = "sliding_attention"


class MaskBuilder:
    """Builds the additive mask of one forward pass, in the form the model's layers read."""

    def __init__(self, config: Any, dtype: torch.dtype) -> None:
        text = config.get_text_config()
        kinds = list(dict.fromkeys(getattr(text, "layer_types", None) or ()))
        unknown = [kind for kind in kinds if kind not in (FULL, SLIDING)]
        if unknown:
            raise ConfigError(
                f"the local engine cannot cache layers of type {', '.join(map(repr, unknown))}",
                where=f"layer_types of the model's config ({text.model_type})",
                next_step="serve this model with another engine, such as vLLM",
            )
        window = getattr(text, "sliding_window", None)
        if not kinds:
            kinds = [SLIDING if window else FULL]
        self._kinds = kinds
        self._window = int(window) if window else 0
        self._dtype = dtype
        self._lowest = torch.finfo(dtype).min

    def build(self, positions: torch.Tensor, visible: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return masks [rows, 1, new, visible] for new tokens at `positions` [rows, new]; 0 is seen."""
        masks = {kind: self._mask(kind, positions, visible) for kind in self._kinds}
        return next(iter(masks.values())) if len(masks) == 1 else masks

    def _mask(self, kind: str, positions: torch.Tensor, visible: int) -> torch.Tensor:
        index = torch.arange(visible, device=positions.device)
        query = positions[:, None, :, None]
        hidden = index > query
        if kind == SLIDING and self._window:
            hidden = hidden | (index <= query - self._window)
        return torch.zeros(hidden.shape, dtype=self._dtype, device=positions.device).masked_fill_(hidden, self._lowest)
