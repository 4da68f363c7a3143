"""The supervised loss."""

from __future__ import annotations

import torch
from torch import Tensor


def cross_entropy_loss(logprobs: Tensor, loss_mask: Tensor, denominator: float) -> Tensor:
    """Return `-sum(logprobs[mask]) / denominator`; both inputs [N], the denominator counted over the whole step."""
    zero = torch.zeros_like(logprobs)  # not a product: 0 * inf at a token that is no target would be nan
    return -torch.where(loss_mask, logprobs, zero).sum() / denominator
