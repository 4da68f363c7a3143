"""Small models and tokenizers made on the spot, for quick starts and tests: real formats, random weights."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from prl.types import ConfigError
from prl_train.models.load import quiet_transformers
from prl_train.storage import replace_directory


def train_small_tokenizer(
    texts: Iterable[str], control_tokens: Sequence[str | AddedToken], vocab_size: int, use_regex: bool = False
) -> Tokenizer:
    """Train a byte-level BPE tokenizer on rendered conversations; lossless for any text.

    `vocab_size` counts everything: 256 bytes, merges, control tokens. Control tokens become added tokens and never
    part of a merge. Without `use_regex` merges may cross words, so constant pieces of a chat template become single
    tokens: a conversation of a small game shrinks to a third, and training with it.
    """
    added = [token if isinstance(token, AddedToken) else AddedToken(token, special=True) for token in control_tokens]
    names = [token.content for token in added]
    if vocab_size < 256 + len(names):
        raise ConfigError(
            f"a vocabulary of {vocab_size} cannot hold 256 bytes and {len(names)} control tokens",
            where="vocab_size",
            next_step=f"use at least {256 + len(names)}",
        )
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([_cut_at(names), split]) if names else split
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(names),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = split  # control tokens are found before it runs, from here on
    tokenizer.add_tokens(added)
    return tokenizer


def _cut_at(names: Sequence[str]) -> Any:
    """Return a splitter that keeps control tokens out of the training text."""
    longest_first = sorted(names, key=len, reverse=True)
    pattern = "|".join("".join(f"\\{c}" if not c.isalnum() else c for c in name) for name in longest_first)
    return pre_tokenizers.Split(Regex(pattern), behavior="removed")


def create_tiny_qwen3(
    directory: str | Path,
    tokenizer_json: str | Path,
    *,
    hidden_size: int = 96,
    layers: int = 3,
    heads: int = 3,
    kv_heads: int = 1,
    intermediate: int = 256,
    initializer_range: float = 0.08,
    max_position_embeddings: int = 2048,
    seed: int = 0,
    eos_token: str = "<|im_end|>",
    chat_template: str | None = None,
) -> Path:
    """Write a random Qwen3 model directory that transformers and any engine can load; return it.

    `tokenizer_json` is a path, or the JSON text itself (`Tokenizer.to_str()`). The wide `initializer_range` is on
    purpose: with 0.02 a model this small does not learn to attend to earlier turns in a few hundred steps. The
    directory appears only when whole.
    """
    text = _tokenizer_text(tokenizer_json)
    vocabulary = Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
    config = _config(
        vocab_size=max(vocabulary.values()) + 1,
        hidden_size=hidden_size,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden_size // heads,
        initializer_range=initializer_range,
        max_position_embeddings=max_position_embeddings,
        eos_token_id=vocabulary.get(eos_token),
    )
    target = Path(directory)
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    work.chmod(0o755)
    try:
        with quiet_transformers():
            _random_model(config, seed).save_pretrained(work)
        (work / "tokenizer.json").write_text(text, encoding="utf-8")
        _write_tokenizer_config(
            work, max_position_embeddings, eos_token if eos_token in vocabulary else None, chat_template
        )
        replace_directory(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _tokenizer_text(tokenizer_json: str | Path) -> str:
    text = str(tokenizer_json)
    return text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8")


def _config(**fields: Any) -> Any:
    from transformers import Qwen3Config

    if (
        fields["hidden_size"] % fields["num_attention_heads"]
        or fields["num_attention_heads"] % fields["num_key_value_heads"]
    ):
        raise ConfigError(
            "hidden_size must be a multiple of heads, and heads of kv_heads",
            where=f"{fields['hidden_size']}, {fields['num_attention_heads']}, {fields['num_key_value_heads']}",
            next_step="for example hidden_size = 96, heads = 3, kv_heads = 1",
        )
    fields |= {"tie_word_embeddings": True, "attention_dropout": 0.0, "bos_token_id": None, "pad_token_id": None}
    return Qwen3Config(**fields)


def _random_model(config: Any, seed: int) -> Any:
    from transformers import Qwen3ForCausalLM

    make: Any = Qwen3ForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(config)


def _write_tokenizer_config(directory: Path, length: int, eos_token: str | None, chat_template: str | None) -> None:
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
    }
    if eos_token is not None:
        settings["eos_token"] = eos_token
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (directory / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=2, ensure_ascii=False), encoding="utf-8"
    )
