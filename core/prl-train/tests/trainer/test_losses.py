"""Advantages and losses against plain Python written from the formulas, in float64: values, gradients and metrics."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from prl.contracts import Loss, LossInputs, LossResult
from prl.types import ConfigError, MicroBatch, PluginError
from prl_train.algo import (
    LossConfig,
    LossSums,
    check_streams,
    count_targets,
    grpo_advantages,
    loss_inputs,
    resolve_loss,
)
from prl_train.errors import TrainingError
from prl_train.trainer.forward import Targets


@dataclass(frozen=True)
class Sample:
    """One sample's targets: log-probabilities of trainer, engine and teacher, and the advantage."""

    train: list[float]
    inference: list[float]
    teacher: list[float]
    advantage: float


def made_samples(seed: int = 7, lengths: Sequence[int] = (5, 1, 12, 8, 3, 9, 20)) -> list[Sample]:
    chance = random.Random(seed)

    def probabilities(count: int) -> list[float]:
        return [math.log(chance.uniform(0.05, 0.95)) for _ in range(count)]

    return [
        Sample(probabilities(n), probabilities(n), probabilities(n), chance.choice([-1.5, -0.2, 0.4, 2.0]))
        for n in lengths
    ]


def row(samples: Sequence[Sample], **changes: Any) -> LossInputs:
    """Return the samples as one packed row of targets; the log-probabilities carry a gradient."""

    def joined(values: list[list[float]]) -> Tensor:
        return torch.tensor([value for part in values for value in part], dtype=torch.float64)

    logprobs = joined([s.train for s in samples]).requires_grad_()
    inputs = LossInputs(
        logprobs=logprobs,
        entropy=torch.ones_like(logprobs.detach()),
        advantages=joined([[s.advantage] * len(s.train) for s in samples]),
        sequences=torch.tensor([n for n, s in enumerate(samples) for _ in s.train], dtype=torch.long),
        sequence_targets=torch.tensor([len(s.train) for s in samples]),
        inference_logprobs=joined([s.inference for s in samples]),
        teacher_logprobs=joined([s.teacher for s in samples]),
    )
    return replace(inputs, **changes)


def run(loss: Loss, samples: Sequence[Sample], denominator: float) -> tuple[LossResult, list[float]]:
    inputs = row(samples)
    result = loss(inputs, denominator)
    (gradient,) = torch.autograd.grad(result.loss, inputs.logprobs)
    return result, gradient.tolist()


# --- the formulas, token by token --------------------------------------------------------------------------------

Terms = Callable[[Sample, list[float]], list[float]]
"""(sample, the trainer's log-probabilities as the variable) -> one term a token; the sample's own are the constants."""


def grpo(s: Sample, lp: list[float], *, above: float = 0.2, below: float = 0.2, kl: float = 1e-3) -> list[float]:
    terms = []
    for now, fixed, engine in zip(lp, s.train, s.inference, strict=True):
        gap = math.exp(fixed) - math.exp(engine)
        is_dropped = gap > above if s.advantage > 0 else gap < -below
        log_r = now - engine
        terms.append(kl * log_r**2 - (0.0 if is_dropped else s.advantage * math.exp(log_r)))
    return terms


def grpo_with_teacher(s: Sample, lp: list[float]) -> list[float]:
    plain = grpo(s, lp)
    for i, (now, fixed, engine, teacher) in enumerate(zip(lp, s.train, s.inference, s.teacher, strict=True)):
        gap = math.exp(fixed) - math.exp(engine)
        if not (gap > 0.2 if s.advantage > 0 else gap < -0.2):
            plain[i] -= 2.0 * (teacher - fixed) * math.exp(now - engine)
    return plain


def ppo_clip(s: Sample, lp: list[float]) -> list[float]:
    ratios = [math.exp(now - engine) for now, engine in zip(lp, s.inference, strict=True)]
    return [-min(r * s.advantage, min(max(r, 0.8), 1.2) * s.advantage) for r in ratios]


def cispo(s: Sample, lp: list[float]) -> list[float]:
    weights = [min(math.exp(fixed - engine), 1.5) for fixed, engine in zip(s.train, s.inference, strict=True)]
    return [-weight * s.advantage * now for weight, now in zip(weights, lp, strict=True)]


