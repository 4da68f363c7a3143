"""What a model's tokens see of a row: samples stay apart in every family, or the family is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.small_models import FOUR_HEADS
from transformers import AutoConfig, AutoModelForCausalLM

from prl.types import AlignmentError, ConfigError, MicroBatch
from prl_train.attention.binding import bind
from prl_train.attention.sdpa import sdpa
from prl_train.data import SftSample, dummy_row, pack_supervised
from prl_train.data.apart import take_apart
from prl_train.trainer import Trainer, TrainerConfig
from prl_train.trainer.documents import check_layers

COMMON: dict[str, Any] = {**FOUR_HEADS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LINEAR = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
STATEFUL: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {**LINEAR, "layer_types": ["linear_attention", "full_attention"]},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 4,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "shared_intermediate_size": 16,
    },
}
SPARSE = {
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "index_topk": 3,
    "index_head_dim": 16,
    "index_n_heads": 2,
}
DOCUMENTS = ([7, 9, 30, 12, 5], [40, 41], [8, 20, 3, 61, 33, 18])


def saved(family: str, extra: dict[str, Any], directory: Path) -> Path:
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**COMMON, **extra}))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.2)
    model.save_pretrained(directory)
    return directory


def trainer_of(directory: Path, **settings: Any) -> Trainer:
    kernel = bind("sdpa", sdpa, ("window", "softmax_scale", "gqa", "lse"))
    return Trainer(TrainerConfig(model=str(directory), lr=1e-2, warmup_steps=0, **settings), kernel=kernel)


def row(*documents: list[int]) -> MicroBatch:
    return pack_supervised([SftSample(ids, [True] * len(ids)) for ids in documents])


@pytest.mark.parametrize("family", STATEFUL)
def test_a_state_never_goes_from_one_sample_to_the_next(
    family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Trained packed, a model with a recurrent layer learns each sample as the continuation of another."""
    directory = saved(family, STATEFUL[family], tmp_path)
    packed, alone = trainer_of(directory), trainer_of(directory)
    packed.load()
    alone.load()
    assert "each gets a row of its own" in caplog.text
    wanted = [value for ids in DOCUMENTS for value in alone.score(row(ids))]
    assert packed.score(row(*DOCUMENTS)) == pytest.approx(wanted, abs=1e-5)
    mine, theirs = packed.sft_step([row(*DOCUMENTS)]), alone.sft_step([row(ids) for ids in DOCUMENTS])
    for name in ("loss", "grad_norm", "loss_tokens", "samples", "tokens"):
        assert mine[name] == pytest.approx(theirs[name], rel=1e-5), name
    assert mine["micro_batches"] == 1.0
    for one, other in zip(packed.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_samples_of_a_model_with_attention_alone_share_rows(make_trainer: Callable[..., Trainer]) -> None:
    """Found out wrongly, packing would silently be off."""
    trainer = make_trainer()
    rows = [row([5, 6, 7], [8, 9])]
    assert trainer.rows_of(rows) == rows


@pytest.mark.parametrize(
    ("family", "extra", "told"),
    [
        ("bloom", {}, "tokens see those after them"),
        ("glm_moe_dsa", SPARSE, "brings an attention mask of its own"),
    ],
)
def test_attention_that_no_kernel_computes_is_refused(
    family: str, extra: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """Such a model would be trained without its mask: not causal, or with keys that it never attends."""
    with pytest.raises(ConfigError, match=told):
        trainer_of(saved(family, extra, tmp_path)).load()


def test_chunks_of_a_context_are_refused() -> None:
    with pytest.raises(ConfigError, match="within chunks") as caught:
        check_layers(AutoConfig.for_model("llama4_text"))
    assert caught.value.where == "layer_types of a llama4_text model"


def test_a_row_is_taken_apart_with_all_its_streams_and_images() -> None:
    """A stream that is left out, or an image that goes to the wrong sample."""
    batch = MicroBatch(
        input_ids=[1, 2, 3, 4, 5, 6, 0],
        position_ids=[0, 1, 2, 0, 1, 2, 0],
        cu_seqlens=[0, 3, 3, 6],
        loss_mask=[False, True, True, False, False, True, False],
        advantages=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.0],
        inference_logprobs=[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, 0.0],
        temperatures=[1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 1.0],
        routed_experts=torch.arange(14).reshape(7, 1, 2).numpy(),
        pixel_values=torch.arange(6.0).reshape(6, 1).numpy(),
        image_grid_thw=[[1, 1, 2], [1, 2, 2]],
        mm_token_type_ids=[0, 1, 0, 1, 1, 0, 0],
    )
    first, second = take_apart(batch)
    assert (first.input_ids, first.position_ids, first.cu_seqlens) == ([1, 2, 3], [0, 1, 2], [0, 3])
    assert (second.input_ids, second.loss_mask, second.temperatures) == (
        [4, 5, 6],
        [False, False, True],
        [0.7, 0.6, 0.5],
    )
    assert (second.advantages, second.inference_logprobs) == ([0.4, 0.5, 0.6], [-4.0, -5.0, -6.0])
    assert second.routed_experts.tolist() == [[[6, 7]], [[8, 9]], [[10, 11]]]
    assert (first.image_grid_thw.tolist(), first.pixel_values.tolist()) == ([[1, 1, 2]], [[0.0], [1.0]])
    assert (second.image_grid_thw.tolist(), second.pixel_values.tolist()) == (
        [[1, 2, 2]],
        [[2.0], [3.0], [4.0], [5.0]],
    )
    assert take_apart(dummy_row([batch])) == [dummy_row([batch])]


def test_images_that_no_stream_assigns_are_refused() -> None:
    batch = row([1, 2], [3, 4])
    broken = MicroBatch(
        **{name: getattr(batch, name) for name in ("input_ids", "position_ids", "cu_seqlens", "loss_mask")},
        advantages=batch.advantages,
        inference_logprobs=None,
        temperatures=batch.temperatures,
        pixel_values=[[0.0]],
        image_grid_thw=[[1, 1, 1]],
    )
    with pytest.raises(AlignmentError, match="does not say which tokens are theirs"):
        take_apart(broken)


def test_scores_are_those_of_the_model_without_dropout(make_trainer: Callable[..., Trainer]) -> None:
    """An evaluation with dropout is worse than the model, and another one each time."""
    pytest.importorskip("peft")
    trainer = make_trainer(lora={"rank": 2, "dropout": 0.9})
    trainer.sft_step([row([5, 6, 7, 8], [9, 10, 11])])  # adapters begin as no change
    before = torch.get_rng_state()
    assert trainer.score(row([5, 6, 7, 8])) == trainer.score(row([5, 6, 7, 8]))
    assert torch.equal(torch.get_rng_state(), before)
