"""Supervised training end to end: real renderer, real model, exact resume."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import prl
from prl.types import ConfigError
from prl_train.attention.binding import BoundKernel
from prl_train.data import SampleBuilder
from prl_train.errors import CheckpointError, DataError, TrainingError
from prl_train.run import RunError
from prl_train.run.owner import hold
from prl_train.sft import SftConfig, run_sft, warm_up
from prl_train.sft.loop import SftResult
from prl_train.sft.resume import compare_settings, settings_of
from prl_train.trainer import Trainer, read_weights

TOOL = {
    "type": "function",
    "function": {
        "name": "lamp",
        "description": "",
        "parameters": {"type": "object", "properties": {"level": {"type": "integer"}}, "required": []},
    },
}


@pytest.fixture(scope="module")
def renderer(model_dir: Path) -> Any:
    return prl.create_renderer(prl.load_tokenizer(str(model_dir)), "qwen3")


def segments(renderer: Any, model_dir: Path, row: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return the rendered text cut where the mask changes."""
    tokenizer = prl.load_tokenizer(str(model_dir))
    (sample,) = SampleBuilder(renderer, tokenizer, mode="whole").build(row)
    cuts = [i for i in range(1, len(sample)) if sample.loss_mask[i] != sample.loss_mask[i - 1]]
    bounds = zip([0, *cuts], [*cuts, len(sample)], strict=True)
    return [(tokenizer.decode(sample.token_ids[start:end]), sample.loss_mask[start]) for start, end in bounds]


def test_scaffold_carries_no_loss_and_the_stop_token_does(renderer: Any, model_dir: Path) -> None:
    row = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Largest cat?"},
            {"role": "assistant", "reasoning_content": "Tiger beats lion.", "content": "Tiger."},
        ]
    }
    assert segments(renderer, model_dir, row) == [
        (
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            "<|im_start|>user\nLargest cat?<|im_end|>\n"
            "<|im_start|>assistant\n",
            False,
        ),
        ("<think>\nTiger beats lion.\n</think>\n\nTiger.<|im_end|>", True),
        ("\n", False),
    ]


def test_calls_are_trained_and_tool_results_are_not(renderer: Any, model_dir: Path) -> None:
    call = {"type": "function", "function": {"name": "lamp", "arguments": {"level": 20}}}
    row = {
        "messages": [
            {"role": "user", "content": "Dim the lamp."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "ok"},
            {"role": "assistant", "reasoning_content": "Done.", "content": "Dimmed."},
        ]
    }
    found = segments(renderer, model_dir, row)
    trained = [text for text, wanted in found if wanted]
    assert trained == [
        '<tool_call>\n{"name": "lamp", "arguments": {"level": 20}}\n</tool_call><|im_end|>',
        "<think>\nDone.\n</think>\n\nDimmed.<|im_end|>",
    ]
    assert "".join(text for text, _ in found).count("<tool_response>\nok\n</tool_response>") == 1


