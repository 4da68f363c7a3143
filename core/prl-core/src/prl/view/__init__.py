"""Rollouts and samples token by token: owners, masks, log-probabilities, breaks; in a terminal or as one HTML page."""

from .build import view_trajectory
from .diff import Difference, DiffView, TemplateDiff
from .owners import Owned
from .tokens import UNKNOWN_OWNER, RolloutView, SampleView, TokenView, TurnRange, mask_letters

__all__ = [
    "UNKNOWN_OWNER",
    "DiffView",
    "Difference",
    "Owned",
    "RolloutView",
    "SampleView",
    "TemplateDiff",
    "TokenView",
    "TurnRange",
    "mask_letters",
    "view_trajectory",
]
