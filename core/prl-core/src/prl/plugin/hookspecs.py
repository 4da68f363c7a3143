"""The hooks. A plugin module implements those it needs with `@hookimpl`; each takes nothing and returns records."""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

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
    RendererEntry,
    SinkEntry,
    ToolParserEntry,
)

PROJECT = "prl"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def prl_renderers() -> Iterable[RendererEntry]:  # type: ignore[empty-body]
    """Offer renderers. Called once per process, after the plugin's light module was imported."""


@hookspec
def prl_tool_parsers() -> Iterable[ToolParserEntry]:  # type: ignore[empty-body]
    """Offer tool-call codecs, used by renderers and by the Jinja fallback (`tool_parser="name"`)."""


@hookspec
def prl_reasoning_parsers() -> Iterable[ReasoningParserEntry]:  # type: ignore[empty-body]
    """Offer reasoning codecs, used by the Jinja fallback (`reasoning_parser="name"`)."""


@hookspec
def prl_client_modes() -> Iterable[ClientModeEntry]:  # type: ignore[empty-body]
    """Offer ways for a prompt to reach an engine (`client_mode = "name"`)."""


@hookspec
def prl_engines() -> Iterable[EngineEntry]:  # type: ignore[empty-body]
    """Offer engines (`prl serve --engine name`, `[engine] kind = "name"`)."""


@hookspec
def prl_attention_kernels() -> Iterable[AttentionEntry]:  # type: ignore[empty-body]
    """Offer attention kernels for the trainer (`attention = "name"`)."""


@hookspec
def prl_environments() -> Iterable[EnvironmentEntry]:  # type: ignore[empty-body]
    """Offer environments (`[[environments]] name = "name"`)."""


@hookspec
def prl_sinks() -> Iterable[SinkEntry]:  # type: ignore[empty-body]
    """Offer sinks for metrics and rollouts (`sinks = ["name"]`)."""


@hookspec
def prl_filters() -> Iterable[FilterEntry]:  # type: ignore[empty-body]
    """Offer filters of finished rollouts (`[[filters]] name = "name"`)."""


@hookspec
def prl_losses() -> Iterable[LossEntry]:  # type: ignore[empty-body]
    """Offer losses for the trainer (`[trainer.loss] name = "name"`)."""


@hookspec
def prl_executors() -> Iterable[ExecutorEntry]:  # type: ignore[empty-body]
    """Offer places where rollouts are played (`executor = "name"`)."""


@hookspec
def prl_commands() -> Iterable[CommandEntry]:  # type: ignore[empty-body]
    """Offer commands (`prl name`). The target's signature is the command line."""


@hookspec
def prl_checks() -> Iterable[CheckEntry]:  # type: ignore[empty-body]
    """Offer checks for `prl doctor`."""