def gspo(s: Sample, lp: list[float]) -> list[float]:
    ratio = math.exp(sum(now - engine for now, engine in zip(lp, s.inference, strict=True)) / len(lp))
    whole = -min(ratio * s.advantage, min(max(ratio, 0.9), 1.3) * s.advantage)
    return [whole, *[0.0] * (len(lp) - 1)]


def policy_gradient(s: Sample, lp: list[float]) -> list[float]:
    return [-s.advantage * now for now in lp]


def distillation(s: Sample, lp: list[float]) -> list[float]:
    terms = []
    for now, fixed, engine, teacher in zip(lp, s.train, s.inference, s.teacher, strict=True):
        is_dropped = math.exp(fixed) - math.exp(engine) < -0.2
        log_r = now - engine
        terms.append(1e-3 * log_r**2 - (0.0 if is_dropped else (teacher - fixed) * math.exp(log_r)))
    return terms


def cross_entropy(s: Sample, lp: list[float]) -> list[float]:
    return [-now for now in lp]


FORMULAS: list[tuple[dict[str, Any], Terms]] = [
    ({"name": "grpo"}, grpo),
    (
        {"name": "grpo", "drop_above": 0.05, "drop_below": 0.4, "kl_weight": 0.3},
        lambda s, lp: grpo(s, lp, above=0.05, below=0.4, kl=0.3),
    ),
    ({"name": "grpo", "teacher_weight": 2.0}, grpo_with_teacher),
    ({"name": "ppo-clip"}, ppo_clip),
    ({"name": "cispo", "max_ratio": 1.5}, cispo),
    ({"name": "gspo", "clip_low": 0.1, "clip_high": 0.3}, gspo),
    ({"name": "policy-gradient"}, policy_gradient),
    ({"name": "distillation"}, distillation),
    ({"name": "cross-entropy"}, cross_entropy),
]


@pytest.mark.parametrize(
    ("options", "terms"), FORMULAS, ids=lambda value: str(value) if isinstance(value, dict) else ""
)
def test_loss_and_gradient_equal_the_formula(options: dict[str, Any], terms: Terms) -> None:
    """A wrong sign, threshold or detached factor trains another objective than the one named."""
    samples = made_samples()

    def total(index: int, shift: float) -> float:
        """Return the loss with one target's log-probability shifted."""
        value, at = 0.0, 0
        for s in samples:
            lp = [x + (shift if at + i == index else 0.0) for i, x in enumerate(s.train)]
            value += math.fsum(terms(s, lp))
            at += len(lp)
        return value / 321.0

    result, gradient = run(resolve_loss(LossConfig(**options)), samples, 321.0)
    assert result.loss.item() == pytest.approx(total(-1, 0.0), abs=1e-12)
    step = 1e-6
    expected = [(total(i, step) - total(i, -step)) / (2 * step) for i in range(len(gradient))]
    assert gradient == pytest.approx(expected, abs=1e-9)
    assert any(abs(value) > 1e-6 for value in gradient)


@pytest.mark.parametrize("name", ["grpo", "ppo-clip", "cispo", "policy-gradient", "distillation", "cross-entropy"])
def test_normalisations_weight_samples_as_they_say(name: str) -> None:
    """By tokens long answers count more; by sequences all count alike; with a constant, length is not rewarded."""
    samples = made_samples()
    sums = []
    for sample in samples:
        loss = resolve_loss(LossConfig(name=name))
        assert loss.unit == "tokens"
        sums.append(run(loss, [sample], 1.0)[0].loss.item())
    by_sequence = resolve_loss(LossConfig(name=name, normalise="sequences"))
    constant = resolve_loss(LossConfig(name=name, normalise="constant", constant_length=50))
    assert by_sequence.unit == constant.unit == "sequences"
    means = [total / len(s.train) for total, s in zip(sums, samples, strict=True)]
    assert run(by_sequence, samples, 7.0)[0].loss.item() == pytest.approx(sum(means) / 7.0)
    assert run(constant, samples, 7.0)[0].loss.item() == pytest.approx(sum(sums) / (7.0 * 50))


