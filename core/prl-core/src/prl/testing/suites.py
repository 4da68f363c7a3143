"""pytest classes of the conformance kit: subclass one, name the plugin or give a fixture, get the tests.

A suite runs the checks that `prl plugins check` runs. A check that a vendor's own format cannot pass is declared by the
format itself, in `quirks` (name of the check -> why).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from prl.contracts import AttentionKernel, AttentionPasses, Environment, Loss, ReasoningCodec, Renderer, ToolCodec
from prl.plugin import RendererEntry, get_registry
from prl.tokenizer import Tokenizer, as_tokenizer

from .byte_tokenizer import ByteTokenizer
from .checks import (
    AttentionSubject,
    Check,
    ClientModeSubject,
    EnvironmentSubject,
    LossSubject,
    Oracle,
    ReasoningCodecSubject,
    RendererSubject,
    ToolCodecSubject,
    Verdict,
    checks_of,
    run_check,
)
from .checks.check import Subject
from .checks.client_modes import MakeMode
from .subjects import create_from

_byte_tokenizers: dict[tuple[str, ...], Tokenizer] = {}


def conform(one: Check, subject: Subject) -> None:
    """Run one check as a pytest test: a finding fails it, a declared quirk is an expected failure."""
    result = run_check(one, subject)
    if result.verdict is Verdict.SKIP:
        pytest.skip(result.finding)
    if result.verdict is Verdict.QUIRK:
        pytest.xfail(result.finding)
    if result.verdict is Verdict.FAIL:
        pytest.fail(f"{subject.name}: {result.finding}\n  matters because: {one.claim}", pytrace=False)


def _checks(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("check", checks_of(kind), ids=str)


class RendererSuite:
    """Check a renderer.

    Set `name` (an installed renderer; checked on a byte tokenizer made of its record's control tokens), or override the
    fixtures: `tokenizer`, and `make_renderer`, a function of options. `options` (or the fixture `renderer_options`) are
    those every renderer is made with. Override `oracle` to compare with a vendor's ids: (messages, tools,
    add_generation_prompt) -> ids, None where the vendor refuses. `golden` is a file of recorded ids;
    PRL_UPDATE_GOLDEN=1 writes it.
    """

    name: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any]] = {}
    golden: ClassVar[Path | None] = None

    @pytest.fixture
    def record(self) -> RendererEntry | None:
        """The installed renderer's record; None where the suite names none."""
        return get_registry().find(RendererEntry, self.name) if self.name else None

    @pytest.fixture
    def tokenizer(self, record: RendererEntry | None) -> Tokenizer:
        """The tokenizer to render on."""
        if record is None:
            pytest.fail("set `name` to an installed renderer, or override the fixtures tokenizer and make_renderer")
        if record.control_tokens not in _byte_tokenizers:
            _byte_tokenizers[record.control_tokens] = as_tokenizer(ByteTokenizer(record.control_tokens))
        return _byte_tokenizers[record.control_tokens]

    @pytest.fixture
    def make_renderer(self, record: RendererEntry | None, tokenizer: Tokenizer) -> Callable[..., Renderer]:
        """A function of options that builds the renderer."""
        return lambda **options: create_from(record, tokenizer, **options)  # type: ignore[arg-type]

    @pytest.fixture
    def renderer_options(self) -> Mapping[str, Any]:
        """The options that every renderer is made with."""
        return self.options

    @pytest.fixture
    def oracle(self) -> Oracle | None:
        """The vendor's own rendering, where there is one."""
        return None

    @pytest.fixture
    def subject(
        self,
        record: RendererEntry | None,
        tokenizer: Tokenizer,
        make_renderer: Callable[..., Renderer],
        renderer_options: Mapping[str, Any],
        oracle: Oracle | None,
    ) -> RendererSubject:
        """What the checks look at."""
        fixed = dict(renderer_options)
        if record is None:
            return RendererSubject(
                name=type(self).__name__,
                make=lambda **options: make_renderer(**{**fixed, **options}),
                tokenizer=tokenizer,
                oracle=oracle,
                golden=self.golden,
            )
        is_own = type(self).make_renderer is not RendererSuite.make_renderer
        on_bytes = tokenizer is _byte_tokenizers.get(record.control_tokens)
        return RendererSubject(
            name=record.name,
            make=lambda **options: make_renderer(**{**fixed, **options}),
            tokenizer=tokenizer,
            control_tokens=record.control_tokens,
            oracle=oracle,
            make_on=lambda other: create_from(record, other, **fixed),
            installed=record.name if on_bytes and not is_own else None,
            options=fixed,
            golden=self.golden,
            templates=record.templates,
        )

    @_checks("renderer")
    def test_conformance(self, check: Check, subject: RendererSubject) -> None:
        """Run one check of the kit."""
        conform(check, subject)


