"""Rollouts to training samples: interleave turns, and say why a sample had to be started anew."""

from .causes import Divergence, classify_break
from .interleave import InterleaveResult, interleave_rollout
from .routed import align_routed_experts

__all__ = ["Divergence", "InterleaveResult", "align_routed_experts", "classify_break", "interleave_rollout"]