@pytest.mark.parametrize("options", [options for options, _ in FORMULAS], ids=str)
def test_splitting_a_row_changes_neither_loss_nor_metrics(options: dict[str, Any]) -> None:
    """Otherwise the gradient would depend on packing, accumulation and the number of ranks."""
    loss, samples = resolve_loss(LossConfig(**options)), made_samples()
    whole, gradient = run(loss, samples, 11.0)
    all_sums, part_sums = LossSums(), LossSums()
    all_sums.add(whole)
    total, parts = 0.0, []
    for part in (samples[:2], samples[2:3], samples[3:]):
        result, slopes = run(loss, part, 11.0)
        part_sums.add(result)
        total += result.loss.item()
        parts += slopes
    assert total == pytest.approx(whole.loss.item(), rel=1e-12)
    assert parts == pytest.approx(gradient, rel=1e-12)
    assert part_sums.metrics() == pytest.approx(all_sums.metrics(), rel=1e-12)


@pytest.mark.parametrize("options", [options for options, _ in FORMULAS], ids=str)
def test_a_row_without_targets_adds_nothing_and_can_be_differentiated(options: dict[str, Any]) -> None:
    """Ranks that have no row left run one without targets; it must not hang, or give nan."""
    loss = resolve_loss(LossConfig(**options))
    empty = Sample([], [], [], 0.0)
    result, gradient = run(loss, [empty], 5.0)
    assert (result.loss.item(), gradient) == (0.0, [])
    sums = LossSums()
    full, _ = run(loss, made_samples(), 5.0)
    sums.add(full)
    before = sums.metrics()
    sums.add(result)
    assert sums.metrics() == before


def test_metrics_of_the_mismatch_are_means_over_all_targets() -> None:
    samples = made_samples()
    result, _ = run(resolve_loss(LossConfig()), samples, 1.0)
    sums = LossSums()
    sums.add(result)
    metrics = sums.metrics()
    ratios = [a - b for s in samples for a, b in zip(s.train, s.inference, strict=True)]
    assert metrics["mismatch_kl"] == pytest.approx(sum(math.exp(x) - x - 1 for x in ratios) / len(ratios), abs=1e-12)
    assert metrics["max_logprob_diff"] == pytest.approx(max(abs(x) for x in ratios), abs=1e-12)
    assert metrics["importance_ratio"] == pytest.approx(sum(map(math.exp, ratios)) / len(ratios), abs=1e-12)
    taught = LossSums()
    taught.add(run(resolve_loss(LossConfig(name="distillation")), samples, 1.0)[0])
    gaps = [a - b for s in samples for a, b in zip(s.train, s.teacher, strict=True)]
    assert taught.metrics()["teacher_kl"] == pytest.approx(sum(gaps) / len(gaps))


def dropped(train: float, inference: float, advantage: float) -> bool:
    one = Sample([math.log(train)], [math.log(inference)], [0.0], advantage)
    sums = LossSums()
    sums.add(run(resolve_loss(LossConfig()), [one], 1.0)[0])
    return sums.metrics()["dropped_share"] == 1.0


def test_only_updates_that_widen_the_mismatch_are_dropped() -> None:
    """Dropping the others would keep the policies apart."""
    assert dropped(0.75, 0.5, 1.0)
    assert not dropped(0.65, 0.5, 1.0)
    assert not dropped(0.5, 0.75, 1.0)
    assert dropped(0.5, 0.75, -1.0)
    assert dropped(0.5, 0.75, 0.0)
    assert not dropped(0.5, 0.65, -1.0)
    assert not dropped(0.75, 0.5, -1.0)


@pytest.mark.parametrize("name", ["grpo", "ppo-clip", "gspo", "cispo"])
def test_an_exploding_ratio_that_is_bounded_gives_a_finite_gradient(name: str) -> None:
    """exp(700) of a token that is dropped or clipped must not turn the whole gradient into nan."""
    samples = [Sample([-0.1], [-800.0], [0.0], 1.0), Sample([-0.7], [-0.7], [0.0], 1.0)]
    result, gradient = run(
        resolve_loss(LossConfig(name=name, **({"kl_weight": 0.0} if name == "grpo" else {}))), samples, 2.0
    )
    assert math.isfinite(result.loss.item())
    assert all(map(math.isfinite, gradient))


