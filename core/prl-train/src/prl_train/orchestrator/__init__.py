"""The orchestrator: tasks to rollouts, rollouts to groups, groups to batches, and weights back to the engine."""

from .loop import Orchestrator
from .play import RolloutPlayer
from .schedule import Schedule, WeightedEnvironment

__all__ = ["Orchestrator", "RolloutPlayer", "Schedule", "WeightedEnvironment"]
