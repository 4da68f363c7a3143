"""The trainer on a real tiny Qwen3: packing changes nothing, resuming changes nothing, steps do what the losses say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.samples import random_samples
from torch import Tensor
from transformers import AutoModelForCausalLM

from prl.types import ConfigError, MicroBatch, TrainingSample
from prl_train.attention.binding import BoundKernel
from prl_train.data import SftSample, pack, pack_supervised, pack_supervised_batch
from prl_train.errors import TrainingError
from prl_train.trainer import OptimizerConfig, Trainer, TrainerConfig
from prl_train.trainer.forward import forward_targets

Make = Callable[..., Trainer]


def samples(count: int, seed: int = 0, *, temperature: float = 1.0) -> list[TrainingSample]:
    """Return random samples of mixed lengths with masks, advantages and log-probabilities."""
    return random_samples(count, seed, lambda _, n: [temperature] * n)


def targets(trainer: Trainer, batch: MicroBatch, kernel: BoundKernel) -> Tensor:
    return forward_targets(trainer.model, batch, kernel, device=torch.device("cpu")).logprobs


def gradients(trainer: Trainer) -> list[Tensor]:
    return [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]


def documents(batch: MicroBatch, made: Sequence[TrainingSample]) -> list[TrainingSample]:
    """Return the samples in the order in which they lie in the row."""
    by_ids = {tuple(s.prompt_ids + s.completion_ids): s for s in made}
    bounds = zip(batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)
    return [by_ids[tuple(batch.input_ids[start:end])] for start, end in bounds]


@pytest.mark.parametrize("pad_to", [None, 128])
def test_packed_logprobs_and_gradients_equal_each_sample_alone(
    make_trainer: Make, kernel: BoundKernel, pad_to: int | None
) -> None:
    """Attention across samples, running positions or a shifted target would show here."""
    trainer = make_trainer()
    made = samples(9)
    (row,) = pack(made, 128, pad_to=pad_to)
    packed = targets(trainer, row, kernel)
    packed.sum().backward()
    packed_gradients = gradients(trainer)
    trainer.model.zero_grad()
    alone = torch.cat([targets(trainer, pack([s], 64)[0], kernel) for s in documents(row, made)])
    alone.sum().backward()
    torch.testing.assert_close(packed, alone, rtol=0, atol=2e-6)
    for mine, theirs in zip(packed_gradients, gradients(trainer), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_logprobs_equal_a_plain_transformers_forward(make_trainer: Make, model_dir: Path) -> None:
    """The trainer's numbers must be the model's own, at the temperature of the sampler."""
    plain = AutoModelForCausalLM.from_pretrained(model_dir)
    made = samples(5, temperature=0.6)
    (row,) = pack(made, 128)
    scores = make_trainer().score(row)
    for start, sample in zip(row.cu_seqlens, documents(row, made), strict=False):
        ids = sample.prompt_ids + sample.completion_ids
        with torch.no_grad():
            logits = plain(torch.tensor([ids])).logits[0].double() / 0.6
        expected = logits.log_softmax(-1)
        for offset, wanted in enumerate(sample.completion_mask, start=len(sample.prompt_ids)):
            score = scores[start + offset]
            assert score == (pytest.approx(expected[offset - 1, ids[offset]].item(), abs=1e-5) if wanted else 0.0)


def test_perturbing_one_sample_leaves_its_neighbours_alone(make_trainer: Make) -> None:
    trainer = make_trainer()
    row = pack_supervised([SftSample([5, 6, 7], [True] * 3), SftSample([8, 9, 10], [True] * 3)])
    changed = replace(row, input_ids=[50, 60, 70, 8, 9, 10])
    assert trainer.score(row)[3:] == trainer.score(changed)[3:]
    assert trainer.score(row)[:3] != trainer.score(changed)[:3]


def reference_loss(trainer: Trainer, made: list[TrainingSample], model_dir: Path) -> float:
    """Return the policy loss by the formula, from plain forwards in float64."""
    plain = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64)
    total, count = 0.0, 0
    for sample in made:
        ids = sample.prompt_ids + sample.completion_ids
        logprobs = plain(torch.tensor([ids])).logits[0].log_softmax(-1)
        for i, wanted in enumerate(sample.completion_mask):
            if not wanted:
                continue
            count += 1
            at = len(sample.prompt_ids) + i
            train, inference = logprobs[at - 1, ids[at]].item(), sample.completion_logprobs[i]
            ratio, gap = math.exp(train - inference), math.exp(train) - math.exp(inference)
            kept = gap <= 0.2 if sample.advantage > 0 else gap >= -0.2
            total += 1e-3 * (train - inference) ** 2 - (sample.advantage * ratio if kept else 0.0)
    return total / count


def test_a_step_reports_the_formulas_loss_whatever_the_packing(make_trainer: Make, model_dir: Path) -> None:
    made = samples(8, seed=4)
    results = []
    for rows in (pack(made, 128), pack(made, 20), pack(list(reversed(made)), 32)):
        results.append(make_trainer().step(rows))
    assert len({result["micro_batches"] for result in results}) > 1
    for result in results:
        assert result["loss"] == pytest.approx(reference_loss(make_trainer(), made, model_dir), rel=1e-5)
        assert result["grad_norm"] == pytest.approx(results[0]["grad_norm"], rel=1e-4)
    targets_of = sum(sum(s.completion_mask) for s in made)
    assert results[0]["loss_tokens"] == targets_of
    assert results[0]["samples"] == 8
    assert results[0]["tokens"] == sum(len(s) for s in made)
    assert set(results[0]) >= {
        "entropy", "mismatch_kl", "max_logprob_diff", "dropped_share", "lr", "seconds", "step",
    }  # fmt: skip


def test_own_logprobs_have_no_mismatch(make_trainer: Make) -> None:
    """When the engine's numbers are the trainer's own, ratio is 1 and nothing is dropped."""
    trainer = make_trainer()
    (row,) = pack(samples(6), 128)
    metrics = trainer.step([replace(row, inference_logprobs=trainer.score(row))])
    assert metrics["max_logprob_diff"] < 1e-5
    assert metrics["mismatch_kl"] < 1e-10
    assert metrics["importance_ratio"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["dropped_share"] == 0.0


def test_entropy_is_that_of_the_sampling_distribution(make_trainer: Make) -> None:
    trainer = make_trainer(lr=1e-12)
    rows = pack(samples(4, temperature=1e4), 128)
    uniform = math.log(trainer.model.config.vocab_size)
    assert trainer.step(rows)["entropy"] == pytest.approx(uniform, abs=1e-3)


def test_a_positive_advantage_makes_a_completion_likelier_and_a_negative_one_less(make_trainer: Make) -> None:
    """The sign of the whole thing."""
    for advantage in (1.0, -1.0):
        trainer = make_trainer(lr=1e-3)
        (row,) = pack([replace(samples(1)[0], advantage=advantage)], 64)
        before = sum(trainer.score(row))
        trainer.step([replace(row, inference_logprobs=trainer.score(row))])
        after = sum(trainer.score(row))
        assert (after > before) == (advantage > 0)


def test_supervised_steps_learn_the_targets_only(make_trainer: Make) -> None:
    trainer = make_trainer(lr=1e-2)
    rows = pack_supervised_batch([SftSample([5, 6, 7, 8], [False, False, True, True])], 16)
    losses = [trainer.sft_step(rows)["loss"] for _ in range(40)]
    assert losses[-1] < 0.1 < losses[0]
    scores = trainer.score(pack_supervised([SftSample([5, 6, 7, 8], [True] * 4)]))
    assert scores[2] > -0.2 > scores[1]


def test_a_batch_without_targets_is_an_error_and_changes_nothing(make_trainer: Make) -> None:
    trainer = make_trainer()
    before = [p.clone() for p in trainer.model.parameters()]
    row = pack_supervised([SftSample([1, 2], [False, False])])
    with pytest.raises(TrainingError, match="no token of the batch is a training target"):
        trainer.step([row])
    assert trainer.step_number == 0
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_a_loss_that_is_not_finite_stops_before_any_weight_changes(make_trainer: Make) -> None:
    """One inf log-probability from an engine must not destroy the weights."""
    trainer = make_trainer()
    before = [p.clone() for p in trainer.model.parameters()]
    (row,) = pack(samples(2), 64)
    for value, told in ((float("inf"), "inference_logprobs is inf"), (-1e30, "the loss is inf")):
        with pytest.raises(TrainingError, match=told):
            trainer.step([replace(row, inference_logprobs=[value] * len(row.input_ids))])
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert trainer.step(pack(samples(2), 64))["step"] == 1.0


@pytest.mark.parametrize("wrong", [309, -1])
def test_a_token_that_the_model_does_not_know_is_named(make_trainer: Make, wrong: int) -> None:
    """Tokens added to a tokenizer, and not to the model: an IndexError of torch's, on a GPU the end of the process."""
    trainer = make_trainer()
    bad = replace(samples(1)[0], prompt_ids=[5, wrong, 7])
    with pytest.raises(ConfigError, match=f"token id {wrong} is none of the model's 309") as caught:
        trainer.step(pack([bad], 48))
    assert caught.value.where == "token 1 of a packed row"