def test_the_teacher_shifts_the_advantage_but_not_the_trust_region() -> None:
    samples = [Sample([-1.0], [-1.0], [-0.5], 0.25), Sample([-0.1], [-2.0], [-9.0], 1.0)]
    loss = resolve_loss(LossConfig(teacher_weight=2.0, kl_weight=0.0))
    result, gradient = run(loss, samples, 1.0)
    assert float(result.means["dropped_share"][0]) == 1  # by its raw advantage; its teacher alone would have kept it
    assert result.loss.item() == pytest.approx(-(0.25 + 2.0 * 0.5))
    assert gradient == pytest.approx([-1.25, 0.0])  # the teacher's term is a weight, not a path


def test_tiny_mismatch_is_not_lost_to_rounding() -> None:
    """An on-policy step in float32 has differences near 1e-6: r - 1 - log r would print 0 or a negative number."""
    train = torch.full((4,), -1.0)
    inputs = row(
        [Sample([0.0] * 4, [0.0] * 4, [0.0] * 4, 0.0)],
        logprobs=train.requires_grad_(),
        inference_logprobs=train.detach() - 1e-6,
    )
    sums = LossSums()
    sums.add(resolve_loss(LossConfig())(inputs, 4.0))
    assert sums.metrics()["mismatch_kl"] == pytest.approx(5e-13, rel=0.2)


def test_sums_of_ranks_are_those_of_one_process() -> None:
    loss, samples = resolve_loss(LossConfig()), made_samples()
    alone, ranks = LossSums(), [LossSums(), LossSums()]
    alone.add(run(loss, samples, 3.0)[0])
    ranks[0].add(run(loss, samples[:4], 3.0)[0])
    ranks[1].add(run(loss, samples[4:], 3.0)[0])
    seen: dict[str, list[Tensor]] = {"sum": [], "max": []}

    def record(values: Tensor, how: str) -> Tensor:
        seen[how].append(values)
        return values

    ranks[1].reduce(record)
    answers = {"sum": lambda v: v + seen["sum"][0], "max": lambda v: torch.maximum(v, seen["max"][0])}
    ranks[0].reduce(lambda values, how: answers[how](values))
    assert ranks[0].metrics() == pytest.approx(alone.metrics(), rel=1e-12)


def test_metrics_that_come_and_go_are_refused() -> None:
    """Added up over ranks, one rank's mean would end in another's place."""
    sums, zero = LossSums(), torch.zeros(())
    sums.add(LossResult(loss=zero, means={"a": (1.0, 2.0)}))
    with pytest.raises(PluginError, match="the metrics b for one row and a for another"):
        sums.add(LossResult(loss=zero, means={"b": (1.0, 2.0)}))


def batch(**changes: Any) -> MicroBatch:
    made = MicroBatch(
        input_ids=[1, 2, 3, 4, 5, 0],
        position_ids=[0, 1, 0, 1, 2, 0],
        cu_seqlens=[0, 2, 5],
        loss_mask=[False, False, False, True, True, False],
        advantages=[0.0, 1.0, 0.0, 2.0, 2.0, 0.0],
        inference_logprobs=[0.0, -0.1, 0.0, -0.3, -0.4, 0.0],
        temperatures=[1.0] * 6,
    )
    return replace(made, **changes)


def test_streams_are_read_at_the_targets_and_samples_are_told_apart() -> None:
    targets = Targets(torch.tensor([3, 4]), torch.tensor([-1.0, -2.0]), torch.tensor([0.5, 0.6]))
    inputs = loss_inputs(targets, batch())
    assert inputs.advantages.tolist() == [2.0, 2.0]
    assert inputs.inference_logprobs.tolist() == pytest.approx([-0.3, -0.4])
    assert inputs.teacher_logprobs is None
    assert (inputs.sequences.tolist(), inputs.sequence_targets.tolist()) == ([1, 1], [0, 2])


def test_denominators_count_targets_or_samples_that_have_one() -> None:
    counts = count_targets([batch(), batch(loss_mask=[False, True, False, True, True, False])])
    assert (counts.of("tokens"), counts.of("sequences")) == (5.0, 3.0)


