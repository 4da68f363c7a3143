"""Bad input to `prl rl` and its kin: three parts on stderr, a non-zero exit, nothing half-written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prl_train.models import create_tiny_qwen3, train_small_tokenizer


def three_parts(result: Any) -> str:
    """Return stderr of a command that failed as it should."""
    assert result.code != 0
    assert "Traceback" not in result.stderr
    assert "prl: error: " in result.stderr
    assert "  where: " in result.stderr
    assert "  next:  " in result.stderr
    return str(result.stderr)


@pytest.mark.parametrize(
    ("override", "named", "hint"),
    [
        ("renderer=qwen33", "qwen33", "qwen3"),
        ("orchestrator.group_sise=4", "group_sise", "group_size"),
        ("orchestrator.group_size=1", "group_size", "group_size"),
        ("client_mode=rendererr", "rendererr", "renderer"),
        ("engine.kind=locall", "locall", "local"),
        ("sinks=['consol']", "consol", "console"),
        ("trainer.attention=sdpaa", "sdpaa", "sdpa"),
        ("renderer_options.enable_thinkin=true", "enable_thinkin", "enable_thinking"),
    ],
)
def test_a_wrong_name_is_told_with_the_close_one_and_leaves_no_folder(
    tmp_path: Path, quickstart: Path, prl: Any, override: str, named: str, hint: str
) -> None:
    directory = tmp_path / "run"
    told = three_parts(prl("rl", "-c", str(quickstart), f"run.directory={directory}", override))
    assert named in told
    assert hint in told
    assert f"command line {override!r}" in told, "it does not say where to look"
    assert not directory.exists()


def test_an_engine_that_is_not_up(tmp_path: Path, quickstart: Path, short: tuple[str, ...], prl: Any) -> None:
    url = ("engine.url=http://127.0.0.1:9", "engine.start_seconds=0")
    run = ("-c", str(quickstart), *short, f"run.directory={tmp_path / 'run'}", *url)
    told = three_parts(prl("orchestrator", *run))
    assert "http://127.0.0.1:9" in told
    assert "prl serve" in told


def test_a_model_directory_without_weights(tmp_path: Path, quickstart: Path, prl: Any) -> None:
    from prl.plugin import RendererEntry, get_registry

    control = get_registry().find(RendererEntry, "qwen3").control_tokens
    model = tmp_path / "model"
    create_tiny_qwen3(model, train_small_tokenizer([], control, 256 + len(control)).to_str(), hidden_size=24)
    (model / "model.safetensors").unlink()
    text = quickstart.read_text().split("[model.scratch]")[0] + "[model]\npath = " + f'"{model}"\n'
    text += "[renderer_options]\nenable_thinking = false\n[[environments]]\nname = 'number-guessing'\n"
    config = tmp_path / "run.toml"
    config.write_text(text)
    told = three_parts(prl("rl", "-c", str(config), f"run.directory={tmp_path / 'run'}"))
    assert "no weights" in told
    assert str(model) in told


def test_a_model_that_is_not_there(tmp_path: Path, quickstart: Path, prl: Any) -> None:
    config = tmp_path / "run.toml"
    config.write_text("[model]\npath = '/nowhere/model'\n[[environments]]\nname = 'number-guessing'\n")
    assert "/nowhere/model" in three_parts(prl("rl", "-c", str(config), f"run.directory={tmp_path / 'run'}"))


def test_a_config_file_that_is_not_there(tmp_path: Path, prl: Any) -> None:
    assert "absent.toml" in three_parts(prl("rl", "-c", str(tmp_path / "absent.toml")))


def test_a_folder_of_something_else_is_not_overwritten(tmp_path: Path, quickstart: Path, prl: Any) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    told = three_parts(prl("rl", "-c", str(quickstart), f"run.directory={tmp_path}", "--overwrite"))
    assert "not a run folder" in told
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]
