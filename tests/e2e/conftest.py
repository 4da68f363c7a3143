"""A small real run: real renderer, engine and trainer, cut to a few steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fixtures.forks import Forks

from prl.cli.main import main
from prl.config import load_config
from prl_train.config import RLConfig

QUICKSTART = Path(__file__).parents[2] / "docs" / "examples" / "quickstart.toml"
SHORT = (
    "orchestrator.steps=4",
    "orchestrator.group_size=8",
    "orchestrator.groups_per_step=3",
    "model.scratch.tokenizer_examples=64",
    "warmup.steps=12",
    "warmup.batch_size=8",
    "trainer.checkpoint_every=2",
    "sinks=[]",
)

Configure = Callable[..., RLConfig]
Prl = Callable[..., "Told"]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """Where processes of a test come from that need not import by themselves."""
    with Forks() as forks:
        yield forks


@pytest.fixture
def quickstart() -> Path:
    return QUICKSTART


@pytest.fixture
def configure() -> Configure:
    """Return the quickstart's configuration, shortened, for a run directory."""

    def make(directory: Path, *overrides: str) -> RLConfig:
        return load_config(RLConfig, QUICKSTART, [*SHORT, f"run.directory={directory}", *overrides])

    return make


@pytest.fixture
def short() -> tuple[str, ...]:
    return SHORT


@dataclass(frozen=True)
class Told:
    """How a command ended, and what it wrote to stderr."""

    code: int
    stderr: str


@pytest.fixture
def prl(capfd: pytest.CaptureFixture[str]) -> Prl:
    """Run the `prl` command in this process to its end."""

    def run(*words: str) -> Told:
        code = main(words)
        return Told(code, capfd.readouterr().err)

    return run


@pytest.fixture
def on_model(tmp_path: Path) -> Callable[[str | Path], Path]:
    """Return the quickstart's file with a model directory in place of one made from scratch."""

    def write(model: str | Path) -> Path:
        head, _, rest = QUICKSTART.read_text(encoding="utf-8").partition("[model.scratch]")
        kept = rest.partition("[renderer_options]")[2]
        path = tmp_path / "on_model.toml"
        path.write_text(f'{head}[model]\npath = "{model}"\n\n[renderer_options]{kept}', encoding="utf-8")
        return path

    return write
