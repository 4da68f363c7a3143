"""Who does a training step: prl's trainer, TRL's trainers, and a plain loop over transformers with TRL's loss.

All do the same from samples to changed weights: make micro-batches, forward, backward, clip, AdamW. Each returns its
loss and the norm of its gradient, so that it can be seen that they did the same.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from step_work import PAD, Sample, Size

Outcome = tuple[float, float]
Step = Callable[[Sequence[Sample]], Outcome]
LR, BETAS, EPS, MAX_NORM, CLIP = 1e-4, (0.9, 0.95), 1e-8, 1.0, 0.2


@dataclass(frozen=True)
class Setting:
    """Model directory, size of a step, precision of the passes ("float32" or "bfloat16") and device."""

    model: str
    size: Size
    dtype: str
    device: str

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the region in which forward passes run; master weights stay in float32 for everyone."""
        return torch.autocast(self.device, dtype=torch.bfloat16) if self.dtype == "bfloat16" else nullcontext()

    def micro_batches(self, samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
        """Yield the samples as a padded loop takes them: in their order, `batch` at a time."""
        for start in range(0, len(samples), self.size.batch):
            yield samples[start : start + self.size.batch]


# --- prl


def _prl_trainer(setting: Setting) -> Any:
    from prl_train.trainer import Trainer, TrainerConfig

    config = TrainerConfig.model_validate(
        {
            "model": setting.model,
            "dtype": setting.dtype,
            "device": setting.device,
            "seq_len": setting.size.room,
            "lr": LR,
            "betas": BETAS,
            "eps": EPS,
            "warmup_steps": 0,
            "max_grad_norm": MAX_NORM,
            "loss": {"name": "ppo-clip", "normalise": "sequences", "clip_low": CLIP, "clip_high": CLIP},
        }
    )
    trainer = Trainer(config)
    trainer.load()
    return trainer


def prl_grpo(setting: Setting) -> Step:
    """Take prl's `Trainer.step` on packed rows."""
    from prl.types import TrainingSample
    from prl_train.data import pack

    trainer = _prl_trainer(setting)

    def step(samples: Sequence[Sample]) -> Outcome:
        given = [
            TrainingSample(
                prompt_ids=sample.prompt_ids,
                completion_ids=sample.completion_ids,
                completion_mask=[True] * len(sample.completion_ids),
                completion_logprobs=sample.old_logprobs,
                temperatures=[1.0] * len(sample.completion_ids),
                advantage=sample.advantage,
            )
            for sample in samples
        ]
        metrics = trainer.step(pack(given, setting.size.room))
        return metrics["loss"], metrics["grad_norm"]

    return step


@dataclass(frozen=True)
class _Supervised:
    token_ids: list[int]
    loss_mask: list[bool]


def prl_sft(setting: Setting) -> Step:
    """Take prl's `Trainer.sft_step` on packed rows."""
    from prl_train.data import pack_supervised_batch

    trainer = _prl_trainer(setting)

    def step(samples: Sequence[Sample]) -> Outcome:
        given = [
            _Supervised(
                sample.prompt_ids + sample.completion_ids,
                [False] * len(sample.prompt_ids) + [True] * len(sample.completion_ids),
            )
            for sample in samples
        ]
        metrics = trainer.sft_step(pack_supervised_batch(given, setting.size.room))
        return metrics["loss"], metrics["grad_norm"]

    return step


# --- TRL and the plain loop


def _padded(values: Sequence[Sequence[Any]], fill: Any, side: str, device: str) -> torch.Tensor:
    from trl.trainer.utils import pad

    return pad([torch.tensor(list(row)) for row in values], padding_value=fill, padding_side=side).to(device)


def _grpo_inputs(samples: Sequence[Sample], device: str) -> dict[str, torch.Tensor]:
    """Return a micro-batch as TRL's trainer lays it out: prompts padded on the left, completions on the right."""
    ones = [([1] * len(sample.prompt_ids), [1] * len(sample.completion_ids)) for sample in samples]
    return {
        "prompt_ids": _padded([sample.prompt_ids for sample in samples], PAD, "left", device),
        "prompt_mask": _padded([prompt for prompt, _ in ones], 0, "left", device),
        "completion_ids": _padded([sample.completion_ids for sample in samples], PAD, "right", device),
        "completion_mask": _padded([completion for _, completion in ones], 0, "right", device),
        "old_per_token_logps": _padded([sample.old_logprobs for sample in samples], 0.0, "right", device),
        "advantages": torch.tensor([sample.advantage for sample in samples], device=device),
    }


def _full_logits(
    self: Any, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *_: Any, **__: Any
) -> tuple[torch.Tensor, torch.Tensor, None]:
    """Take log-probabilities and entropies from logits that exist all at once, with TRL's own functions."""
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    with self.accelerator.autocast():
        logits = model(
            input_ids=input_ids, attention_mask=attention_mask, logits_to_keep=logits_to_keep + 1, use_cache=False
        ).logits
    # accelerate gives a model's outputs in float32.
    logits = logits[:, :-1].float()
    logprobs = selective_log_softmax(logits, input_ids[:, -logits_to_keep:])
    with torch.no_grad():
        entropy = entropy_from_logits(logits)
    return logprobs, entropy, None


def _trl_grpo(setting: Setting, logprobs: Any = None) -> Step:
    import datasets
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        per_device_train_batch_size=setting.size.batch,
        gradient_accumulation_steps=setting.size.samples // setting.size.batch,
        num_generations=2,
        loss_type="grpo",
        epsilon=CLIP,
        beta=0.0,
        temperature=1.0,
        **_common(setting),
    )
    trainer: Any = GRPOTrainer(
        _model(setting),
        reward_funcs=_no_reward,
        args=config,
        train_dataset=datasets.Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=_tokenizer(setting),
    )
    if logprobs is not None:
        trainer._get_per_token_logps_and_entropies = logprobs.__get__(trainer)
    trainer.current_gradient_accumulation_steps = setting.size.samples // setting.size.batch
    model, optimizer = trainer.model.train(), _optimizer(trainer.model)

    def step(samples: Sequence[Sample]) -> Outcome:
        total = 0.0
        for part in setting.micro_batches(samples):
            loss = trainer._compute_loss(model, _grpo_inputs(part, setting.device))
            loss.backward()
            total += float(loss.detach())
        return total, _apply(model, optimizer)

    return step


