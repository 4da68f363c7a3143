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
    """Target: `create() -> AttentionKernel`, or `AttentionPasses` where `features` has "lse".

    `features` are keys of `prl.contracts.FEATURES`. Empty `devices` and `dtypes` are no limit, 0 and () neither.
    `forward_only` are devices where it has no backward. `compute_capability` is the least of a CUDA device, (major,
    minor); `compute_capability_below` the first that is too new. `priority` orders what `auto` may choose, highest
    first; it counts for first-party plugins only.
    """

    kind: ClassVar[str] = "attention_kernel"
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    install: str = ""
    features: tuple[str, ...] = ()
    forward_only: tuple[str, ...] = ()
    head_size_max: int = 0
    head_size_multiple: int = 1
    compute_capability: tuple[int, ...] = ()
    compute_capability_below: tuple[int, ...] = ()
    priority: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentEntry(Record):
    """Target: `create(options) -> Environment`, or an `AgentEnvironment`; `needs` and `install` as for an engine."""

    kind: ClassVar[str] = "environment"
    options: str = ""
    needs: tuple[str, ...] = ()
    install: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkEntry(Record):
    """Target: `create(options) -> Sink`; `needs` and `install` as for an engine."""

    kind: ClassVar[str] = "sink"
    options: str = ""
    needs: tuple[str, ...] = ()
    install: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterEntry(Record):
    """Target: `create(options) -> RolloutFilter`."""

    kind: ClassVar[str] = "filter"
    options: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossEntry(Record):
    """Target: `create(options) -> Loss`; `streams` are the optional ones that it reads, such as "teacher_logprobs".

    `advantages` says whether it reads advantages: where it does not, rollouts need no siblings to be compared with.
    """

    kind: ClassVar[str] = "loss"
    options: str = ""
    streams: tuple[str, ...] = ()
    advantages: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutorEntry(Record):
    """Target: `create(options) -> RolloutExecutor`; `needs` and `install` as for an engine.

    `in_process` says that rollouts are played in the orchestrator's own process, where an embedded engine can be
    reached.
    """

    kind: ClassVar[str] = "executor"
    options: str = ""
    in_process: bool = False
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
