"""Loading weights in a worker, between two engine steps, so that the outputs are those of a fresh server.

vLLM's own reload leaves two things behind on CPUs: a tied output head keeps a packed copy of the old embedding, and
experts of a mixture are not packed a second time, so that their kernel reads plain weights as packed ones. Both give
wrong numbers without a sign, and both are repaired here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, cast

from prl.transfer import GroupError
from prl.types import PrlError
from prl_engine_vllm.checkpoint import check_tensors, read_shapes, stream

from .seat import seat_of

RECEIVING = ("prl_offer_weights", "prl_receive_weights", "prl_check_received", "prl_load_received", "prl_drop_received")


class WorkerLoadError(RuntimeError):
    """A worker refused weights; plain text, since it crosses processes."""


class WorkerMethods:
    """Methods for vLLM's worker class; `self` is the worker."""

    @staticmethod
    def names() -> tuple[str, ...]:
        """Return the names under which the front end calls the methods."""
        return ("prl_check_weights", "prl_load_weights", *RECEIVING)

    def prl_check_weights(self, directory: str) -> int:
        """Return how many tensors this worker sees in the directory; touch nothing."""
        try:
            return len(read_shapes(directory))
        except PrlError as error:
            raise WorkerLoadError(error.what) from error

    def prl_load_weights(self, directory: str) -> bool:
        """Load the directory's tensors into the running model. A failure leaves a model that is whole but undefined."""
        worker = cast("Any", self)
        config = importlib.import_module("vllm.config")
        with config.set_current_vllm_config(worker.vllm_config):
            load(worker.model_runner, lambda: stream(directory), is_cpu=worker.device_config.device_type == "cpu")
        return True

    def prl_offer_weights(self, body: str) -> str:
        """Remember what a transfer would bring; return this worker's device as a transfer's group knows it."""
        worker = cast("Any", self)
        try:
            return seat_of(worker).offer(body)
        except GroupError as error:
            raise WorkerLoadError(str(error)) from error

    def prl_receive_weights(self, body: str) -> int:
        """Receive the offered tensors into CPU memory; return their number. The model is not touched."""
        try:
            return seat_of(cast("Any", self)).receive(body)
        except GroupError as error:
            raise WorkerLoadError(str(error)) from error

    def prl_check_received(self, tied: bool) -> bool:
        """Refuse received values that are not finite, or that differ where the model has one tensor."""
        try:
            check_tensors(seat_of(cast("Any", self)).tensors.items(), "", tied=tied)
        except PrlError as error:
            raise WorkerLoadError(error.what) from error
        return True

    def prl_load_received(self) -> bool:
        """Load what was received into the running model. A failure leaves a model that is whole but undefined."""
        worker = cast("Any", self)
        tensors = seat_of(worker).take()
        config = importlib.import_module("vllm.config")
        with config.set_current_vllm_config(worker.vllm_config):
            load(worker.model_runner, lambda: iter(tensors.items()), is_cpu=worker.device_config.device_type == "cpu")
        return True

    def prl_drop_received(self) -> bool:
        """Forget what was received and leave the group."""
        seat_of(cast("Any", self)).drop()
        return True


def load(runner: Any, tensors: Callable[[], Iterator[tuple[str, Any]]], *, is_cpu: bool) -> None:
    """Reload a model runner's weights; raise what failed, after making the model whole again."""
    model = runner.get_model()
    if is_cpu:
        _forget_packed_experts(model)
    try:
        runner.reload_weights(weights_iterator=tensors())
    except BaseException:
        _abandon(model, runner.model_config)
        raise
    finally:
        if is_cpu:
            _pack_heads(model)


def _abandon(model: Any, model_config: Any) -> None:
    """End a reload that failed half way: layers left on the meta device would end the engine at its next step.

    What a layer has buffered is dropped first, since finishing the layer with it would raise the same error again.
    """
    reload = importlib.import_module("vllm.model_executor.model_loader.reload.layerwise")
    for layer in model.modules():
        info = reload.get_layerwise_info(layer)
        info.loaded_weights.clear()
        info.load_numel = 0
    reload.finalize_layerwise_reload(model, model_config)


def _forget_packed_experts(model: Any) -> None:
    """Make each mixture's method pack its experts again: it does so only where it has no kernel yet."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            cast("Any", method).moe_kernel = None


def _pack_heads(model: Any) -> None:
    """Pack again what keeps both a packed copy and its plain weight: heads and embeddings, tied ones above all."""
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and weight is not None and weight.numel() and not weight.is_meta:
            module.quant_method.process_weights_after_loading(module)