def test_a_missing_stream_is_refused_with_the_way_out() -> None:
    """Zeros in place of a sampler's log-probabilities would be ratios of nothing."""
    loss = resolve_loss(LossConfig())
    check_streams(loss, [batch(), batch(inference_logprobs=None, loss_mask=[False] * 6)])
    with pytest.raises(TrainingError, match="reads inference_logprobs") as caught:
        check_streams(loss, [batch(inference_logprobs=None)])
    assert "cross-entropy" in caught.value.next_step
    check_streams(resolve_loss(LossConfig(name="cross-entropy")), [batch(inference_logprobs=None)])
    with pytest.raises(TrainingError, match="reads teacher_logprobs") as caught:
        check_streams(resolve_loss(LossConfig(name="distillation")), [batch()])
    assert "teacher engine" in caught.value.next_step


@pytest.mark.parametrize("stream", ["advantages", "temperatures", "inference_logprobs"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_told_by_stream_and_token(stream: str, value: float) -> None:
    """The loss of the whole step would be nan, and nothing would say which rollout brought it."""
    loss, good = resolve_loss(LossConfig()), batch()
    place = good.loss_mask.index(True)
    values = list(getattr(good, stream))
    values[place] = value
    with pytest.raises(TrainingError, match=f"{stream} is {value} at a target") as caught:
        check_streams(loss, [good, replace(good, **{stream: values})])
    assert caught.value.where == f"token {place} of a packed row"
    other = [
        math.nan if not wanted else kept for kept, wanted in zip(getattr(good, stream), good.loss_mask, strict=True)
    ]
    check_streams(loss, [replace(good, **{stream: other})])  # what no target reads may be anything


def test_a_temperature_below_zero_is_refused() -> None:
    good = batch()
    with pytest.raises(TrainingError, match=r"temperatures is -0.5 at a target"):
        check_streams(resolve_loss(LossConfig()), [replace(good, temperatures=[-0.5] * len(good.temperatures))])


def test_options_stand_beside_the_name_or_in_their_own_table() -> None:
    """The keys of the first releases keep their meaning."""
    old = resolve_loss(LossConfig.model_validate({"drop_above": 0.5}))
    new = resolve_loss(LossConfig.model_validate({"name": "grpo", "options": {"drop_above": 0.5}}))
    assert old.options == new.options  # type: ignore[attr-defined]
    assert old.options.drop_above == 0.5  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="drop_above is given twice"):
        LossConfig.model_validate({"drop_above": 0.5, "options": {"drop_above": 0.5}}).values()


@pytest.mark.parametrize("wrong", [{"drop_abov": 0.1}, {"name": "gspo", "drop_above": 0.1}, {"options": {"clip": 1}}])
def test_an_option_that_the_loss_lacks_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        resolve_loss(LossConfig.model_validate(wrong))


def test_a_misspelt_loss_is_refused_with_the_close_name() -> None:
    with pytest.raises(PluginError, match="no loss is named 'grop'") as caught:
        resolve_loss(LossConfig(name="grop"))
    assert "grpo" in caught.value.next_step


def test_a_constant_needs_its_length() -> None:
    with pytest.raises(ConfigError, match="constant_length"):
        resolve_loss(LossConfig(normalise="constant"))


def test_advantages_are_rewards_minus_the_groups_mean() -> None:
    assert grpo_advantages([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    assert grpo_advantages([3.0, 0.0, 0.0]) == [2.0, -1.0, -1.0]
    assert grpo_advantages([]) == []


def test_equal_rewards_have_advantages_of_exactly_zero() -> None:
    """Rounding residue would let a dead group pass the zero-advantage filter and be blown up by the deviation."""
    assert grpo_advantages([0.1, 0.1, 0.1]) == [0.0, 0.0, 0.0]
    assert grpo_advantages([0.1, 0.1, 0.1], std=True) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rewards", [[math.nan], [1.0, math.nan], [0.0, math.inf, 1.0]])
def test_a_reward_that_is_no_number_is_refused(rewards: list[float]) -> None:
    with pytest.raises(TrainingError, match=f"reward {len(rewards) // 2} of {len(rewards)} is (nan|inf)"):
        grpo_advantages(rewards)


def test_std_divides_by_the_population_deviation() -> None:
    assert grpo_advantages([1.0, 0.0, 0.0, 1.0], std=True) == pytest.approx([1.0, -1.0, -1.0, 1.0], abs=1e-5)
