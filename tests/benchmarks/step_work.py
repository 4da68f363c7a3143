"""What a training step is measured on: a small Qwen3 made from scratch, and samples of very different lengths."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 16_384
PAD = 0


@dataclass(frozen=True)
class Sample:
    """A prompt and what was sampled after it; `old_logprobs` has one entry a completion token."""

    prompt_ids: list[int]
    completion_ids: list[int]
    old_logprobs: list[float]
    advantage: float

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True)
class Size:
    """How much a step does. A micro-batch has room for `batch * longest` tokens, padding included, for everyone."""

    samples: int = 8
    batch: int = 4
    shortest: int = 50
    longest: int = 500
    hidden: int = 384
    layers: int = 6

    @property
    def room(self) -> int:
        """Tokens of a micro-batch."""
        return self.batch * self.longest


QUICK = Size(hidden=128, layers=2)
ON_GPU = Size(samples=64, batch=16, hidden=1024, layers=12)


def step_samples(size: Size, step: int) -> list[Sample]:
    """Return the samples of one step, the same in every process; prompts take 10 to 50 in 100 of a sample."""
    chance = random.Random(7_000 + step)
    found = []
    for _ in range(size.samples):
        length = chance.randint(size.shortest, size.longest)
        prompt = max(1, int(length * chance.uniform(0.1, 0.5)))
        ids = [chance.randrange(1, VOCABULARY) for _ in range(length)]
        # What a model with random weights gives is near the uniform distribution; some ratios are beyond the clip.
        old = [-math.log(VOCABULARY) + chance.gauss(0.0, 0.1) for _ in ids[prompt:]]
        found.append(Sample(ids[:prompt], ids[prompt:], old, chance.gauss(0.0, 1.0)))
    return found


def make_model(directory: Path, size: Size) -> int:
    """Write a random Qwen3 model with its tokenizer, the same for the same size; return its number of parameters."""
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    from prl_train.models.load import quiet_transformers
    from prl_train.models.scratch import train_small_tokenizer

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=size.hidden,
        intermediate_size=3 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 64,
        num_key_value_heads=size.hidden // 128,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=PAD,
    )
    model: Any = Qwen3ForCausalLM(config)
    with quiet_transformers():
        model.save_pretrained(directory)
    # Nobody encodes a text here: TRL's trainers want a tokenizer for its padding token.
    names = ["<|pad|>", "<|im_end|>"]
    raw = train_small_tokenizer(["a benchmark"], names, 256 + len(names))
    PreTrainedTokenizerFast(tokenizer_object=raw, pad_token=names[0], eos_token=names[1]).save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())
