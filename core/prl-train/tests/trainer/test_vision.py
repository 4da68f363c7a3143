"""A vision-language model in the trainer: images, their positions and packing, on a tiny Qwen3-VL."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.small_models import small_qwen3_vl
from torch import Tensor
from transformers import AutoModelForImageTextToText, Qwen3VLForConditionalGeneration

from prl.types import AlignmentError, ConfigError, MicroBatch, TrainingSample
from prl_train.attention.binding import BoundKernel
from prl_train.data import pack
from prl_train.models import load_model
from prl_train.models.vision import token_types
from prl_train.trainer import Trainer, TrainerConfig
from prl_train.trainer.forward import forward_targets

IMAGE, VIDEO, START, END = 190, 191, 192, 193
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def vision_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    directory = tmp_path_factory.mktemp("vision") / "model"
    small_qwen3_vl(vocabulary=200, image=IMAGE, std=0.2).save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text('{"patch_size": 4}')
    return directory


@pytest.fixture
def trainer(vision_dir: Path, kernel: BoundKernel) -> Trainer:
    made = Trainer(TrainerConfig(model=str(vision_dir), lr=1e-2, warmup_steps=0, seq_len=64), kernel=kernel)
    made.load()
    return made


def sample(name: str, grids: list[tuple[int, int]], seed: int, **changes: Any) -> TrainingSample:
    """Return a sample whose prompt has images of these heights and widths in patches."""
    chance = np.random.default_rng(seed)
    ids: list[int] = chance.integers(0, 180, 2).tolist()
    for height, width in grids:
        ids += [START, *[IMAGE] * (height * width // 4), END, *chance.integers(0, 180, 1).tolist()]
    patches = sum(height * width for height, width in grids)
    completion: list[int] = chance.integers(0, 180, 5).tolist()
    made = TrainingSample(
        prompt_ids=ids,
        completion_ids=completion,
        completion_mask=[True] * 5,
        completion_logprobs=[-3.0] * 5,
        temperatures=[0.8] * 5,
        advantage=1.0,
        trajectory_id=name,
        pixel_values=chance.normal(size=(patches, 3 * 2 * 4 * 4)).astype(np.float32) if grids else None,
        image_grid_thw=np.array([(1, h, w) for h, w in grids]) if grids else None,
    )
    return replace(made, **changes)


def samples() -> list[TrainingSample]:
    return [sample("two", [(4, 4), (2, 6)], 1), sample("one", [(6, 2)], 2), sample("big", [(4, 6)], 3)]


def score(trainer: Trainer, row: MicroBatch, kernel: BoundKernel) -> Tensor:
    return forward_targets(trainer.model, row, kernel, device=CPU, head=trainer._head).logprobs


def own_forward(directory: Path, one: TrainingSample) -> Tensor:
    """Return the log-probabilities of a sample from transformers alone, which computes its positions itself."""
    model = AutoModelForImageTextToText.from_pretrained(directory, attn_implementation="eager")
    ids = one.prompt_ids + one.completion_ids
    images: dict[str, Any] = {}
    if one.pixel_values is not None:
        images = {
            "pixel_values": torch.tensor(one.pixel_values),
            "image_grid_thw": torch.tensor(one.image_grid_thw),
            "mm_token_type_ids": torch.tensor([token_types(ids, image=IMAGE, video=VIDEO)]),
        }
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), **images).logits[0] / 0.8
    start = len(one.prompt_ids)
    return logits.log_softmax(-1)[start - 1 : -1].gather(1, torch.tensor(one.completion_ids)[:, None])[:, 0]


def test_log_probabilities_are_those_of_the_model_alone(
    trainer: Trainer, vision_dir: Path, kernel: BoundKernel
) -> None:
    """Positions of an image are three-dimensional: plain counting gives other log-probabilities than the engine's."""
    for one in [*samples(), sample("text", [], 4)]:
        (row,) = pack([one], 64)
        torch.testing.assert_close(score(trainer, row, kernel), own_forward(vision_dir, one), rtol=0, atol=2e-5)