class ToolParserSuite:
    """Check a tool-call codec: override the fixture `codec`."""

    @pytest.fixture
    def codec(self) -> ToolCodec:
        """The codec to check."""
        pytest.fail("override the fixture codec")

    @_checks("tool_parser")
    def test_conformance(self, check: Check, codec: ToolCodec) -> None:
        """Run one check of the kit."""
        conform(check, ToolCodecSubject(type(codec).__name__, codec))


class ReasoningParserSuite:
    """Check a reasoning codec: override the fixture `codec`."""

    @pytest.fixture
    def codec(self) -> ReasoningCodec:
        """The codec to check."""
        pytest.fail("override the fixture codec")

    @_checks("reasoning_parser")
    def test_conformance(self, check: Check, codec: ReasoningCodec) -> None:
        """Run one check of the kit."""
        conform(check, ReasoningCodecSubject(type(codec).__name__, codec))


class EnvironmentSuite:
    """Check an environment: override the fixture `environment`."""

    @pytest.fixture
    def environment(self) -> Environment:
        """The environment to check."""
        pytest.fail("override the fixture environment")

    @_checks("environment")
    def test_conformance(self, check: Check, environment: Environment) -> None:
        """Run one check of the kit."""
        conform(check, EnvironmentSubject(type(environment).__name__, environment))


class ClientModeSuite:
    """Check a client mode: override the fixture `make_mode`, a function of an engine client and a renderer."""

    @pytest.fixture
    def make_mode(self) -> MakeMode:
        """A function that makes the mode."""
        pytest.fail("override the fixture make_mode")

    @_checks("client_mode")
    def test_conformance(self, check: Check, make_mode: MakeMode) -> None:
        """Run one check of the kit."""
        conform(check, ClientModeSubject(type(self).__name__, make_mode))


class AttentionSuite:
    """Check an attention kernel: override the fixture `kernel`, and name its record's features, device and dtype.

    `kernel` is what the record's target makes. `has_backward` is False where the record names the device in
    `forward_only`.
    """

    features: ClassVar[Collection[str]] = ()
    device: ClassVar[str] = "cpu"
    dtype: ClassVar[str] = "float32"
    has_backward: ClassVar[bool] = True
    quirks: ClassVar[Mapping[str, str]] = {}

    @pytest.fixture
    def kernel(self) -> AttentionKernel | AttentionPasses:
        """The kernel to check."""
        pytest.fail("override the fixture kernel")

    @_checks("attention_kernel")
    def test_conformance(self, check: Check, kernel: AttentionKernel | AttentionPasses) -> None:
        """Run one check of the kit."""
        subject = AttentionSubject(
            type(self).__name__,
            kernel,
            features=self.features,
            device=self.device,
            dtype=self.dtype,
            has_backward=self.has_backward,
            quirks=self.quirks,
        )
        conform(check, subject)


class LossSuite:
    """Check a loss: override the fixture `loss`; `streams` and `advantages` are those of its record."""

    streams: ClassVar[Collection[str]] = ()
    advantages: ClassVar[bool] = True

    @pytest.fixture
    def loss(self) -> Loss:
        """The loss to check."""
        pytest.fail("override the fixture loss")

    @_checks("loss")
    def test_conformance(self, check: Check, loss: Loss) -> None:
        """Run one check of the kit."""
        subject = LossSubject(type(self).__name__, loss, streams=self.streams, advantages=self.advantages)
        conform(check, subject)
