"""Router replay: tokens go to the experts the sampler used, and to no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.auto import CONFIG_MAPPING

from prl.types import AlignmentError, ConfigError, MicroBatch, TrainingSample
from prl_train.attention.binding import IMPLEMENTATION, BoundKernel, bind
from prl_train.data import pack
from prl_train.errors import TrainingError
from prl_train.models.replay import RouterReplay
from prl_train.trainer.forward import forward_targets

CPU = torch.device("cpu")
EXPERTS, CHOSEN, LAYERS = 8, 2, 2
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 131,
    "max_position_embeddings": 64,
    "num_experts_per_tok": CHOSEN,
    "moe_intermediate_size": 24,
}
KINDS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": EXPERTS, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": EXPERTS},
    "gpt_oss": {"num_local_experts": EXPERTS, "layer_types": ["full_attention"] * LAYERS},
    "glm4_moe": {
        "n_routed_experts": EXPERTS,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
}


@pytest.fixture
def kernel() -> BoundKernel:
    from prl_train.attention.sdpa import create

    return bind("sdpa", create(), ("window", "softmax_scale", "gqa", "lse"))


def model_of(kind: str) -> Any:
    torch.manual_seed(1)
    config = CONFIG_MAPPING[kind](**(SIZES | KINDS[kind]))
    config.pad_token_id = None
    config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation=IMPLEMENTATION)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.train()


def samples() -> list[TrainingSample]:
    chance = torch.Generator().manual_seed(2)
    made = []
    for length in (9, 5, 12):
        ids = torch.randint(0, 131, (length,), generator=chance).tolist()
        made.append(
            TrainingSample(
                prompt_ids=ids[:2],
                completion_ids=ids[2:],
                completion_mask=[True] * (length - 2),
                completion_logprobs=[-1.0] * (length - 2),
                temperatures=[1.0] * (length - 2),
                trajectory_id=str(length),
            )
        )
    return made


def record(model: Any, kernel: BoundKernel, batch: MicroBatch) -> np.ndarray:
    """Return the model's own choice for a row, [T, layers with experts, K], as an engine would report it."""
    chosen: list[Tensor] = []
    hooks = [
        module.experts.register_forward_pre_hook(lambda _, args: chosen.append(args[1]))
        for module in model.modules()
        if hasattr(module, "experts") and (hasattr(module, "gate") or hasattr(module, "router"))
    ]
    with torch.no_grad():
        forward_targets(model, batch, kernel, device=CPU)
    for hook in hooks:
        hook.remove()
    return torch.stack(chosen, dim=1).numpy()


