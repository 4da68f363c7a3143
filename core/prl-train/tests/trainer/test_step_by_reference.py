"""A whole step, for every loss: loss, gradient and update equal an independent loop, sample by sample in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.samples import random_samples
from torch import Tensor
from transformers import AutoModelForCausalLM

from prl.types import TrainingSample
from prl_train.algo import LossConfig
from prl_train.data import pack
from prl_train.trainer import Trainer

LR, CLIP = 1e-3, 0.05


def samples() -> list[TrainingSample]:
    return random_samples(
        6,
        11,
        lambda chance, n: [chance.choice([0.7, 1.0, 1.3]) for _ in range(n)],
        lengths=(2, 9),
        surprise=(5.0, 6.5),
        teacher=(4.0, 8.0),
    )


Term = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""(trainer's log-probabilities, engine's, teacher's, advantage) of one sample's targets -> its summed loss."""


def grpo(now: Tensor, engine: Tensor, teacher: Tensor, advantage: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for a, b in zip(now, engine, strict=True):
        gap = math.exp(a.item()) - math.exp(b.item())
        total = total + 1e-3 * (a - b) ** 2
        if not (gap > 0.2 if advantage > 0 else gap < -0.2):
            total = total - advantage * torch.exp(a - b)
    return total


def gspo(now: Tensor, engine: Tensor, teacher: Tensor, advantage: float) -> Tensor:
    ratio = torch.exp((now - engine).mean())
    return -torch.minimum(ratio * advantage, ratio.clamp(0.5, 1.5) * advantage)


def ppo(now: Tensor, engine: Tensor, teacher: Tensor, advantage: float) -> Tensor:
    ratio = torch.exp(now - engine)
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()


def distillation(now: Tensor, engine: Tensor, teacher: Tensor, advantage: float) -> Tensor:
    kept = (now.exp() - engine.exp()).detach() >= -0.2
    signal = (teacher - now).detach()
    return (1e-3 * (now - engine) ** 2 - torch.where(kept, signal * torch.exp(now - engine), 0.0)).sum()


CASES: dict[str, tuple[dict[str, Any], Term, bool]] = {
    "grpo": ({}, grpo, False),
    "gspo": ({"clip_low": 0.5, "clip_high": 0.5}, gspo, True),
    "ppo-clip": ({}, ppo, False),
    "cispo": (
        {},
        lambda now, engine, _, a: -(torch.exp(now - engine).detach().clamp(max=5.0) * a * now).sum(),
        False,
    ),
    "policy-gradient": ({}, lambda now, engine, teacher, a: -(a * now).sum(), False),
    "distillation": ({}, distillation, False),
    "cross-entropy": ({}, lambda now, engine, teacher, a: -now.sum(), False),
}


def plain_step(directory: Path, term: Term, is_by_sample: bool) -> tuple[float, float, dict[str, Tensor]]:
    """Return loss, gradient norm and the weights after one AdamW step, by a loop over samples in float64."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    made = samples()
    targets = sum(sum(s.completion_mask) for s in made)
    total = torch.zeros((), dtype=torch.float64)
    for sample in made:
        ids = torch.tensor([sample.prompt_ids + sample.completion_ids])
        start = len(sample.prompt_ids)
        temperatures = torch.tensor(sample.temperatures, dtype=torch.float64)
        logits = model(ids).logits[0, start - 1 : -1] / temperatures[:, None]
        chosen = logits.log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]
        mask = torch.tensor(sample.completion_mask)
        engine, teacher = (
            torch.tensor(values, dtype=torch.float64)[mask]
            for values in (sample.completion_logprobs, (sample.teacher_logprobs or [])[start:])
        )
        total = total + term(chosen[mask], engine, teacher, sample.advantage)
    loss = total / (len(made) if is_by_sample else targets)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.0)
    optimizer.step()
    return loss.item(), norm.item(), dict(model.named_parameters())


@pytest.mark.parametrize("name", CASES)
def test_loss_gradient_and_update_equal_a_plain_loop(
    name: str, make_trainer: Callable[..., Trainer], model_dir: Path
) -> None:
    """Whatever is fused, packed or accumulated, the weights must move as the formula says."""
    options, term, is_by_sample = CASES[name]
    loss, norm, weights = plain_step(model_dir, term, is_by_sample)
    trainer = make_trainer(
        lr=LR,
        eps=1e-4,
        max_grad_norm=CLIP,
        loss=LossConfig(name=name, **options),
        logprob_chunk=3,
        logprob_vocabulary_chunk=100,
    )
    metrics = trainer.step(pack(samples(), 24))
    assert metrics["micro_batches"] > 2
    assert metrics["loss"] == pytest.approx(loss, rel=2e-5)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=2e-4)
    start = dict(AutoModelForCausalLM.from_pretrained(model_dir).named_parameters())
    for key, parameter in trainer.model.named_parameters():
        moved = (parameter - start[key]).double()
        torch.testing.assert_close(moved, weights[key] - start[key].double(), rtol=1e-2, atol=2e-6)
        assert moved.abs().max() > 1e-5
