"""Records: the frozen, keyword-only values that hooks return to offer names. They import nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Offer `name`, found at `target` ("module:attribute", imported on first use).

    `summary` is one line for `prl plugins list`. `options`, where a kind has it, is the "module:Class" of a pydantic
    model.
    """

    kind: ClassVar[str] = ""
    target: str
    name: str
    summary: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RendererEntry(Record):
    """Target: `create(tokenizer, options) -> Renderer`.

    `models` are exact model ids, `templates` sha256 sums of chat templates (UTF-8, LF) that this renderer equals,
    `control_tokens` what the tokenizer must have as single ids.
    """

    kind: ClassVar[str] = "renderer"
    options: str = ""
    models: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    control_tokens: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolParserEntry(Record):
    """Target: `create(options) -> ToolCodec`."""

    kind: ClassVar[str] = "tool_parser"
    options: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReasoningParserEntry(Record):
    """Target: `create(options) -> ReasoningCodec`."""

    kind: ClassVar[str] = "reasoning_parser"
    options: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientModeEntry(Record):
    """Target: `create(engine, renderer, options) -> ClientMode`; `route` is the HTTP route it uses.

    `needs_renderer` says whether a renderer must be given.
    """

    kind: ClassVar[str] = "client_mode"
    options: str = ""
    route: str = ""
    needs_renderer: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineEntry(Record):
    """Target: `create(options) -> Engine`; `needs` are importable modules, `install` the command that brings them."""

    kind: ClassVar[str] = "engine"
    options: str = ""
    needs: tuple[str, ...] = ()
    install: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionEntry(Record):
    """Target: an `AttentionKernel` factory; `features` among "window", "softmax_scale", "sinks", "lse", "gqa"."""

    kind: ClassVar[str] = "attention_kernel"
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    install: str = ""
    features: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentEntry(Record):
    """Target: `create(options) -> Environment`, or an `AgentEnvironment`."""

    kind: ClassVar[str] = "environment"
    options: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkEntry(Record):
    """Target: `create(options) -> Sink`."""

    kind: ClassVar[str] = "sink"
    options: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterEntry(Record):
    """Target: `create(options) -> RolloutFilter`."""

    kind: ClassVar[str] = "filter"
    options: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossEntry(Record):
    """Target: `create(options) -> Loss`; `needs` are streams that it reads, such as "teacher_logprobs"."""

    kind: ClassVar[str] = "loss"
    options: str = ""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutorEntry(Record):
    """Target: `create(options) -> RolloutExecutor`; `needs` and `install` as for an engine."""

    kind: ClassVar[str] = "executor"
    options: str = ""
    needs: tuple[str, ...] = ()
    install: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandEntry(Record):
    """Target: a plain typed function that becomes `prl NAME`; a name of two words is a verb in a group.

    `config` is the "module:Class" of the pydantic model of its config file, for `prl config show|schema NAME`.
    """

    kind: ClassVar[str] = "command"
    config: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckEntry(Record):
    """Target: `check() -> Iterable[tuple[status, text]]` for `prl doctor`; status is "ok", "warn" or "fail"."""

    kind: ClassVar[str] = "check"
