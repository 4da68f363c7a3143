"""What a check is, how its kind finds it, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, Protocol

Run = Callable[[Any], None]


class CheckFailed(AssertionError):
    """A plugin does not keep a promise; the text is the finding."""


class NotApplicable(Exception):
    """A check has nothing to look at: the format lacks what it is about."""


class Subject(Protocol):
    """What is checked. `quirks` are the checks that a vendor's own format fails, with the reason."""

    name: str

    @property
    def quirks(self) -> Mapping[str, str]:
        """Name of a check -> why the format cannot pass it."""
        ...


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of a kind of plugin: `claim` says what breaks for a user where it is not kept."""

    kind: str
    name: str
    claim: str
    run: Run

    def __str__(self) -> str:
        return self.name


class Verdict(StrEnum):
    """How a check ended. A quirk is a failure that the plugin declares and explains."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"
    QUIRK = "quirk"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The end of one check; `finding` says what is wrong, or why the check was skipped."""

    check: Check
    verdict: Verdict
    finding: str = ""


_checks: list[Check] = []


def check(kind: str) -> Callable[[Run], Run]:
    """Register a function as a check of a kind; its name is the check's, its docstring the claim."""

    def register(function: Run) -> Run:
        claim = " ".join((function.__doc__ or "").split())
        _checks.append(Check(kind, function.__name__, claim, function))
        return function

    return register


def checks_of(kind: str) -> list[Check]:
    """Return the checks of a kind, in the order they are worth reading; none for a kind without."""
    return [one for one in _checks if one.kind == kind]


def run_check(one: Check, subject: Subject) -> CheckResult:
    """Run one check. Whatever the plugin raises is its finding, so that one fault never hides the others."""
    quirk = subject.quirks.get(one.name)
    try:
        one.run(subject)
    except NotApplicable as reason:
        return CheckResult(one, Verdict.SKIP, str(reason))
    except CheckFailed as failure:
        finding = str(failure)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the plugin's own code runs here, and its fault is what is asked for
        finding = f"{type(error).__name__}: {error}"
    else:
        if quirk is None:
            return CheckResult(one, Verdict.PASS)
        return CheckResult(one, Verdict.FAIL, f"passes, though the format declares it a quirk: {quirk}")
    return CheckResult(one, Verdict.FAIL, finding) if quirk is None else CheckResult(one, Verdict.QUIRK, quirk)


def expect(condition: bool, finding: str) -> None:
    """Fail the check with a finding where the condition does not hold."""
    if not condition:
        raise CheckFailed(finding)


def fail(finding: str) -> NoReturn:
    """Fail the check."""
    raise CheckFailed(finding)


def brief(value: object, limit: int = 400) -> str:
    """Return a value's repr, cut where it is long."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"
