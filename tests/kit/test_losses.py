"""The kit on losses: it passes what is offered and catches seeded faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from prl.contracts import LossInputs, LossResult
from prl.plugin import LossEntry, get_registry
from prl.testing.checks import LossSubject, Verdict, checks_of, run_check
from prl.testing.subjects import check_record


def failed(loss: Any, **record: Any) -> set[str]:
    subject = LossSubject("loss", loss, **record)
    return {one.name for one in checks_of("loss") if run_check(one, subject).verdict is Verdict.FAIL}


def test_every_offered_loss_passes() -> None:
    results = {record.name: check_record(record) for record in get_registry().all(LossEntry)}
    assert len(results) >= 7
    for name, checks in results.items():
        assert [(name, str(one.check), one.finding) for one in checks if one.verdict is not Verdict.PASS] == []


@dataclass
class Plain:
    """-A lp, and a metric; the faults below change one thing of it."""

    streams: tuple[str, ...] = ()
    unit: Any = "tokens"

    def terms(self, inputs: LossInputs) -> Any:
        return -inputs.advantages * inputs.logprobs

    def total(self, inputs: LossInputs, denominator: float) -> Any:
        return self.terms(inputs).sum() / denominator

    def means(self, inputs: LossInputs) -> dict[str, tuple[Any, Any]]:
        return {"nll": (-inputs.logprobs.detach().sum(), float(len(inputs.logprobs)))}

    def __call__(self, inputs: LossInputs, denominator: float) -> LossResult:
        return LossResult(loss=self.total(inputs, denominator), means=self.means(inputs))


class LocalMean(Plain):
    def total(self, inputs: LossInputs, denominator: float) -> Any:
        return self.terms(inputs).mean()


class MeanWhereEmpty(Plain):
    def total(self, inputs: LossInputs, denominator: float) -> Any:
        return self.terms(inputs).mean() * len(inputs.logprobs) / denominator


class ScaledByTheRow(Plain):
    def total(self, inputs: LossInputs, denominator: float) -> Any:
        return super().total(inputs, denominator) * len(inputs.sequence_targets)


class FavoursTheFirst(Plain):
    def terms(self, inputs: LossInputs) -> Any:
        return super().terms(inputs) / (1 + inputs.sequences)


class NoGradient(Plain):
    def terms(self, inputs: LossInputs) -> Any:
        return super().terms(inputs).detach()


class OneNumberATarget(Plain):
    def total(self, inputs: LossInputs, denominator: float) -> Any:
        return self.terms(inputs) / denominator


class NotFinite(Plain):
    def terms(self, inputs: LossInputs) -> Any:
        return (inputs.logprobs - inputs.logprobs).sqrt()


class ReadsWhatItHides(Plain):
    def terms(self, inputs: LossInputs) -> Any:
        return (inputs.logprobs - inputs.inference_logprobs).exp() * -inputs.advantages


class ChangesItsInputs(Plain):
    def terms(self, inputs: LossInputs) -> Any:
        inputs.advantages.mul_(0.5)
        return super().terms(inputs)


class CentredMetric(Plain):
    def means(self, inputs: LossInputs) -> dict[str, tuple[Any, Any]]:
        values = inputs.logprobs.detach()
        return {"spread": (((values - values.mean()) ** 2).sum(), float(len(values)))}


class SilentWhereEmpty(Plain):
    def means(self, inputs: LossInputs) -> dict[str, tuple[Any, Any]]:
        return super().means(inputs) if len(inputs.logprobs) else {}


FAULTS: list[tuple[Any, str]] = [
    (Plain(streams=("reference_logprobs",)), "its_streams_and_unit_are_known"),
    (Plain(unit="samples"), "its_streams_and_unit_are_known"),
    (LocalMean(), "the_denominator_divides"),
    (MeanWhereEmpty(), "a_row_without_targets_is_nothing"),
    (ScaledByTheRow(), "rows_add_up"),
    (FavoursTheFirst(), "the_order_of_samples_does_not_matter"),
    (NoGradient(), "the_loss_is_one_finite_number"),
    (OneNumberATarget(), "the_loss_is_one_finite_number"),
    (NotFinite(), "the_loss_is_one_finite_number"),
    (ReadsWhatItHides(), "nothing_undeclared_is_read"),
    (ChangesItsInputs(), "its_inputs_are_left_alone"),
    (CentredMetric(), "rows_add_up"),
    (SilentWhereEmpty(), "a_row_without_targets_is_nothing"),
]


def test_a_right_loss_passes() -> None:
    assert failed(Plain()) == set()


@pytest.mark.parametrize(("loss", "caught_by"), FAULTS, ids=lambda value: type(value).__name__)
def test_every_fault_is_caught(loss: Any, caught_by: str) -> None:
    assert caught_by in failed(loss)


def test_a_record_that_hides_what_is_read_is_caught() -> None:
    """Rollouts without siblings would have no advantage to learn from."""
    assert "nothing_undeclared_is_read" in failed(Plain(), advantages=False)
    assert "its_streams_and_unit_are_known" in failed(Plain(), streams=("teacher_logprobs",))
