"""The head of a model: what it does between its last hidden states and its logits, found out by asking it.

The whole model is called as ever, and only its head answers differently: what FSDP or adapters hang on the modules
around it stays in force. Shapes: N targets, H hidden size, V vocabulary.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .logprob import HeadForm, Tiles, fused_logprobs

LOG = logging.getLogger("prl.trainer")
Answer = Callable[[Tensor], Tensor]
_FAR = 1e9  # so far out that a soft cap shows its bound


@dataclass(frozen=True, slots=True)
class FusedHead:
    """A linear head whose logits need not exist all at once."""

    module: nn.Module
    form: HeadForm
    tiles: Tiles

    def score(self, run: Callable[[], Tensor], targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
        """Return the targets' log-probabilities and entropies, [N] each.

        `run` calls the model on one row with the contexts of the targets kept, and returns what it gives as logits.
        """
        scored: list[Tensor] = []

        def answer(hidden: Tensor) -> Tensor:
            weight, bias = _operands(self.module)
            pair = fused_logprobs(hidden[0], weight, bias, targets, temperatures, form=self.form, tiles=self.tiles)
            scored.append(torch.stack(pair, dim=-1))
            return scored[0][None]

        with _answering(self.module, answer):
            given = run()[0]
        if self.form != HeadForm():
            # The model bent what it took for logits. Its output still has to be part of the graph: the backward hooks
            # that FSDP hangs on it bring the weights back.
            given = scored[0] + 0.0 * given.sum()
        return given[:, 0], given[:, 1].detach()


def find_head(model: Any, run: Callable[[], Tensor], tiles: Tiles) -> FusedHead | None:
    """Return the model's head where it can be fused; otherwise None, and the reason is logged.

    `run` calls the model on any short row and returns its logits. In a world of processes all must call this.
    """
    module = model.get_output_embeddings()
    reason = _unlike_linear(module)
    form = None
    if not reason:
        with torch.no_grad():
            reason, form = _probe(module, run)
    if form is None:
        LOG.warning("log-probabilities are taken from the model's full logits: %s", reason)
        return None
    return FusedHead(module, form, tiles)


def _unlike_linear(module: Any) -> str:
    """Return why a head is no plain linear map, or an empty text."""
    if module is None:
        return "the model names no head"
    if any(True for _ in module.children()):
        return "its head has parts of its own, such as an adapter"
    if "forward" in vars(module):
        return "its head's forward was replaced"
    weight = getattr(module, "weight", None)
    return "" if isinstance(weight, Tensor) and weight.ndim == 2 else "its head has no weight matrix"


def _probe(module: nn.Module, run: Callable[[], Tensor]) -> tuple[str, HeadForm | None]:
    """Let the head answer known values, and read from the model's logits what becomes of them."""
    values = torch.cat([torch.linspace(-40.0, 40.0, 33), torch.tensor([_FAR])])
    is_linear: list[bool] = []
    original = module.forward

    def answer(hidden: Tensor) -> Tensor:
        weight, bias = _operands(module)
        is_linear.append(torch.equal(original(hidden), functional.linear(hidden, weight, bias)))
        return values.to(hidden.device).expand(*hidden.shape[:-1], len(values))

    with _answering(module, answer):
        found = run()
    if is_linear != [True]:
        return "its head is not a linear map, or is not called once", None
    if found.shape[-1] != len(values):
        return "it selects or adds logits after its head", None
    form = _form_of(values, found.reshape(-1, len(values))[0].float().cpu())
    return ("it changes its logits in a way that is neither a scale nor a soft cap" if form is None else ""), form


def _form_of(values: Tensor, found: Tensor) -> HeadForm | None:
    """Return what maps the values to what was found; None where no scale and no soft cap does."""
    if torch.equal(values, found):
        return HeadForm()
    bound, at_one = float(found[-1]), float(found[17] / values[17])
    for form in (HeadForm(scale=at_one), _capped(bound, float(values[17]), float(found[17]))):
        if form is not None and torch.allclose(apply_form(values, form), found, rtol=1e-5, atol=1e-5):
            return form
    return None


def _capped(bound: float, value: float, found: float) -> HeadForm | None:
    if not 0 < found < bound:
        return None
    return HeadForm(scale=bound * math.atanh(found / bound) / value, softcap=bound)


def apply_form(values: Tensor, form: HeadForm) -> Tensor:
    """Return what the model makes of its head's output."""
    if form.softcap is None:
        return values * form.scale
    return torch.tanh(values * (form.scale / form.softcap)) * form.softcap


def _operands(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    weight, bias = module.get_parameter("weight"), getattr(module, "bias", None)
    return weight, bias if isinstance(bias, Tensor) else None


@contextmanager
def _answering(module: nn.Module, answer: Answer) -> Iterator[None]:
    """Let a module's forward be another function for a while; its hooks stay."""
    module.forward = answer
    try:
        yield
    finally:
        del module.forward