def test_calls_before_load_are_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no model yet"):
        Trainer(TrainerConfig(model="x")).publish_weights(tmp_path, 1)


def test_the_learning_rate_follows_its_schedule(make_trainer: Make) -> None:
    settings: dict[str, Any] = {
        "lr": 1e-3, "warmup_steps": 2, "schedule": "linear", "total_steps": 6, "min_lr_ratio": 0.5,
    }  # fmt: skip
    trainer = make_trainer(**settings)
    rates = [trainer.step(pack(samples(1), 64))["lr"] for _ in range(7)]
    assert rates == pytest.approx([5e-4, 1e-3, 1e-3, 8.75e-4, 7.5e-4, 6.25e-4, 5e-4])


def test_cosine_ends_at_its_minimum_and_needs_an_end(make_trainer: Make) -> None:
    trainer = make_trainer(lr=1.0, schedule="cosine", total_steps=2, min_lr_ratio=0.1)
    assert [trainer.step(pack(samples(1), 64))["lr"] for _ in range(3)] == pytest.approx([1.0, 0.55, 0.1])
    with pytest.raises(ConfigError, match="needs to know where it ends"):
        make_trainer(schedule="cosine")


def test_the_gradient_is_clipped_to_the_set_norm(make_trainer: Make) -> None:
    """With plain steps of size lr the update would not show it: look at the gradient AdamW receives."""
    trainer = make_trainer(max_grad_norm=1e-3)
    seen: list[float] = []
    optimizer = trainer._loaded().optimizer
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.stack([g.norm() for g in gradients(trainer)]).norm().item())
    )
    assert trainer.step(pack(samples(4), 64))["grad_norm"] > 1e-3
    assert seen == [pytest.approx(1e-3, rel=1e-3)]


