"""A vision-language model in a whole run: ids from the server, features from the model's own processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.tiny_vision import picture, save_tiny_qwen3_vl
from fixtures.vision_server import VisionServer, vision_server

from prl.testing.fake_dist import active_site, write_fake_dist
from prl.types import TrainingSample
from prl_train.config import RLConfig
from prl_train.launch.processes import run_everything
from prl_train.run import RunFolder
from prl_train.run.metrics import read_metrics

pytestmark = pytest.mark.heavy

PLUGIN = """
    from prl.plugin import EnvironmentEntry, hookimpl

    @hookimpl
    def prl_environments():
        return [EnvironmentEntry(name="pictures", target="acme_pictures:create")]
"""
ENVIRONMENT = '''
from prl.contracts import Example, StepResult


def ask(text, *names):
    pictures = [{"type": "image_url", "image_url": {"url": name}} for name in names]
    return {"role": "user", "content": [{"type": "text", "text": text}, *pictures]}


class Pictures:
    """One picture, then none, then two: the reward is arbitrary, so that siblings differ."""

    name, max_turns, tools = "pictures", 3, None

    def example(self, index):
        return Example(id=str(index % 2), messages=(ask("What is on this picture?", f"{index % 2}.png"),))

    def start(self, example):
        return Episode()


class Episode:
    def __init__(self):
        self.turns = 0

    async def step(self, message, parsed):
        self.turns += 1
        following = (ask("And now?"),) if self.turns == 1 else (ask("And that one?", "2.png", "0.png"),)
        return StepResult(messages=following, done=self.turns == 3, reward=len(message["content"]) / 10)


def create(options):
    return Pictures()
'''


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny_qwen3_vl(tmp_path_factory.mktemp("vision") / "model", seed=3)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    for number, (height, width) in enumerate([(32, 48), (48, 16), (16, 32)]):
        (folder / f"{number}.png").write_bytes(picture(number, height, width))
    return folder


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[VisionServer]:
    site = tmp_path / "site"
    write_fake_dist(site, "acme", PLUGIN)
    (site / "acme_pictures.py").write_text(ENVIRONMENT)
    with active_site(site), vision_server(model) as running:
        yield running


def config_of(model: Path, pictures: Path, server: VisionServer, directory: Path, **settings: Any) -> RLConfig:
    values = {
        "renderer": "qwen3",
        "sinks": [],
        "run": {"directory": str(directory), "report": False},
        "model": {"path": str(model)},
        "engine": {"url": server.url},
        "environments": [{"name": "pictures"}],
        "images": {"directory": str(pictures)},
        "sampling": {"max_tokens": 4},
        "orchestrator": {"steps": 2, "group_size": 3, "groups_per_step": 2, "max_async_level": 0},
        "trainer": {"lr": 1e-3, "warmup_steps": 0, "seq_len": 256},
    }
    return RLConfig.model_validate(values | settings)


@pytest.mark.parametrize("mode", ["chat", "token"])
def test_a_run_trains_on_the_images_that_the_server_saw(
    model: Path, pictures: Path, server: VisionServer, tmp_path: Path, mode: str
) -> None:
    """The trainer's log-probabilities equal the server's: placeholders, features and positions all fit."""
    server.model.ends_turns = True
    run_everything(config_of(model, pictures, server, tmp_path / "run", client_mode=mode))
    folder = RunFolder(tmp_path / "run")
    rows = read_metrics(folder.metrics)
    assert [row["step"] for row in rows] == [0, 1]
    assert all(row["rollouts/errors"] == 0 for row in rows)
    trained = [row for row in rows if not row["step_skipped"]]
    assert trained, "no batch had a learning signal"
    assert max(row["max_logprob_diff"] for row in trained) < 1e-3
    batch = folder.read_batch(folder.batch_steps()[-1])
    assert batch is not None
    for sample in batch.samples:
        check_sample(model, sample)
    assert max(len(np.asarray(sample.image_grid_thw)) for sample in batch.samples) == 3
    rendered, given = (server.routes.count(f"/v1/chat/completions{end}") for end in ("", "/tokens"))
    # Of the three turns of a rollout, the server renders those that bring images.
    assert (rendered, given) == ((24, 12) if mode == "token" else (36, 0))


def check_sample(model: Path, sample: TrainingSample) -> None:
    """Placeholders, types and patches of a sample as it was written are one to one."""
    ids = sample.prompt_ids + sample.completion_ids
    pixels, grids = np.asarray(sample.pixel_values), np.asarray(sample.image_grid_thw)
    assert sample.mm_token_type_ids is not None
    assert len(pixels) == int(grids.prod(axis=1).sum())
    assert sum(sample.mm_token_type_ids) == int(grids.prod(axis=1).sum()) // 4
    assert len(sample.mm_token_type_ids) == len(ids)


def test_the_written_features_give_the_servers_log_probabilities(
    model: Path, pictures: Path, server: VisionServer, tmp_path: Path
) -> None:
    """Without any part of the trainer: transformers' own forward pass over what stands in the batch."""
    from transformers import Qwen3VLForConditionalGeneration

    orchestrator = {"steps": 1, "group_size": 4, "groups_per_step": 1, "max_async_level": 0}
    run_everything(config_of(model, pictures, server, tmp_path / "run", client_mode="chat", orchestrator=orchestrator))
    folder = RunFolder(tmp_path / "run")
    batch = folder.read_batch(0)
    assert batch is not None
    assert batch.samples
    make: Any = Qwen3VLForConditionalGeneration
    plain = make.from_pretrained(model, dtype=torch.float32).eval()
    for sample in batch.samples[:3]:
        ids = torch.tensor([sample.prompt_ids + sample.completion_ids])
        with torch.no_grad():
            logits = plain(
                input_ids=ids,
                pixel_values=torch.tensor(np.asarray(sample.pixel_values)),
                image_grid_thw=torch.tensor(np.asarray(sample.image_grid_thw)),
                mm_token_type_ids=torch.tensor([sample.mm_token_type_ids]),
            ).logits[0]
        scores = torch.log_softmax(logits.float(), -1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
        before = len(sample.prompt_ids)
        assert sample.completion_logprobs is not None
        for place, (flag, reported) in enumerate(zip(sample.completion_mask, sample.completion_logprobs, strict=True)):
            if flag:
                assert float(scores[before + place - 1]) == pytest.approx(reported, abs=1e-4)


def test_images_outside_the_allowed_folder_end_the_run_with_its_reason(
    model: Path, server: VisionServer, tmp_path: Path
) -> None:
    from prl.types import PrlError

    (tmp_path / "empty").mkdir()
    with pytest.raises(PrlError, match="cannot be read"):
        run_everything(config_of(model, tmp_path / "empty", server, tmp_path / "run", client_mode="chat"))
