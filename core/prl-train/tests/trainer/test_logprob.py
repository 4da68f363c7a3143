"""Log-probabilities without full logits: the same numbers and gradients as from full logits, in less memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fixtures.small_models import TWO_HEADS
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM
from transformers.models.auto import CONFIG_MAPPING

from prl.types import MicroBatch
from prl_train.attention.binding import IMPLEMENTATION, BoundKernel
from prl_train.trainer.forward import Targets, forward_targets, prepare_head
from prl_train.trainer.head import FusedHead, apply_form
from prl_train.trainer.logprob import HeadForm, Tiles, fused_logprobs, plain_logprobs

CPU = torch.device("cpu")
N, H, V = 37, 12, 101


class Largest(TorchDispatchMode):
    """Records the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return out


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(N, H), torch.randn(V, H), torch.randn(V)
    leaves = [x.to(dtype).requires_grad_() for x in (hidden, weight, bias)]
    temperatures = torch.tensor([1.0, 0.6, 2.5, 0.0])[torch.arange(N) % 4]
    return leaves[0], leaves[1], leaves[2], torch.randint(0, V, (N,)), temperatures


def score(logprobs: Tensor) -> Tensor:
    """Weigh each target differently, so that a mixed-up gradient shows."""
    return (logprobs * torch.linspace(-1, 1, len(logprobs))).sum()


