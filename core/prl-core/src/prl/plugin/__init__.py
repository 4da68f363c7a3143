"""The plugin system: records, hooks, discovery, registry. pluggy lives only here."""

from .hookspecs import hookimpl, hookspec
from .records import (
    AttentionEntry,
    CheckEntry,
    ClientModeEntry,
    CommandEntry,
    EngineEntry,
    EnvironmentEntry,
    ReasoningParserEntry,
    Record,
    RendererEntry,
    SinkEntry,
    ToolParserEntry,
)

__all__ = [
    "AttentionEntry",
    "CheckEntry",
    "ClientModeEntry",
    "CommandEntry",
    "EngineEntry",
    "EnvironmentEntry",
    "ReasoningParserEntry",
    "Record",
    "RendererEntry",
    "SinkEntry",
    "ToolParserEntry",
    "hookimpl",
    "hookspec",
]
