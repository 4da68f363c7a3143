"""A tiny model, an environment that three processes find as an installed plugin, and one engine for the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fixtures.forks import Forks
from fixtures.ports import free_port

from prl.plugin import RendererEntry, get_registry
from prl.testing.fake_dist import write_fake_dist

from .world import World, engine

Begin = Callable[..., World]


@pytest.fixture(scope="package")
def forks() -> Iterator[Forks]:
    """Where all processes of these tests come from."""
    with Forks() as forks:
        yield forks


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plugin that offers the environment."""
    folder = tmp_path_factory.mktemp("site")
    source = (Path(__file__).parent / "talk.py").read_text(encoding="utf-8")
    write_fake_dist(folder, "faults-talk", source, module="faults_talk_plugin")
    return folder


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from prl_train.models import create_tiny_qwen3, train_small_tokenizer

    controls = get_registry().find(RendererEntry, "qwen3").control_tokens
    texts = ["user\nSay something about 17.", "user\nGo on, this was turn 2.", "assistant\n<think>\n\n</think>\n\n"] * 4
    tokenizer = train_small_tokenizer(texts, controls, 340)
    return create_tiny_qwen3(
        tmp_path_factory.mktemp("model") / "tiny",
        tokenizer.to_str(),
        hidden_size=32,
        layers=1,
        heads=2,
        intermediate=64,
        max_position_embeddings=512,
    )


@pytest.fixture(scope="module")
def engine_port(forks: Forks, site: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """An engine that several runs use, one after the other."""
    port = free_port()
    with engine(forks, site, model, port, tmp_path_factory.mktemp("engine") / "engine.log"):
        yield port


@pytest.fixture
def begin(forks: Forks, tmp_path: Path, site: Path, model: Path) -> Iterator[Begin]:
    """Make the world of a test; its processes end with it."""
    worlds: list[World] = []

    def make(port: int, steps: int) -> World:
        worlds.append(World(forks, tmp_path, site, model, port, steps).__enter__())
        return worlds[-1]

    yield make
    for world in worlds:
        world.__exit__()