def test_gradient_checkpointing_changes_memory_not_numbers(make_trainer: Make) -> None:
    rows = pack(samples(6), 40)
    plain, saved = (make_trainer(gradient_checkpointing=on).step(rows) for on in (False, True))
    assert saved["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    assert saved["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-5)


@pytest.mark.heavy
def test_compiled_layers_train_the_same(make_trainer: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with checkpointing around them, and under the names that others know. Traced, but not to machine code."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    plain, compiled = make_trainer(), make_trainer(compile=True, gradient_checkpointing=True)
    (row,) = pack(samples(4), 64)
    assert compiled.step([row])["loss"] == pytest.approx(plain.step([row])["loss"], rel=1e-4)
    published = AutoModelForCausalLM.from_pretrained(compiled.publish_weights(tmp_path, 1)).state_dict()
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(published[name], value, rtol=0, atol=1e-4)


def test_bfloat16_passes_keep_float32_master_weights(make_trainer: Make, tmp_path: Path) -> None:
    """In bfloat16 weights an update of lr 1e-5 would round to nothing."""
    trainer = make_trainer(dtype="bfloat16", lr=1e-5)
    before = trainer.model.model.embed_tokens.weight.clone()
    metrics = trainer.step(pack(samples(4), 64))
    assert metrics["loss"] == pytest.approx(make_trainer().step(pack(samples(4), 64))["loss"], rel=0.1)
    after = trainer.model.model.embed_tokens.weight
    assert after.dtype == torch.float32
    assert 0 < (after - before).abs().max() < 1e-4
    published = AutoModelForCausalLM.from_pretrained(trainer.publish_weights(tmp_path, 1))
    assert published.dtype == torch.bfloat16


def test_one_seed_gives_one_run(make_trainer: Make) -> None:
    runs = [[make_trainer(seed=1).step(pack(samples(4, seed), 64))["loss"] for seed in range(2)] for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_phase_with_its_own_optimizer_leaves_the_trainers_alone(make_trainer: Make) -> None:
    trainer = make_trainer()
    own = trainer.new_optimization(OptimizerConfig(lr=1e-3, warmup_steps=0))
    metrics = trainer.sft_step(pack_supervised_batch([SftSample([1, 2, 3], [True] * 3)], 8), optimization=own)
    assert (trainer.step_number, metrics["lr"]) == (0, 1e-3)
    assert trainer._loaded().optimizer.state == {}


@pytest.mark.parametrize("key", ["learning_rate", "seqlen"])
def test_a_misspelt_setting_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        TrainerConfig(**{key: 1})


def test_settings_are_read_without_torch() -> None:
    """An orchestrator process reads the whole configuration; it must not pay for torch."""
    import subprocess
    import sys

    code = "import sys, prl_train.trainer.config, prl_train.algo, prl_train.data; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