def run(model: Any, kernel: BoundKernel, batch: MicroBatch, replay: RouterReplay) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logprobs = forward_targets(model, batch, kernel, device=CPU, replay=replay).logprobs
    (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
    return logprobs.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def other_routes(length: int, layers: int = LAYERS) -> np.ndarray:
    """Return a routing that no router would choose."""
    chance = np.random.default_rng(3)
    return np.stack([[chance.permutation(EXPERTS)[:CHOSEN] for _ in range(layers)] for _ in range(length)])


@pytest.mark.parametrize("kind", KINDS)
def test_replaying_the_models_own_routing_changes_no_bit(kind: str, kernel: BoundKernel) -> None:
    model = model_of(kind)
    (row,) = pack(samples(), 40, pad_to=30)
    own = record(model, kernel, row)
    replay = RouterReplay.install(model)
    before, gradients = run(model, kernel, row, replay)
    after, replayed = run(model, kernel, replace(row, routed_experts=own), replay)
    assert torch.equal(before, after)
    assert gradients.keys() == replayed.keys()
    assert all(torch.equal(gradients[name], replayed[name]) for name in gradients)


@pytest.mark.parametrize("kind", KINDS)
def test_another_routing_reaches_the_experts(kind: str, kernel: BoundKernel) -> None:
    model = model_of(kind)
    (row,) = pack(samples(), 40)
    replay = RouterReplay.install(model)
    layers = len(replay.blocks)
    routes = other_routes(26, layers)
    before, _ = run(model, kernel, row, replay)
    forced = replace(row, routed_experts=routes)
    after, gradients = run(model, kernel, forced, replay)
    assert not torch.allclose(before, after, atol=1e-3)
    seen: list[Tensor] = []
    for block in replay.blocks:
        model.get_submodule(block.name).experts.register_forward_pre_hook(lambda _, args: seen.append(args[1]))
    run(model, kernel, forced, replay)
    assert torch.equal(torch.stack(seen, dim=1), torch.tensor(routes))
    routers = [name for name in gradients if name.endswith((".gate.weight", ".router.weight"))]
    assert len(routers) == layers
    assert all(gradients[name].abs().max() > 0 for name in routers)


def moe_reference(block: Any, hidden: Tensor, routes: Tensor) -> Tensor:
    """Compute a Qwen3 mixture of experts token by token: softmax over all, chosen scores renormalised."""
    out = []
    for token, experts in zip(hidden, routes, strict=True):
        shares = torch.softmax(block.gate.weight @ token, dim=-1)[experts]
        total = torch.zeros_like(token)
        for share, expert in zip(shares / shares.sum(), experts, strict=True):
            gate, up = (block.experts.gate_up_proj[expert] @ token).chunk(2)
            total = total + share * (block.experts.down_proj[expert] @ (nn.functional.silu(gate) * up))
        out.append(total)
    return torch.stack(out)


def test_a_replayed_block_equals_an_independent_one_in_value_and_gradient(kernel: BoundKernel) -> None:
    """Weights of the experts are the router's own scores of the forced experts, with their gradient."""
    model = model_of("qwen3_moe")
    block = model.model.layers[1].mlp
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []

    def note(_: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
        inputs.append(args[0])
        outputs.append(out)

    block.register_forward_hook(note)
    (row,) = pack(samples(), 40)
    routes = other_routes(26)
    replay = RouterReplay.install(model)
    forward_targets(model, replace(row, routed_experts=routes), kernel, device=CPU, replay=replay)
    hidden = inputs[0][0].detach()
    expected = moe_reference(block, hidden, torch.tensor(routes[:, 1]))
    torch.testing.assert_close(outputs[0][0], expected, rtol=1e-5, atol=1e-6)
    weights = torch.linspace(-1, 1, expected.numel()).view_as(expected)
    for parameter in (block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj):
        (mine,) = torch.autograd.grad((outputs[0][0] * weights).sum(), parameter, retain_graph=True)
        (theirs,) = torch.autograd.grad((expected * weights).sum(), parameter, retain_graph=True)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_tokens_without_a_route_choose_for_themselves(kernel: BoundKernel) -> None:
    """The last sampled token was never fed to the engine: there is nothing to replay for it."""
    model = model_of("qwen3_moe")
    (row,) = pack(samples(), 40, pad_to=30)
    own = record(model, kernel, row)
    replay = RouterReplay.install(model)
    before, _ = run(model, kernel, row, replay)
    nobody = np.full_like(own, -1)
    assert torch.equal(before, run(model, kernel, replace(row, routed_experts=nobody), replay)[0])
    half = own.copy()
    half[::2] = -1
    assert torch.equal(before, run(model, kernel, replace(row, routed_experts=half), replay)[0])


def test_recomputed_layers_see_the_same_routing(kernel: BoundKernel) -> None:
    """Another choice in the recomputation would give the gradient of a pass that never was."""
    model = model_of("qwen3_moe")
    routed = [replace(s, routed_experts=other_routes(len(s))) for s in samples()]
    rows = [row for part in (routed[:2], routed[2:]) for row in pack(part, 40)]
    replay = RouterReplay.install(model)
    plain = [run(model, kernel, row, replay) for row in rows]
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for row, (logprobs, gradients) in zip(rows, plain, strict=True):
        again, recomputed = run(model, kernel, row, replay)
        assert torch.equal(again, logprobs)
        for name, gradient in gradients.items():
            torch.testing.assert_close(recomputed[name], gradient, rtol=1e-5, atol=1e-7)


def test_packed_routing_stays_with_its_tokens(kernel: BoundKernel) -> None:
    model = model_of("qwen3_moe")
    replay = RouterReplay.install(model)
    routed = [replace(s, routed_experts=other_routes(len(s)).tolist()) for s in samples()]
    (row,) = pack(routed, 40, pad_to=30)
    assert row.routed_experts.shape == (30, LAYERS, CHOSEN)
    assert (row.routed_experts[26:] == -1).all()
    packed, _ = run(model, kernel, row, replay)
    order = sorted(routed, key=len, reverse=True)
    alone = torch.cat([run(model, kernel, pack([s], 40)[0], replay)[0] for s in order])
    torch.testing.assert_close(packed, alone, rtol=0, atol=2e-6)


def test_an_engine_may_report_layers_without_experts_too(kernel: BoundKernel) -> None:
    model = model_of("glm4_moe")
    replay = RouterReplay.install(model)
    assert (replay.layers, len(replay.blocks)) == (2, 1)
    (row,) = pack(samples(), 40)
    routes = other_routes(26, 2)
    every, _ = run(model, kernel, replace(row, routed_experts=routes), replay)
    own, _ = run(model, kernel, replace(row, routed_experts=routes[:, 1:]), replay)
    assert torch.equal(every, own)


Spoil = Callable[[np.ndarray], Any]


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (lambda routes: routes[:, :, 0], r"shape \(26, 2\)"),
        (lambda routes: np.repeat(routes, 2, axis=1), r"shape \(26, 4, 2\); the row has 26 tokens, the model 2 layers"),
        (lambda routes: routes + EXPERTS, "experts from 8 to 15; the model has 8"),
    ],
    ids=["no layers", "other layers", "other experts"],
)
def test_routing_of_another_model_is_refused(spoil: Spoil, finding: str, kernel: BoundKernel) -> None:
    model = model_of("qwen3_moe")
    (row,) = pack(samples(), 40)
    with pytest.raises(AlignmentError, match=finding):
        run(model, kernel, replace(row, routed_experts=spoil(other_routes(26))), RouterReplay.install(model))