def test_several_samples_with_images_share_a_row(trainer: Trainer, kernel: BoundKernel) -> None:
    (row,) = pack(samples(), 64, pad_to=64)
    assert row.pixel_values.shape == (16 + 12 + 24 + 12, 96)
    assert row.cu_seqlens == [0, 20, 36, 49]
    assert row.image_grid_thw.tolist() == [[1, 4, 4], [1, 2, 6], [1, 4, 6], [1, 6, 2]]
    packed = score(trainer, row, kernel)
    packed.sum().backward()
    gradients = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
    assert any(name.startswith("model.visual") for name in gradients)
    trainer.model.zero_grad()
    made = samples()
    alone = torch.cat([score(trainer, pack([one], 64)[0], kernel) for one in (made[0], made[2], made[1])])
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-5)
    alone.sum().backward()
    for name, parameter in trainer.model.named_parameters():
        if name in gradients:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=2e-4)


def test_samples_of_text_have_rows_of_their_own(trainer: Trainer) -> None:
    rows = pack([*samples(), sample("text", [], 4)], 64)
    assert [row.pixel_values is None for row in rows] == [False, True]
    assert trainer.step(rows)["samples"] == 4.0


def test_images_of_another_kind_do_not_share_a_row() -> None:
    first, second = samples()[:2]
    halved = replace(second, pixel_values=second.pixel_values.astype(np.float16))
    assert len(pack([first, halved], 64)) == 2


Spoil = Callable[[TrainingSample], TrainingSample]


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (
            lambda s: replace(s, image_grid_thw=s.image_grid_thw[:1]),
            r"images of \[4, 3\] features, the images have \[4\]",
        ),
        (
            lambda s: replace(s, image_grid_thw=s.image_grid_thw[::-1]),
            r"of \[4, 3\] features, the images have \[3, 4\]",
        ),
        (lambda s: replace(s, pixel_values=s.pixel_values[:-1]), "27 patches, image_grid_thw says 28"),
        (lambda s: replace(s, pixel_values=None, image_grid_thw=None), r"the images have \[\]"),
        (lambda s: replace(s, prompt_ids=[*s.prompt_ids, VIDEO]), "placeholders of a video"),
        (lambda s: replace(s, mm_token_type_ids=[0] * len(s)), "mm_token_type_ids of the samples are not those"),
    ],
    ids=["an image missing", "another order", "a patch missing", "no images", "a video", "other token types"],
)
def test_placeholders_and_features_must_fit(spoil: Spoil, finding: str, trainer: Trainer, kernel: BoundKernel) -> None:
    """A picture in another's place is trained on without any sign of it."""
    (row,) = pack([spoil(samples()[0])], 64)
    with pytest.raises(AlignmentError, match=finding):
        score(trainer, row, kernel)


def test_features_without_their_grid_are_refused_when_packed() -> None:
    with pytest.raises(AlignmentError, match="one of pixel_values and image_grid_thw"):
        pack([replace(samples()[0], image_grid_thw=None)], 64)


def test_images_for_a_model_of_text_are_refused(make_trainer: Callable[..., Trainer], kernel: BoundKernel) -> None:
    (row,) = pack(samples(), 64)
    with pytest.raises(ConfigError, match="the model has no positions for them"):
        score(make_trainer(), row, kernel)


def test_a_trained_model_is_published_with_its_vision_tower(trainer: Trainer, tmp_path: Path) -> None:
    """An engine must be able to load it: same class, same names, its image processor beside it."""
    before = trainer.model.model.visual.patch_embed.proj.weight.detach().clone()
    trainer.step(pack(samples(), 64))
    published = trainer.publish_weights(tmp_path, 1)
    again = load_model(published)
    assert type(again) is Qwen3VLForConditionalGeneration
    weight = again.model.visual.patch_embed.proj.weight
    assert torch.equal(weight, trainer.model.model.visual.patch_embed.proj.weight)
    assert not torch.equal(weight, before)
    assert json.loads((published / "preprocessor_config.json").read_text()) == {"patch_size": 4}
    assert "prl_packed" not in (published / "config.json").read_text()
