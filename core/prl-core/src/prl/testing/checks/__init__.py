"""The checks of the conformance kit: plain functions that raise `CheckFailed`, by kind of plugin."""

from . import (
    attention,
    bridging,
    client_modes,
    environments,
    inputs,
    losses,
    masks,
    oracle,
    parsing,
    processes,
    reasoning_codecs,
    rendering,
    tokens,
    tool_codecs,
)
from .attention import AttentionSubject
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
from .client_modes import ClientModeSubject
from .environments import EnvironmentSubject
from .losses import LossSubject
from .reasoning_codecs import ReasoningCodecSubject
from .renderer_subject import Oracle, RendererSubject
from .tool_codecs import ToolCodecSubject

__all__ = [
    "AttentionSubject",
    "Check",
    "CheckFailed",
    "CheckResult",
    "ClientModeSubject",
    "EnvironmentSubject",
    "LossSubject",
    "NotApplicable",
    "Oracle",
    "ReasoningCodecSubject",
    "RendererSubject",
    "ToolCodecSubject",
    "Verdict",
    "attention",
    "bridging",
    "check",
    "checks_of",
    "client_modes",
    "environments",
    "expect",
    "inputs",
    "losses",
    "masks",
    "oracle",
    "parsing",
    "processes",
    "reasoning_codecs",
    "rendering",
    "run_check",
    "tokens",
    "tool_codecs",
]