def trl_grpo(setting: Setting) -> Step:
    """Take the loss of TRL's `GRPOTrainer` as it is: padded batches, a head that works in tiles."""
    return _trl_grpo(setting)


def plain_grpo(setting: Setting) -> Step:
    """Take the same loss of TRL on the logits of plain transformers, padded."""
    return _trl_grpo(setting, _full_logits)


def _trl_sft(setting: Setting, *, padding_free: bool) -> Step:
    import datasets
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(
        per_device_train_batch_size=setting.size.batch,
        padding_free=padding_free,
        max_length=None,
        **_common(setting),
    )
    rows = datasets.Dataset.from_dict({"input_ids": [[1, 2]], "labels": [[-100, 2]]})
    trainer: Any = SFTTrainer(_model(setting), args=config, train_dataset=rows, processing_class=_tokenizer(setting))
    trainer.current_gradient_accumulation_steps = setting.size.samples // setting.size.batch
    optimizer = _optimizer(trainer.model)
    model = trainer.accelerator.prepare_model(trainer.model)

    def step(samples: Sequence[Sample]) -> Outcome:
        targets = torch.tensor(sum(len(sample.completion_ids) for sample in samples))
        total = 0.0
        for part in setting.micro_batches(samples):
            inputs = trainer.data_collator([_labelled(sample) for sample in part])
            total += float(trainer.training_step(model, inputs, targets))
        return total, _apply(trainer.model, optimizer)

    return step


def _labelled(sample: Sample) -> dict[str, list[int]]:
    return {
        "input_ids": sample.prompt_ids + sample.completion_ids,
        "labels": [-100] * len(sample.prompt_ids) + sample.completion_ids,
    }


def trl_sft(setting: Setting) -> Step:
    """Take the step of TRL's `SFTTrainer` with its default, padded batches."""
    return _trl_sft(setting, padding_free=False)


def trl_sft_padding_free(setting: Setting) -> Step:
    """Take the step of TRL's `SFTTrainer` on batches that are joined to one row."""
    return _trl_sft(setting, padding_free=True)


def plain_sft(setting: Setting) -> Step:
    """Loop over transformers with the model's own loss, padded."""
    model = _model(setting).to(setting.device).train()
    optimizer = _optimizer(model)

    def step(samples: Sequence[Sample]) -> Outcome:
        targets = sum(len(sample.completion_ids) for sample in samples)
        total = 0.0
        for part in setting.micro_batches(samples):
            rows = [_labelled(sample) for sample in part]
            ids = _padded([row["input_ids"] for row in rows], PAD, "right", setting.device)
            labels = _padded([row["labels"] for row in rows], -100, "right", setting.device)
            mask = _padded([[1] * len(row["input_ids"]) for row in rows], 0, "right", setting.device)
            with setting.autocast():
                out = model(
                    input_ids=ids, attention_mask=mask, labels=labels, num_items_in_batch=targets, use_cache=False
                )
            out.loss.backward()
            total += float(out.loss.detach())
        return total, _apply(model, optimizer)

    return step


def _common(setting: Setting) -> dict[str, Any]:
    return {
        "output_dir": tempfile.gettempdir(),
        "use_cpu": setting.device == "cpu",
        "bf16": setting.dtype == "bfloat16",
        "gradient_checkpointing": False,
        "report_to": [],
        "disable_tqdm": True,
    }


def _model(setting: Setting) -> Any:
    """Load the model as TRL does: float32 weights, torch's scaled dot product attention."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        setting.model, dtype=torch.float32, attn_implementation="sdpa"
    )


def _tokenizer(setting: Setting) -> Any:
    return transformers.AutoTokenizer.from_pretrained(setting.model)


def _no_reward(completions: list[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)


def _optimizer(model: Any) -> torch.optim.Optimizer:
    """Return what transformers' trainer makes by default, with the same settings for everyone."""
    return torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=0.0, fused=True)


def _apply(model: Any, optimizer: torch.optim.Optimizer) -> float:
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm)


CONTESTANTS: dict[str, dict[str, Callable[[Setting], Step]]] = {
    "grpo": {"prl": prl_grpo, "TRL GRPOTrainer": trl_grpo, "plain loop, TRL's loss": plain_grpo},
    "sft": {
        "prl": prl_sft,
        "TRL SFTTrainer": trl_sft,
        "TRL SFTTrainer, padding-free": trl_sft_padding_free,
        "plain loop": plain_sft,
    },
}


def quiet() -> None:
    """Keep the peers' notes and progress bars out of the output."""
    import datasets

    warnings.filterwarnings("ignore")
    datasets.disable_progress_bars()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
