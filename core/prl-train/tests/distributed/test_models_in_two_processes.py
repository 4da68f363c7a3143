"""Divided models of other kinds do what whole ones do: scaled and capped logits, replayed experts, images."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.small_models import TWO_HEADS, small_qwen3_vl
from torch import nn
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM
from transformers.models.auto import CONFIG_MAPPING

from prl.types import ConfigError, MicroBatch, TrainingSample
from prl_train.attention.binding import IMPLEMENTATION, resolve_kernel
from prl_train.data import pack
from prl_train.distributed import World
from prl_train.distributed.sharding import whole
from prl_train.models import load_model
from prl_train.trainer.forward import forward_targets, prepare_head
from prl_train.trainer.logprob import Tiles

from .cases import make_trainer, samples
from .spawn import run_world

IMAGE = 260
SIZES = TWO_HEADS | {"vocab_size": 270}


def save(model: Any, directory: Path) -> None:
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(directory)


def make_models(folder: Path) -> None:
    torch.manual_seed(4)
    kinds: dict[str, dict[str, Any]] = {
        "granite": {"logits_scaling": 4.0, "tie_word_embeddings": False},
        "gemma3_text": {"final_logit_softcapping": 3.0},
        "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    }
    for kind, changes in kinds.items():
        config = CONFIG_MAPPING[kind](**(SIZES | changes))
        config.pad_token_id = None
        save(AutoModelForCausalLM.from_config(config), folder / kind)
    # A head of its own, in a checkpoint whose config.json says that there is none.
    shutil.copytree(folder / "granite", folder / "granite_own_head")
    settings = json.loads((folder / "granite_own_head" / "config.json").read_text())
    (folder / "granite_own_head" / "config.json").write_text(json.dumps(settings | {"tie_word_embeddings": True}))
    small_qwen3_vl(vocabulary=270, image=IMAGE, std=0.15).save_pretrained(folder / "qwen3_vl")


def plain_rows() -> list[MicroBatch]:
    return pack(samples(5), 24)


def routed_rows() -> list[MicroBatch]:
    """Return rows whose tokens went to experts that no router would choose."""
    chance = np.random.default_rng(0)

    def routes(length: int) -> np.ndarray:
        return np.stack([[chance.permutation(4)[:2] for _ in range(2)] for _ in range(length)])

    return pack([replace(s, routed_experts=routes(len(s))) for s in samples(5)], 24)


def image_rows() -> list[MicroBatch]:
    """Return a row with an image and rows of text: one process has the image, the other none."""
    pixels = np.random.default_rng(1).normal(size=(16, 3 * 2 * 4 * 4)).astype(np.float32)
    seen = TrainingSample(
        prompt_ids=[5, *[IMAGE] * 4, 6],
        completion_ids=[7, 8, 9],
        completion_mask=[True] * 3,
        completion_logprobs=[-5.0] * 3,
        temperatures=[1.0] * 3,
        advantage=1.0,
        pixel_values=pixels,
        image_grid_thw=np.array([[1, 4, 4]]),
    )
    return pack([seen, *samples(3)], 24)


CASES: dict[str, tuple[str, Callable[[], list[MicroBatch]], dict[str, Any]]] = {
    "scaled logits": ("granite", plain_rows, {"logprob_chunk": 4}),
    "a head of its own": ("granite_own_head", plain_rows, {}),
    "capped logits": ("gemma3_text", plain_rows, {"logprob_chunk": 4, "logprob_vocabulary_chunk": 100}),
    "full logits": ("gemma3_text", plain_rows, {"logprob_chunk": 0}),
    "replayed experts": ("qwen3_moe", routed_rows, {"gradient_checkpointing": True}),
    "images": ("qwen3_vl", image_rows, {}),
}


def two_steps(folder: Path, name: str, world: World | None) -> list[dict[str, float]]:
    kind, rows, settings = CASES[name]
    trainer = make_trainer(folder / kind, world, lr=3e-3, **settings)
    assert (trainer._head is None) == (settings.get("logprob_chunk") == 0), "the head was not fused"
    return [trainer.step(rows()) for _ in range(2)]


def head_gradient(folder: Path, world: World | None) -> torch.Tensor:
    """Return the gradient of a head that is divided apart from the rest, whose weights go back after it was called."""
    model = load_model(folder / "granite", attention=IMPLEMENTATION)
    if world is not None:
        fully_shard(model.lm_head, mesh=world.mesh, reshard_after_forward=True)
        fully_shard(model, mesh=world.mesh)
    bound, device = resolve_kernel("sdpa", device="cpu", dtype="float32"), torch.device("cpu")
    head = prepare_head(model, bound, device, Tiles(4))
    assert head is not None
    forward_targets(model, plain_rows()[0], bound, device=device, head=head).logprobs.sum().backward()
    return whole(model.lm_head.weight.grad)


SHARED = ("replayed experts", "capped logits")
"""Cases that are also run with each row divided over the two processes."""


def _work(world: World, folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = {name: two_steps(folder, name, world) for name in CASES}
    pair = World(world.place, context=2)
    told |= {f"{name}, rows divided": two_steps(folder, name, pair) for name in SHARED}
    try:
        two_steps(folder, "images", pair)
    except ConfigError as error:
        told["images, rows divided"] = error.what
    told["head apart"] = head_gradient(folder, world)
    return told


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder, run_world(2, _work, folder)


@pytest.mark.parametrize("name", [*CASES, *(f"{name}, rows divided" for name in SHARED)])
def test_two_processes_do_what_one_does(name: str, told: tuple[Path, list[Any]]) -> None:
    """A head that answers for a divided weight, or a layer that waits for one process only, would show here."""
    folder, ranks = told
    alone = two_steps(folder, name.removesuffix(", rows divided"), None)
    for rank in ranks:
        assert isinstance(rank, dict), rank
        for mine, theirs in zip(rank[name], alone, strict=True):
            for key in ("loss", "grad_norm", "entropy", "mismatch_kl"):
                assert mine[key] == pytest.approx(theirs[key], rel=2e-4), key


def test_a_head_that_is_divided_apart_is_whole_again_in_the_backward_pass(told: tuple[Path, list[Any]]) -> None:
    """Its weights are freed after the forward pass; the fused backward pass would read nothing."""
    folder, ranks = told
    alone = head_gradient(folder, None)
    for rank in ranks:
        torch.testing.assert_close(rank["head apart"], alone, rtol=1e-5, atol=1e-5)


def test_a_row_with_images_is_not_divided(told: tuple[Path, list[Any]]) -> None:
    """Half the placeholders with all the features would be another picture."""
    assert [rank["images, rows divided"] for rank in told[1]] == [
        "a row with images cannot be divided over ranks: the image's features belong to the whole row"
    ] * 2