def test_another_number_of_experts_a_token_is_refused(kernel: BoundKernel) -> None:
    model = model_of("qwen3_moe")
    (row,) = pack(samples(), 40)
    replay = RouterReplay.install(model)
    with pytest.raises(TrainingError, match="could not be replayed") as caught:
        run(model, kernel, replace(row, routed_experts=other_routes(26)[:, :, :1]), replay)
    assert caught.value.where == "model.layers.0.mlp"
    before, _ = run(model, kernel, row, replay)  # and the hooks are whole: the next pass is the model's own
    assert torch.isfinite(before).all()


def test_routing_for_a_dense_or_compiled_model_is_refused(kernel: BoundKernel) -> None:
    (row,) = pack(samples(), 40)
    routed = replace(row, routed_experts=other_routes(26))
    torch.manual_seed(0)
    dense = AutoModelForCausalLM.from_config(CONFIG_MAPPING["qwen3"](**SIZES), attn_implementation=IMPLEMENTATION)
    with pytest.raises(AlignmentError, match="0 of them with experts"):
        run(dense, kernel, routed, RouterReplay.install(dense))
    compiled = model_of("qwen3_moe")
    compiled.model.layers[0].forward = torch.compile(compiled.model.layers[0].forward)
    with pytest.raises(ConfigError, match="is compiled"):
        run(compiled, kernel, routed, RouterReplay.install(compiled))


def test_a_model_that_keeps_the_routing_from_its_layers_is_refused(
    kernel: BoundKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-replayed routing would be trained on without a word."""
    model = model_of("qwen3_moe")
    layer = type(model.model.layers[0])
    call = layer.__call__
    monkeypatch.setattr(
        layer, "__call__", lambda self, *args, routed_experts=None, **kwargs: call(self, *args, **kwargs)
    )
    (row,) = pack(samples(), 40)
    with pytest.raises(TrainingError, match="did not reach 2 of 2"):
        run(model, kernel, replace(row, routed_experts=other_routes(26)), RouterReplay.install(model))
