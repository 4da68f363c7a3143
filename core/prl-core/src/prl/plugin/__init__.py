"""The plugin system: records, hooks, discovery, registry. pluggy lives only here."""

from .auto import RendererMismatchWarning, resolve_renderer, template_sha256
from .discovery import FoundPlugin, discover
from .hookspecs import hookimpl, hookspec
from .known import is_first_party
from .process import configure_registry, get_registry, reset_registry
from .records import (
    AttentionEntry,
    CheckEntry,
    ClientModeEntry,
    CommandEntry,
    EngineEntry,
    EnvironmentEntry,
    ExecutorEntry,
    FilterEntry,
    LossEntry,
    ReasoningParserEntry,
    Record,
    RendererEntry,
    SinkEntry,
    ToolParserEntry,
)
from .registry import Conflict, Registry
from .settings import PluginSettings
from .snapshot import Snapshot, compare_snapshots, read_snapshot, save_snapshot, take_snapshot
from .state import Outcome, PluginRow, Status
from .targets import build_options, check_needs, create, load_target, missing_needs, required_options

__all__ = [
    "AttentionEntry",
    "CheckEntry",
    "ClientModeEntry",
    "CommandEntry",
    "Conflict",
    "EngineEntry",
    "EnvironmentEntry",
    "ExecutorEntry",
    "FilterEntry",
    "FoundPlugin",
    "LossEntry",
    "Outcome",
    "PluginRow",
    "PluginSettings",
    "ReasoningParserEntry",
    "Record",
    "Registry",
    "RendererEntry",
    "RendererMismatchWarning",
    "SinkEntry",
    "Snapshot",
    "Status",
    "ToolParserEntry",
    "build_options",
    "check_needs",
    "compare_snapshots",
    "configure_registry",
    "create",
    "discover",
    "get_registry",
    "hookimpl",
    "hookspec",
    "is_first_party",
    "load_target",
    "missing_needs",
    "read_snapshot",
    "required_options",
    "reset_registry",
    "resolve_renderer",
    "save_snapshot",
    "take_snapshot",
    "template_sha256",
]
