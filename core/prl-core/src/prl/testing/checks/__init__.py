"""The checks of the conformance kit: plain functions that raise `CheckFailed`, by kind of plugin."""

from . import bridging, inputs, masks, oracle, parsing, processes, rendering, tokens
from .check import (
    Check,
    CheckFailed,
    CheckResult,
    NotApplicable,
    Verdict,
    check,
    checks_of,
    expect,
    run_check,
)
from .renderer_subject import RendererSubject

__all__ = [
    "Check",
    "CheckFailed",
    "CheckResult",
    "NotApplicable",
    "RendererSubject",
    "Verdict",
    "bridging",
    "check",
    "checks_of",
    "expect",
    "inputs",
    "masks",
    "oracle",
    "parsing",
    "processes",
    "rendering",
    "run_check",
    "tokens",
]
