"""Advantages and losses against naive references written from the formulas, in float64."""

from __future__ import annotations

import math
import random

import pytest
import torch

from prl_train.algo import LossConfig, LossSums, cross_entropy_loss, grpo_advantages, policy_loss


def test_advantages_are_rewards_minus_the_groups_mean() -> None:
    assert grpo_advantages([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]
    assert grpo_advantages([3.0, 0.0, 0.0]) == [2.0, -1.0, -1.0]
    assert grpo_advantages([]) == []


def test_equal_rewards_have_advantages_of_exactly_zero() -> None:
    """Rounding residue would let a dead group pass the zero-advantage filter and be blown up by the deviation."""
    assert grpo_advantages([0.1, 0.1, 0.1]) == [0.0, 0.0, 0.0]
    assert grpo_advantages([0.1, 0.1, 0.1], std=True) == [0.0, 0.0, 0.0]


def test_std_divides_by_the_population_deviation() -> None:
    assert grpo_advantages([1.0, 0.0, 0.0, 1.0], std=True) == pytest.approx([1.0, -1.0, -1.0, 1.0], abs=1e-5)


def naive(rows: list[tuple[float, float, float, bool]], config: LossConfig, count: float) -> tuple[float, list[float]]:
    """Return loss and d loss / d lp_train of (lp_train, lp_inference, advantage, mask), by the formula, in Python."""
    loss, gradient = 0.0, []
    for train, inference, advantage, mask in rows:
        if not mask:
            gradient.append(0.0)
            continue
        log_r = train - inference
        difference = math.exp(train) - math.exp(inference)
        dropped = difference > config.drop_above if advantage > 0 else difference < -config.drop_below
        term, slope = config.kl_weight * log_r**2, 2 * config.kl_weight * log_r
        if not dropped:
            term -= config.advantage_weight * advantage * math.exp(log_r)
            slope -= config.advantage_weight * advantage * math.exp(log_r)
        loss += term
        gradient.append(slope / count)
    return loss / count, gradient


@pytest.mark.parametrize(
    "config",
    [LossConfig(), LossConfig(drop_above=0.05, drop_below=0.4, advantage_weight=0.7, kl_weight=0.3)],
    ids=["default", "other thresholds"],
)
def test_policy_loss_and_gradient_equal_the_formula(config: LossConfig) -> None:
    chance = random.Random(7)
    rows = [
        (
            math.log(chance.uniform(0.01, 0.99)),
            math.log(chance.uniform(0.01, 0.99)),
            chance.choice([-1.5, -0.2, 0.0, 0.4, 2.0]),
            chance.random() < 0.8,
        )
        for _ in range(200)
    ]
    train, inference, advantages = (torch.tensor([row[i] for row in rows], dtype=torch.float64) for i in range(3))
    mask = torch.tensor([row[3] for row in rows])
    train.requires_grad_()
    loss, sums = policy_loss(train, inference, advantages, mask, denominator=321.0, config=config)
    loss.backward()
    expected, gradient = naive(rows, config, 321.0)
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert train.grad is not None
    assert train.grad.tolist() == pytest.approx(gradient, abs=1e-12)
    ratios = [(a - b) for a, b, _, m in rows if m]
    assert sums.tokens == len(ratios)
    assert sums.metrics()["mismatch_kl"] == pytest.approx(
        sum(math.exp(x) - x - 1 for x in ratios) / len(ratios), abs=1e-12
    )
    assert sums.metrics()["max_logprob_diff"] == pytest.approx(max(abs(x) for x in ratios), abs=1e-12)
    assert sums.metrics()["importance_ratio"] == pytest.approx(sum(map(math.exp, ratios)) / len(ratios), abs=1e-12)


def dropped(train: float, inference: float, advantage: float) -> bool:
    values = (torch.tensor([math.log(p)], dtype=torch.float64) for p in (train, inference))
    _, sums = policy_loss(*values, torch.tensor([advantage]), torch.tensor([True]), denominator=1.0)
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


def test_an_exploding_ratio_of_a_dropped_or_masked_token_gives_no_nan_gradient() -> None:
    train = torch.tensor([-0.1, -0.1, -0.7], requires_grad=True)
    inference = torch.tensor([-200.0, -float("inf"), -0.7])
    loss, _ = policy_loss(
        train, inference, torch.tensor([1.0, 1.0, 1.0]), torch.tensor([True, False, True]), denominator=2.0
    )
    loss.backward()
    assert torch.isfinite(loss)
    assert train.grad is not None
    assert torch.isfinite(train.grad).all()
    assert train.grad[1] == 0


def test_the_teacher_shifts_the_advantage_but_not_the_trust_region() -> None:
    train = torch.tensor([-1.0, -0.1], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([-0.5, -9.0], dtype=torch.float64)
    inference = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    config = LossConfig(teacher_weight=2.0, kl_weight=0.0)
    loss, sums = policy_loss(
        train,
        inference,
        torch.tensor([0.25, 1.0], dtype=torch.float64),
        torch.tensor([True, True]),
        denominator=1.0,
        config=config,
        teacher_logprobs=teacher,
    )
    loss.backward()
    assert sums.dropped == 1  # the second token, by its raw advantage; its teacher alone would have kept it
    assert loss.item() == pytest.approx(-(0.25 + 2.0 * 0.5))
    assert train.grad is not None
    assert train.grad.tolist() == pytest.approx([-1.25, 0.0])  # the teacher's term is a weight, not a path


def test_tiny_mismatch_is_not_lost_to_rounding() -> None:
    """An on-policy step in float32 has differences near 1e-6: r - 1 - log r would print 0 or a negative number."""
    train = torch.full((4,), -1.0)
    _, sums = policy_loss(train, train - 1e-6, torch.zeros(4), torch.ones(4, dtype=torch.bool), denominator=4.0)
    assert sums.metrics()["mismatch_kl"] == pytest.approx(5e-13, rel=0.2)


def test_split_into_micro_batches_equals_one_batch() -> None:
    """A local denominator would weight tokens by the micro-batch they fell into."""
    torch.manual_seed(0)
    train, inference = torch.rand(30).log(), torch.rand(30).log()
    advantages, mask = torch.randn(30), torch.rand(30) < 0.6
    count = float(mask.sum())
    whole, whole_sums = policy_loss(train, inference, advantages, mask, denominator=count)
    total, sums = 0.0, LossSums()
    for part in (slice(0, 3), slice(3, 21), slice(21, 30)):
        loss, added = policy_loss(train[part], inference[part], advantages[part], mask[part], denominator=count)
        total += loss.item()
        sums.add(added)
    assert total == pytest.approx(whole.item(), rel=1e-5)
    assert sums.metrics() == pytest.approx(whole_sums.metrics(), rel=1e-6)


def test_cross_entropy_is_the_mean_negative_logprob_of_the_targets() -> None:
    logprobs = torch.tensor([-0.5, -float("inf"), -1.5], dtype=torch.float64, requires_grad=True)
    loss = cross_entropy_loss(logprobs, torch.tensor([True, False, True]), 4.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.5)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-0.25, 0.0, -0.25]


@pytest.mark.parametrize("key", ["drop_abov", "clip"])
def test_a_misspelt_threshold_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        LossConfig(**{key: 0.1})
