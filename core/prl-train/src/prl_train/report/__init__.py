"""The report: one self-contained HTML file of a run."""

from .build import build_report, write_report
from .summary import Summary, summarise

__all__ = ["Summary", "build_report", "summarise", "write_report"]
