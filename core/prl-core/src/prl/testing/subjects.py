"""Build what is checked from a record: the plugin's own target, on a byte tokenizer or on one that is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from prl.contracts import AgentEnvironment, EngineClient, Environment, Renderer
from prl.plugin import (
    AttentionEntry,
    ClientModeEntry,
    EnvironmentEntry,
    LossEntry,
    ReasoningParserEntry,
    Record,
    RendererEntry,
    ToolParserEntry,
    build_options,
    load_target,
    required_options,
)
from prl.tokenizer import Tokenizer, as_tokenizer
from prl.types import PrlError

from .byte_tokenizer import ByteTokenizer
from .checks import (
    AttentionSubject,
    Check,
    CheckResult,
    ClientModeSubject,
    EnvironmentSubject,
    LossSubject,
    NotApplicable,
    ReasoningCodecSubject,
    RendererSubject,
    ToolCodecSubject,
    Verdict,
    checks_of,
    run_check,
)
from .checks.check import Subject

Build = Callable[[Any, Tokenizer | None], Subject]
_builders: dict[str, Build] = {}


def subject_of(record: Record, tokenizer: Tokenizer | None = None) -> Subject:
    """Build the subject of a record; raise `NotApplicable` where its kind has no checks or it needs a tokenizer."""
    build = _builders.get(record.kind)
    if build is None:
        raise NotApplicable(f"there are no checks for a {record.kind.replace('_', ' ')}")
    return build(record, tokenizer)


def check_record(record: Record, tokenizer: Tokenizer | None = None) -> list[CheckResult]:
    """Run every check of a record's kind. What cannot be built is one failed result, with the reason."""
    try:
        subject = subject_of(record, tokenizer)
    except NotApplicable as reason:
        return [CheckResult(Check(record.kind, "all", "", _nothing), Verdict.SKIP, str(reason))]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the plugin's own code runs here, and its fault is what is asked for
        finding = str(error) if isinstance(error, PrlError) else f"{type(error).__name__}: {error}"
        unusable = Check(record.kind, "can_be_created", "The plugin cannot be used at all.", _nothing)
        return [CheckResult(unusable, Verdict.FAIL, finding)]
    return [run_check(one, subject) for one in checks_of(record.kind)]


def _nothing(_: Subject) -> None:
    """Stand for the run of a check that was never reached."""


def create_from(record: Record, *arguments: Any, **options: Any) -> Any:
    """Call a record's target with the arguments and its checked options."""
    return load_target(record)(*arguments, build_options(record, options))


def _builds(record: type[Record]) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        _builders[record.kind] = build
        return build

    return register


@_builds(RendererEntry)
def _renderer(record: RendererEntry, given: Tokenizer | None) -> RendererSubject:
    if given is None and not record.control_tokens:
        raise NotApplicable(f"{record.name!r} names no control tokens to make a tokenizer of: give --tokenizer DIR")
    tokenizer = given or as_tokenizer(ByteTokenizer(record.control_tokens))

    def make(**options: Any) -> Renderer:
        return cast(Renderer, create_from(record, tokenizer, **options))

    subject = RendererSubject(
        name=record.name,
        make=make,
        tokenizer=tokenizer,
        control_tokens=record.control_tokens,
        make_on=lambda other: cast(Renderer, create_from(record, other)),
        installed=record.name if given is None else None,
        templates=record.templates,
    )
    _ = subject.renderer  # made now: a plugin that cannot be created has nothing to check
    return subject


@_builds(ToolParserEntry)
def _tool_parser(record: ToolParserEntry, given: Tokenizer | None) -> ToolCodecSubject:
    return ToolCodecSubject(record.name, create_from(record))


@_builds(ReasoningParserEntry)
def _reasoning_parser(record: ReasoningParserEntry, given: Tokenizer | None) -> ReasoningCodecSubject:
    return ReasoningCodecSubject(record.name, create_from(record))


@_builds(EnvironmentEntry)
def _environment(record: EnvironmentEntry, given: Tokenizer | None) -> EnvironmentSubject:
    needed = required_options(record)
    if needed:
        raise NotApplicable(f"{record.name!r} cannot be made without options: {', '.join(needed)}")
    environment = create_from(record)
    if isinstance(environment, AgentEnvironment):
        raise NotApplicable(f"{record.name!r} runs an agent, which needs a model to talk to: check it in a run")
    return EnvironmentSubject(record.name, cast(Environment, environment))


@_builds(ClientModeEntry)
def _client_mode(record: ClientModeEntry, given: Tokenizer | None) -> ClientModeSubject:
    def make(engine: EngineClient, renderer: Renderer) -> Any:
        return create_from(record, engine, renderer if record.needs_renderer else None)

    return ClientModeSubject(record.name, make)


@_builds(AttentionEntry)
def _attention_kernel(record: AttentionEntry, given: Tokenizer | None) -> AttentionSubject:
    if record.devices and "cpu" not in record.devices:
        raise NotApplicable(f"{record.name!r} runs on {', '.join(record.devices)}: check it there with AttentionSuite")
    dtype = "float32" if "float32" in (record.dtypes or ("float32",)) else record.dtypes[0]
    return AttentionSubject(
        record.name,
        load_target(record)(),
        features=record.features,
        dtype=dtype,
        has_backward="cpu" not in record.forward_only,
    )


@_builds(LossEntry)
def _loss(record: LossEntry, given: Tokenizer | None) -> LossSubject:
    return LossSubject(record.name, create_from(record), streams=record.streams, advantages=record.advantages)