@pytest.mark.parametrize("tiles", [Tiles(), Tiles(1), Tiles(8), Tiles(8, 7), Tiles(64, 101), Tiles(5, 1)], ids=str)
@pytest.mark.parametrize(
    "form",
    [HeadForm(), HeadForm(0.25), HeadForm(softcap=3.0), HeadForm(0.5, 2.0)],
    ids=["plain", "scale", "cap", "both"],
)
def test_values_and_gradients_are_those_of_full_logits(tiles: Tiles, form: HeadForm) -> None:
    hidden, weight, bias, targets, temperatures = operands()
    logits = apply_form(nn.functional.linear(hidden, weight, bias), form)
    expected = plain_logprobs(logits, targets, temperatures)
    gradients = torch.autograd.grad(score(expected[0]), (hidden, weight, bias))
    found = fused_logprobs(hidden, weight, bias, targets, temperatures, form=form, tiles=tiles)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-5)
    assert not found[1].requires_grad
    for mine, theirs in zip(torch.autograd.grad(score(found[0]), (hidden, weight, bias)), gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_in_float64_the_gradient_is_that_of_finite_differences() -> None:
    hidden, weight, bias, targets, temperatures = operands(torch.float64)
    few = slice(0, 4)

    def scored(h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        form, tiles = HeadForm(0.5, 2.0), Tiles(3, 40)
        return fused_logprobs(h, w, b, targets[few], temperatures[few], form=form, tiles=tiles)[0]

    assert torch.autograd.gradcheck(scored, (hidden[few], weight, bias))


def test_no_tensor_holds_the_logits_of_all_targets() -> None:
    """The point of the exercise: with 150 thousand tokens in the vocabulary, full logits are most of the memory."""
    hidden, weight, bias, targets, temperatures = operands()
    with Largest() as plain:
        score(plain_logprobs(nn.functional.linear(hidden, weight, bias), targets, temperatures)[0]).backward()
    with Largest() as fused:
        found, _ = fused_logprobs(hidden, weight, bias, targets, temperatures, tiles=Tiles(4))
        score(found).backward()
    assert plain.elements == N * V
    assert fused.elements == V * H  # the weight's own gradient
    fixed = weight.detach()
    with Largest() as tiled:
        frozen = fused_logprobs(hidden, fixed, None, targets, temperatures, tiles=Tiles(4, 25))
        score(frozen[0]).backward()
    assert tiled.elements == N * H


def test_a_row_without_targets_gives_nothing_and_no_gradient() -> None:
    hidden, weight, bias, targets, temperatures = operands()
    found, entropy = fused_logprobs(hidden[:0], weight, bias, targets[:0], temperatures[:0])
    found.sum().backward()
    assert (len(found), len(entropy)) == (0, 0)
    assert weight.grad is not None
    assert not weight.grad.any()


def test_under_autocast_the_products_run_in_its_dtype_and_weights_keep_theirs() -> None:
    hidden, weight, bias, targets, temperatures = operands()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = nn.functional.linear(hidden, weight, bias)
        expected, _ = plain_logprobs(logits, targets, temperatures)
        found, _ = fused_logprobs(hidden, weight, bias, targets, temperatures, tiles=Tiles(8))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    (mine,) = torch.autograd.grad(score(found), weight)
    (theirs,) = torch.autograd.grad(score(expected), weight)
    assert mine.dtype == torch.float32
    torch.testing.assert_close(mine, theirs, rtol=0.05, atol=0.05)


# --- heads of real models ----------------------------------------------------------------------------------------

SIZES = TWO_HEADS | {"vocab_size": 131}


def model_of(kind: str, **changes: Any) -> Any:
    torch.manual_seed(1)
    config = CONFIG_MAPPING[kind](**(SIZES | changes))
    config.pad_token_id = None
    model = AutoModelForCausalLM.from_config(config, attn_implementation=IMPLEMENTATION)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def a_row() -> MicroBatch:
    ids = [(7 * i + 3) % 131 for i in range(20)]
    return MicroBatch(
        input_ids=ids,
        position_ids=[*range(9), *range(9), 0, 1],
        cu_seqlens=[0, 9, 18],
        loss_mask=[i not in (0, 4, 9, 18, 19) for i in range(20)],
        advantages=[1.0] * 20,
        inference_logprobs=None,
        temperatures=[0.7 if i % 2 else 1.0 for i in range(20)],
    )


def both(model: Any, bound: BoundKernel, head: FusedHead | None) -> tuple[Targets, list[Tensor]]:
    targets = forward_targets(model, a_row(), bound, device=CPU, head=head)
    parameters = [p for p in model.parameters() if p.requires_grad]
    return targets, list(torch.autograd.grad(score(targets.logprobs), parameters, allow_unused=True))


FORMS: list[tuple[str, dict[str, Any], Callable[[HeadForm], bool]]] = [
    ("qwen3", {"tie_word_embeddings": True}, lambda form: form == HeadForm()),
    ("llama", {"tie_word_embeddings": False}, lambda form: form == HeadForm()),
    ("granite", {"logits_scaling": 8.0}, lambda form: form.softcap is None and abs(form.scale - 1 / 8) < 1e-6),
    ("cohere", {"logit_scale": 0.25}, lambda form: form.softcap is None and abs(form.scale - 0.25) < 1e-6),
    (
        "gemma3_text",
        {"final_logit_softcapping": 5.0},
        lambda form: form.softcap is not None and abs(form.softcap - 5.0) < 1e-5 and abs(form.scale - 1.0) < 1e-4,
    ),
]


def test_a_head_is_found_in_the_precision_of_the_passes(kernel: BoundKernel) -> None:
    """Attention kernels that take no float32 would fail where they are only asked about the head."""
    model = model_of("gemma3_text", final_logit_softcapping=5.0)
    seen: list[torch.dtype] = []
    model.model.layers[0].self_attn.q_proj.register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    head = prepare_head(model, kernel, CPU, Tiles(4), autocast=torch.bfloat16)
    assert head is not None
    assert head.form.softcap == pytest.approx(5.0, abs=1e-5)
    assert seen == [torch.bfloat16]


@pytest.mark.parametrize(("kind", "changes", "fits"), FORMS, ids=[kind for kind, _, _ in FORMS])
def test_a_models_own_head_is_found_and_fused(
    kind: str, changes: dict[str, Any], fits: Callable[[HeadForm], bool], kernel: BoundKernel
) -> None:
    """A scale or soft cap that is left out trains another model than the one that sampled."""
    model = model_of(kind, **changes)
    head = prepare_head(model, kernel, CPU, Tiles(4, 50))
    assert head is not None
    assert fits(head.form)
    plain, plain_gradients = both(model, kernel, None)
    fused, gradients = both(model, kernel, head)
    torch.testing.assert_close(fused.logprobs, plain.logprobs, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(fused.entropy, plain.entropy, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(gradients, plain_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


class Shifted(nn.Linear):
    """A head that is no linear map of its weight."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).sin()


@pytest.mark.parametrize("fault", ["adapter", "sine", "bent logits"])
def test_a_head_that_does_more_keeps_its_own_logits_and_says_so(
    fault: str, kernel: BoundKernel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fusing it would train a model that nobody serves."""
    model = model_of("llama", tie_word_embeddings=False)
    if fault == "adapter":
        model.lm_head.add_module("adapter", nn.Linear(32, 131))
    elif fault == "sine":
        sine = Shifted(32, 131, bias=False)
        model.set_output_embeddings(sine)
    else:
        forward = type(model).forward

        def bent(self: Any, *args: Any, **kwargs: Any) -> Any:
            out = forward(self, *args, **kwargs)
            out.logits = out.logits.abs().sqrt()
            return out

        monkeypatch.setattr(type(model), "forward", bent)
    with caplog.at_level(logging.WARNING, logger="prl.trainer"):
        assert prepare_head(model, kernel, CPU, Tiles()) is None
    reasons = {
        "adapter": "parts of its own",
        "sine": "not a linear map",
        "bent logits": "neither a scale nor a soft cap",
    }
    assert reasons[fault] in caplog.text
    both(model, kernel, None)
