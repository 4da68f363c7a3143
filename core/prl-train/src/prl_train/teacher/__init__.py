"""External teachers: rollouts that another model plays, and its log-probabilities of ours."""

from __future__ import annotations

from .config import TeacherLogprobsSection, TeacherRolloutsSection, TeacherSection

__all__ = ["TeacherLogprobsSection", "TeacherRolloutsSection", "TeacherSection"]
