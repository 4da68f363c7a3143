"""Tokenise a corpus for supervised training on all cores: prl's rows against TRL's own preparation of a data set.

Wall time, since the work is done by child processes. Both read the same JSON Lines file, use as many processes as
there are cores, and give the same ids and targets; that is compared before anything is timed. One difference is set
aside: TRL also trains the line break that its template writes after the stop token, which no sampler ever reaches.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from fixtures.real_tokenizers import tokenizer_directory
from fixtures.templates import trl_template
from workloads import tool_rollout

CORES = os.cpu_count() or 1
Samples = list[tuple[list[int], list[bool]]]


def sft_corpus_table(repetitions: int, *, conversations: int) -> Iterator[str]:
    """Yield the lines of the table."""
    with tempfile.TemporaryDirectory() as folder:
        check = write_corpus(Path(folder) / "check.jsonl", -1, 8)
        ours, theirs = by_prl(check, 0)[1], [_until_stop(*sample) for sample in by_trl(check)[1]]
        if ours != theirs:
            raise SystemExit("prl and TRL give different ids or targets; a faster wrong answer is not timed")
        runs = {
            f"TRL, {CORES} processes": by_trl,
            "prl, in the trainer's process": partial(by_prl, workers=0),
            f"prl, {CORES} workers": partial(by_prl, workers=CORES),
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        tokens = 0
        for repetition in range(repetitions):
            path = write_corpus(Path(folder) / f"{repetition}.jsonl", repetition, conversations)
            for name, run in list(runs.items())[:: 1 if repetition % 2 else -1]:
                spent, samples = run(path)
                tokens = sum(len(ids) for ids, _ in samples)
                seconds[name].append(spent)
    yield f"  {conversations} conversations, {tokens} tokens"
    theirs = seconds[f"TRL, {CORES} processes"]
    for name, times in seconds.items():
        ratio = statistics.median(their / our for our, their in zip(times, theirs, strict=True))
        more = "" if times is theirs else f"  {ratio:5.1f}x faster than TRL"
        rate = tokens / statistics.median(times)
        yield f"  {name:30s} {statistics.median(times):9.2f} s wall  {rate:12,.0f} tokens/s{more}"


def _until_stop(ids: list[int], mask: list[bool]) -> tuple[list[int], list[bool]]:
    stop = trl_tokenizer().convert_tokens_to_ids("<|im_end|>")
    return ids, [flag and (place == 0 or ids[place - 1] != stop) for place, flag in enumerate(mask)]


def write_corpus(path: Path, repetition: int, count: int) -> Path:
    """Write conversations as JSON Lines."""
    with path.open("w", encoding="utf-8") as out:
        for number in range(count):
            work = tool_rollout(6_000 + 10_000 * repetition + number, 6, result_lines=30)
            out.write(json.dumps({"messages": work.messages, "tools": json.dumps(work.tools)}) + "\n")
    return path


def by_prl(path: Path, workers: int) -> tuple[float, Samples]:
    """Render, mask and pack, start-up of worker processes included, from opening the file to the last row."""
    from prl_train.sft import SftConfig
    from prl_train.sft.samples import training_data

    config = SftConfig.model_validate(
        {
            "model": str(tokenizer_directory("qwen3")),
            "renderer": "qwen3",
            "data": {"path": str(path), "samples": "whole", "shuffle": False, "workers": workers},
            "trainer": {"seq_len": 1 << 20},
        }
    )
    begin = time.perf_counter()
    data = training_data(config)
    found: Samples = []
    try:
        while True:
            found += [(sample.token_ids, sample.loss_mask) for sample in data.packer.next_samples()]
    except StopIteration:
        spent = time.perf_counter() - begin
    finally:
        data.builder.close()
    return spent, found


def by_trl(path: Path) -> tuple[float, Samples]:
    """Have TRL's SFTTrainer prepare the data set; only that part of its making is timed."""
    import datasets
    from trl import SFTConfig, SFTTrainer

    datasets.disable_progress_bars()
    tokenizer = trl_tokenizer()
    spent: list[float] = []
    prepare = SFTTrainer._prepare_dataset

    def timed(*arguments: Any, **keywords: Any) -> Any:
        begin = time.perf_counter()
        made = prepare(*arguments, **keywords)
        spent.append(time.perf_counter() - begin)
        return made

    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        rows = datasets.Dataset.from_json(str(path), cache_dir=folder)
        loading = time.perf_counter() - begin
        settings = SFTConfig(
            output_dir=folder,
            assistant_only_loss=True,
            dataset_num_proc=CORES,
            max_length=None,
            use_cpu=True,
            report_to=[],
        )
        SFTTrainer._prepare_dataset = timed
        try:
            trainer = SFTTrainer(small_model(len(tokenizer)), settings, train_dataset=rows, processing_class=tokenizer)
        finally:
            SFTTrainer._prepare_dataset = prepare
        made = trainer.train_dataset
        found = [
            (list(ids), [label != -100 for label in labels])
            for ids, labels in zip(made["input_ids"], made["labels"], strict=True)
        ]
    return loading + sum(spent), found


@cache
def trl_tokenizer() -> Any:
    """Return the transformers tokenizer with the template that marks what is trained."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_directory("qwen3"))
    tokenizer.chat_template = trl_template("qwen3_training")
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    return tokenizer


def small_model(vocabulary: int) -> Any:
    """Return a model: TRL prepares data only inside a trainer of one."""
    import transformers

    config = transformers.Qwen3Config(
        vocab_size=vocabulary, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    return transformers.Qwen3ForCausalLM(config)
