"""A model that cannot be served is refused with a next step, never half loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from prl.types import ConfigError
from prl_engine_local.engine import create
from prl_engine_local.options import LocalEngineOptions


async def start(model: Any, **options: Any) -> None:
    await create(LocalEngineOptions(model=str(model), **options)).start()


async def test_a_directory_without_weights(model_dir: str, tmp_path: Path) -> None:
    shutil.copy(f"{model_dir}/config.json", tmp_path)
    with pytest.raises(ConfigError, match="no weights") as caught:
        await start(tmp_path)
    assert caught.value.next_step


async def test_a_directory_without_a_config_and_one_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        await start(tmp_path)
    with pytest.raises(ConfigError, match="no model directory"):
        await start(tmp_path / "absent")


async def test_a_checkpoint_that_lacks_a_weight_is_not_filled_with_random_numbers(
    model_dir: str, tmp_path: Path
) -> None:
    shutil.copytree(model_dir, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.norm.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"model\.norm\.weight"):
        await start(tmp_path / "m")


async def test_an_unknown_architecture(model_dir: str, tmp_path: Path) -> None:
    shutil.copytree(model_dir, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"model_type": "nothing-known"}))
    with pytest.raises(ConfigError, match="cannot load"):
        await start(tmp_path / "m")


async def test_a_context_beyond_the_models_positions(model_dir: str) -> None:
    with pytest.raises(ConfigError, match="257 is more than the model's 256"):
        await start(model_dir, max_model_len=257)


async def test_layers_with_state_that_is_not_cached_are_named(new_model: Any, save: Any) -> None:
    from prl_engine_local.masks import MaskBuilder

    model = new_model()
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ConfigError, match="'linear_attention'"):
        MaskBuilder(model.config, model.dtype)


async def test_an_unknown_device(model_dir: str) -> None:
    with pytest.raises(ConfigError, match="unknown device 'gpu'"):
        await start(model_dir, device="gpu")


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(ValidationError, match="max_model_length"):
        LocalEngineOptions.model_validate({"model": "m", "max_model_length": 512})


def test_the_plugin_module_is_light() -> None:
    """Listing plugins must not import torch."""
    import subprocess
    import sys

    code = "import prl_engine_local.plugin as p, sys; print([r.name for r in p.prl_engines()], 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "['local'] False"
