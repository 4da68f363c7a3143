"""What is put into vLLM's workers, over stand-ins for vLLM's modules; the real ones are used in test_weights.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from prl.serving.errors import WeightLoadError
from prl_engine_vllm.checkpoint import check_fits, check_values, read_shapes, served_directory, stream
from prl_engine_vllm.worker import general
from prl_engine_vllm.worker.load import WorkerLoadError, WorkerMethods, load


@pytest.fixture
def worker_class(monkeypatch: pytest.MonkeyPatch) -> type:
    """Stand-in for vLLM's worker class, where `register` looks for it."""

    class WorkerBase:
        pass

    module = ModuleType("vllm.v1.worker.worker_base")
    module.WorkerBase = WorkerBase  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return WorkerBase


def test_registering_twice_puts_the_methods_in_place_once(worker_class: Any) -> None:
    """vLLM calls it in every process, some of them more than once."""
    general.register()
    methods = dict(vars(worker_class))
    general.register()
    assert {name for name in methods if name.startswith("prl_")} == set(WorkerMethods.names())
    assert {name: methods[name] for name in methods if name.startswith("prl_")} == {
        name: value for name, value in vars(worker_class).items() if name.startswith("prl_")
    }


@pytest.mark.parametrize("has_tiles", [True, False])
def test_amx_is_asked_for_before_the_first_prompt(
    monkeypatch: pytest.MonkeyPatch, worker_class: Any, has_tiles: bool
) -> None:
    """A first prompt of a few tokens otherwise ends the worker with an illegal instruction."""
    asked: list[str] = []
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has_tiles)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: asked.append("asked"))
    general.register()
    assert asked == (["asked"] if has_tiles else [])


def test_a_worker_that_cannot_see_the_directory_says_so_in_plain_text(worker_class: Any) -> None:
    general.register()
    with pytest.raises(WorkerLoadError, match="no such directory"):
        worker_class().prl_check_weights("/not/on/this/machine")


class Method:
    """Stand-in for the part of a layer that packs its weights."""

    def __init__(self, log: list[str]) -> None:
        self.moe_kernel: object | None = object()
        self.log = log

    def process_weights_after_loading(self, layer: Any) -> None:
        self.log.append("packed")


def make_runner(log: list[str], failure: Exception | None = None) -> tuple[Any, Any, Any]:
    """Return a runner of one mixture layer and one head that keeps a packed copy."""
    experts, head = torch.nn.Module(), torch.nn.Linear(2, 2)
    experts.quant_method, head.quant_method, head.cpu_linear = Method(log), Method(log), object()
    model = torch.nn.Module()
    model.experts, model.head = experts, head

    def reload_weights(weights_iterator: Iterator[Any]) -> None:
        log.append(f"loaded {len(list(weights_iterator))}, kernel {experts.quant_method.moe_kernel}")
        if failure is not None:
            raise failure

    return SimpleNamespace(get_model=lambda: model, reload_weights=reload_weights, model_config="config"), experts, head


def test_on_a_cpu_experts_and_heads_are_packed_again() -> None:
    log: list[str] = []
    runner, _, _ = make_runner(log)
    load(runner, lambda: iter([("a", None)]), is_cpu=True)
    assert log == ["loaded 1, kernel None", "packed"]


def test_on_a_gpu_nothing_is_touched_besides() -> None:
    log: list[str] = []
    runner, experts, _ = make_runner(log)
    load(runner, lambda: iter([]), is_cpu=False)
    assert [entry.split(",")[0] for entry in log] == ["loaded 0"]
    assert experts.quant_method.moe_kernel is not None


def test_a_failed_load_drops_what_layers_have_buffered_and_ends_the_reload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers left half loaded end the engine at its next step; finishing them with the bad tensor fails again."""
    log: list[str] = []
    runner, _, _ = make_runner(log, ValueError("bad shape"))
    infos: dict[int, Any] = {}
    reload = ModuleType("vllm.model_executor.model_loader.reload.layerwise")

    def info_of(layer: Any) -> Any:
        return infos.setdefault(id(layer), SimpleNamespace(loaded_weights=["buffered"], load_numel=3))

    def finalize(model: Any, config: Any) -> None:
        log.append(f"ended with {config}, {sum(len(info.loaded_weights) + info.load_numel for info in infos.values())}")

    reload.get_layerwise_info, reload.finalize_layerwise_reload = info_of, finalize  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, reload.__name__, reload)
    with pytest.raises(ValueError, match="bad shape"):
        load(runner, lambda: iter([]), is_cpu=True)
    assert log[1:] == ["ended with config, 0", "packed"]
    assert len(infos) == 3


WEIGHTS = {"model.embed_tokens.weight": torch.ones(4, 2), "model.norm.weight": torch.ones(2)}


def published(folder: Path, tensors: dict[str, torch.Tensor]) -> str:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def test_a_tied_head_may_be_given_or_left_out(tmp_path: Path) -> None:
    plain = published(tmp_path / "plain", WEIGHTS)
    headed = published(tmp_path / "headed", WEIGHTS | {"lm_head.weight": torch.ones(4, 2)})
    for given, expected in ((plain, headed), (headed, plain), (plain, plain)):
        check_fits(read_shapes(given), read_shapes(expected), given, tied=True)
        check_values(given, tied=True)
    with pytest.raises(WeightLoadError, match=r"lacks 'lm_head\.weight'"):
        check_fits(read_shapes(plain), read_shapes(headed), plain, tied=False)
    with pytest.raises(WeightLoadError, match=r"has no 'lm_head\.weight'"):
        check_fits(read_shapes(headed), read_shapes(plain), headed, tied=False)


def test_types_of_one_byte_are_read(tmp_path: Path) -> None:
    """Quantized checkpoints hold them, and torch cannot say whether they are finite."""
    folder = published(tmp_path / "fp8", {"w": torch.ones(2, 2).to(torch.float8_e4m3fn)})
    check_values(folder, tied=False)
    assert [name for name, _ in stream(folder)] == ["w"]


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    folder = published(tmp_path / "twice", WEIGHTS)
    save_file(WEIGHTS, tmp_path / "twice" / "more.safetensors")
    with pytest.raises(WeightLoadError, match="in two files"):
        read_shapes(folder)


def test_the_served_checkpoint_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served_directory(str(tmp_path), "auto") == str(tmp_path)
    assert served_directory(str(tmp_path), "dummy") is None
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(WeightLoadError, match="not on this machine"):
        served_directory("acme/never-downloaded", "auto")