@pytest.mark.parametrize("as_text", [False, True])
def test_a_rows_tools_reach_the_template(renderer: Any, model_dir: Path, as_text: bool) -> None:
    """Without them the model trains on calls whose schema it never saw, and the loss looks fine."""
    call = {"type": "function", "function": {"name": "lamp", "arguments": '{"level": 20}'}}
    messages = [
        {"role": "user", "content": "Dim the lamp."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    tokenizer = prl.load_tokenizer(str(model_dir))
    builder = SampleBuilder(renderer, tokenizer, mode="whole")
    (sample,) = builder.build({"messages": messages, "tools": json.dumps([TOOL]) if as_text else [TOOL]})
    text = tokenizer.decode(sample.token_ids)
    assert "# Tools" in text
    assert '"name": "lamp"' in text
    assert sample.token_ids == renderer.render_ids(messages, tools=[TOOL])


def write_rows(path: Path, count: int = 12) -> Path:
    rows = []
    for number in range(count):
        messages = [
            {"role": "user", "content": f"guess {number}"},
            {"role": "assistant", "content": "my guess is " + "1 " * (number % 4 + 1)},
        ]
        rows.append(json.dumps({"messages": messages}))
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


@pytest.fixture
def config(model_dir: Path, tmp_path: Path) -> SftConfig:
    return SftConfig.model_validate(
        {
            "model": str(model_dir),
            "renderer": "qwen3",
            "data": {"path": write_rows(tmp_path / "rows.jsonl")},
            "directory": tmp_path / "run",
            "steps": 8,
            "rows_per_step": 2,
            "trainer": {"lr": 5e-3, "warmup_steps": 2, "seq_len": 64, "checkpoint_every": 3},
        }
    )


class _Stop(Exception):
    """Stands for a crash."""


def without_times(result: SftResult) -> list[dict[str, float]]:
    return [
        {key: value for key, value in entry.items() if key not in ("seconds", "tokens_per_second", "memory_gb")}
        for entry in result.metrics
    ]


def test_a_resumed_run_equals_an_uninterrupted_one(config: SftConfig, tmp_path: Path) -> None:
    """After a crash two steps behind the checkpoint: same rows, same losses, same weights, each step logged once."""
    whole = run_sft(config)
    assert whole.step == 8
    assert whole.metrics[-1]["loss"] < whole.metrics[0]["loss"]

    def crash(step: int, _: dict[str, float]) -> None:
        if step == 5:
            raise _Stop

    broken = config.model_copy(update={"directory": tmp_path / "broken"})
    with pytest.raises(_Stop):
        run_sft(broken, on_step=crash)
    resumed = run_sft(broken)
    assert [entry["step"] for entry in resumed.metrics] == [4.0, 5.0, 6.0, 7.0, 8.0]
    assert without_times(resumed) == without_times(whole)[3:]
    logged = [json.loads(line) for line in (tmp_path / "broken" / "metrics.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in logged] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    weights = [(result.weights / "model.safetensors").read_bytes() for result in (whole, resumed)]
    assert weights[0] == weights[1]
    assert read_weights(resumed.weights) == 8


def test_epochs_train_every_row_and_end(config: SftConfig) -> None:
    result = run_sft(config.model_copy(update={"steps": None, "epochs": 2}))
    assert sum(entry["samples"] for entry in result.metrics) == 24
    assert run_sft(config.model_copy(update={"steps": None, "epochs": 2})).metrics == []


@pytest.mark.parametrize(
    ("section", "change", "named"),
    [
        ("data", {"roles": ("assistant", "user")}, "data.roles"),
        ("data", {"shuffle": False}, "data.shuffle"),
        ("trainer", {"seed": 7}, "trainer.seed"),
        (None, {"renderer_options": {"enable_thinking": False}}, "renderer_options.enable_thinking"),
    ],
)
def test_a_run_does_not_go_on_with_other_tokens_or_another_order(
    config: SftConfig, section: str | None, change: dict[str, Any], named: str
) -> None:
    """Half the rows with one mask, half with another; or rows that are trained twice, and others never."""
    run_sft(config.model_copy(update={"steps": 1}))
    inner = getattr(config, section).model_copy(update=change) if section else None
    changed = config.model_copy(update={section: inner} if section else change)
    with pytest.raises(CheckpointError, match=rf"these differ: {named}"):
        run_sft(changed)


def test_a_run_goes_on_with_the_new_settings_and_says_so(config: SftConfig, caplog: pytest.LogCaptureFixture) -> None:
    """A rate that is lowered on a resume, and rows that are shorter than what was drawn for longer ones."""
    wide = config.trainer.model_copy(update={"seq_len": 60})
    run_sft(config.model_copy(update={"steps": 1, "rows_per_step": 1, "trainer": wide}))
    narrow = config.trainer.model_copy(update={"lr": 1e-3, "warmup_steps": 0, "seq_len": 24})
    resumed = run_sft(config.model_copy(update={"steps": None, "trainer": narrow}))
    assert {entry["lr"] for entry in resumed.metrics} == {1e-3}
    assert all(entry["tokens"] <= 2 * 24 for entry in resumed.metrics)
    assert "trainer.lr, trainer.seq_len, trainer.warmup_steps" in caplog.text
    assert "data." not in caplog.text


def test_a_checkpoint_of_a_version_with_fewer_settings_goes_on(config: SftConfig) -> None:
    """An update adds a setting, and no run could be resumed: what it lacks has its default."""
    saved = settings_of(config)
    del saved["data"]["samples"], saved["trainer"]["lora"], saved["rows_per_step"]
    compare_settings(saved, config.model_copy(update={"rows_per_step": 1}))
    with pytest.raises(CheckpointError, match="the settings in the checkpoint cannot be read"):
        compare_settings({**saved, "gone": 1}, config)


def test_the_folder_of_another_kind_of_run_is_refused(config: SftConfig) -> None:
    """Its metrics have the same name, and would be cut."""
    config.directory.mkdir()
    (config.directory / "run.json").write_text("{}")
    (config.directory / "metrics.jsonl").write_text('{"step": 5, "reward": 1.0}\n')
    with pytest.raises(ConfigError, match="holds a run of `prl rl`"):
        run_sft(config)
    assert (config.directory / "metrics.jsonl").read_text() == '{"step": 5, "reward": 1.0}\n'


def test_turns_that_are_trained_oddly_are_counted_to_the_end(
    config: SftConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Reasoning behind a prompt that closes it: trained as the template has it, and said with what to do."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "c"}]
    path = tmp_path / "reasoned.jsonl"
    path.write_text("\n".join([json.dumps({"messages": turns})] * 3), encoding="utf-8")
    data = config.data.model_copy(update={"path": str(path)})
    options = {"enable_thinking": False}
    odd = config.model_copy(update={"data": data, "steps": None, "rows_per_step": 1, "renderer_options": options})
    result = run_sft(odd)
    assert result.metrics[-1]["turns_as_template"] == 3.0
    [line] = result.warnings
    assert line.startswith("3 assistant turns were trained as the template writes them")
    assert "enable_thinking" in line
    assert caplog.text.count("as the template writes them") == 1, "told once on the way"
    assert run_sft(odd).warnings == result.warnings, "a resumed run forgets what it trained"


def test_old_checkpoints_are_not_overwritten_by_a_new_run(config: SftConfig) -> None:
    run_sft(config.model_copy(update={"steps": 1}))
    with pytest.raises(ConfigError, match="already holds checkpoints"):
        run_sft(config, resume=False)


def test_only_one_process_trains_in_a_directory(config: SftConfig) -> None:
    """The second would remove the first one's half-written checkpoint as a killed run's."""
    half = config.directory / "checkpoints" / ".step_000002.ab12"
    half.mkdir(parents=True)
    with (
        hold(config.directory / "run.lock", "process"),
        pytest.raises(RunError, match="another process of this run is running"),
    ):
        run_sft(config)
    assert half.is_dir()


def test_resuming_on_changed_data_is_refused(config: SftConfig) -> None:
    run_sft(config.model_copy(update={"steps": 3}))
    path = Path(str(config.data.path))
    path.write_text(path.read_text().replace("guess 3", "guess 9"))
    with pytest.raises(CheckpointError, match="the data changed"):
        run_sft(config)


def test_a_row_without_a_target_stops_with_its_number_or_is_skipped_and_counted(
    config: SftConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with Path(str(config.data.path)).open("a") as file:
        file.write('\n{"messages": [{"role": "user", "content": "hi"}], "score": 1}\n')
    single = config.model_copy(update={"steps": None, "epochs": 1})
    with pytest.raises(DataError, match="no token of this conversation would be trained") as caught:
        run_sft(single)
    assert "row 13" in caught.value.where
    assert "bad_rows" in caught.value.next_step
    data = config.data.model_copy(update={"bad_rows": "skip"})
    with caplog.at_level(logging.WARNING, "prl.sft"):
        result = run_sft(single.model_copy(update={"data": data, "directory": config.directory / "skip"}))
    assert result.metrics[-1]["dropped"] == 1.0
    assert sum(entry["samples"] for entry in result.metrics) == 12
    assert "row 13: " in caplog.text
    assert "is skipped: no token" in caplog.text
    assert "columns that are not used" in caplog.text
    assert "score" in caplog.text


def test_a_malformed_row_stops_before_the_first_step(config: SftConfig) -> None:
    with Path(str(config.data.path)).open("a") as file:
        file.write('\n{"messages": [{"content": "hi"}]}\n')
    with pytest.raises(DataError, match="a message needs a `role`") as caught:
        run_sft(config)
    assert "row 13" in caught.value.where
    assert not config.directory.exists()


def test_a_misspelt_key_is_refused() -> None:
    with pytest.raises(ValueError, match="rows_per_stp"):
        SftConfig.model_validate({"model": "m", "data": {"path": "x"}, "rows_per_stp": 2})


class Sample:
    """What `prl.build_supervised_sample` returns, as far as training looks at it."""

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids
        self.loss_mask = [True] * len(token_ids)


def test_warm_up_learns_and_leaves_a_fresh_optimizer(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(lr=1.0)
    steps: list[dict[str, float]] = []
    stream = (Sample([5, 6 + n % 3, 7, 8]) for n in range(1000))
    last = warm_up(trainer, stream, 30, 4, lr=1e-2, on_step=lambda _, metrics: steps.append(metrics))
    assert last == steps[-1]
    assert steps[-1]["loss"] < 0.5 * steps[0]["loss"]
    assert max(entry["lr"] for entry in steps) == pytest.approx(1e-2)
    assert steps[-1]["lr"] < 2e-3
    assert trainer.step_number == 0
    assert trainer._loaded().optimizer.state == {}
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


def test_a_warm_up_that_runs_out_of_samples_says_so(make_trainer: Callable[..., Trainer]) -> None:
    with pytest.raises(TrainingError, match="ran out of samples at step 2 of 3"):
        warm_up(make_trainer(), [Sample([1, 2])] * 5, 3, 4)
    assert warm_up(make_trainer(), [], 0, 4) == {}


def test_the_registrys_sdpa_kernel_is_the_trainers_default(model_dir: Path, kernel: BoundKernel) -> None:
    from prl_train.attention.binding import resolve_kernel

    found = resolve_kernel("sdpa", device="cpu", dtype="float32")
    assert (found.name, type(found.kernel)) == (kernel.name, type(kernel.kernel))
    assert found.features > kernel.features
    with pytest.raises(ConfigError, match="does not run on device 'mps'"):
        resolve_kernel("sdpa", device="mps", dtype="float32")
