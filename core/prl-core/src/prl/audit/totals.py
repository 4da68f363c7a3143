"""Sums over all rollouts; they take the same memory for one rollout and for a million."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .audit import Audited
from .breaks import Joined


@dataclass
class ModeTotals:
    """One client mode's sums. `simulated` counts the breaks in completions whose ids are simulated."""

    rollouts: int = 0
    turns: int = 0
    samples: int = 0
    tokens: int = 0
    ideal: int = 0
    simulated: int = 0
    causes: Counter[str] = field(default_factory=Counter)

    def add(self, audited: Audited, joined: Joined) -> None:
        """Count one rollout."""
        self.rollouts += 1
        self.turns += audited.turns
        self.samples += joined.samples
        self.tokens += joined.tokens
        self.ideal += audited.ideal
        self.causes.update(one.cause for one in joined.breaks)
        self.simulated += sum(one.simulated for one in joined.breaks)

    @property
    def breaks(self) -> int:
        """All breaks."""
        return sum(self.causes.values())

    @property
    def samples_per_rollout(self) -> float:
        """Training samples per rollout; 1.0 is the ideal."""
        return self.samples / self.rollouts

    @property
    def cost(self) -> float:
        """Tokens in training samples against those of one sample that holds every message once."""
        return self.tokens / self.ideal if self.ideal else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON-ready data."""
        return {
            "rollouts": self.rollouts,
            "turns": self.turns,
            "breaks": self.breaks,
            "breaks_simulated": self.simulated,
            "causes": dict(self.causes.most_common()),
            "samples": self.samples,
            "samples_per_rollout": round(self.samples_per_rollout, 4),
            "tokens": self.tokens,
            "ideal_tokens": self.ideal,
            "cost": round(self.cost, 4),
        }


@dataclass
class Totals:
    """Sums over all rollouts, by client mode; `skipped` are lines that could not be read or rendered."""

    rollouts: int = 0
    skipped: int = 0
    ids: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    modes: dict[str, ModeTotals] = field(default_factory=dict)

    def add(self, audited: Audited) -> None:
        """Count one rollout."""
        self.rollouts += 1
        self.ids[audited.ids] += 1
        self.notes.update(note.split(" at t")[0].rstrip(",") for note in set(audited.notes))
        for mode, joined in audited.modes.items():
            self.modes.setdefault(mode, ModeTotals()).add(audited, joined)

    @property
    def breaks(self) -> int:
        """All breaks of all modes."""
        return sum(mode.breaks for mode in self.modes.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON-ready data."""
        return {
            "rollouts": self.rollouts,
            "skipped": self.skipped,
            "ids": dict(self.ids),
            "notes": dict(self.notes),
            "modes": {mode: sums.to_dict() for mode, sums in self.modes.items()},
        }
