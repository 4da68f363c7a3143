"""Rollouts to training samples: interleave turns, and say why a sample had to be started anew."""

from .causes import Divergence, TurnSpan, classify_break, common_prefix
from .files import at_line, naming_line, read_trajectories, readable, trajectory_files
from .interleave import InterleaveResult, interleave_rollout
from .records import RecordedSample, RecordedTrajectory, RecordedTurn
from .routed import align_routed_experts
from .shapes import read_trajectory
from .unfold import SampledStretch, number_stretches

__all__ = [
    "Divergence",
    "InterleaveResult",
    "RecordedSample",
    "RecordedTrajectory",
    "RecordedTurn",
    "SampledStretch",
    "TurnSpan",
    "align_routed_experts",
    "at_line",
    "classify_break",
    "common_prefix",
    "interleave_rollout",
    "naming_line",
    "number_stretches",
    "read_trajectories",
    "read_trajectory",
    "readable",
    "trajectory_files",
]
