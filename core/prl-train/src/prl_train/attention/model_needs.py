"""What a transformers model asks of an attention kernel, read off its configuration and its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """Features that a kernel must offer, and the head size (None where it is not known)."""

    features: tuple[str, ...] = ()
    head_size: int | None = None


def model_needs(model: Any) -> ModelNeeds:
    """Read what a model needs.

    This chooses a kernel. What a layer asks for is checked again in every call, so a need that no configuration names
    is an error there, and never dropped.
    """
    config = model.config.get_text_config()
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    layers = getattr(config, "layer_types", None)
    slides = "sliding_attention" in layers if layers else bool(getattr(config, "use_sliding_window", False))
    scalings = {round(one, 9) for one in _scalings(model)}
    needed = {
        "window": slides,
        "gqa": kv_heads != heads,
        "softmax_scale": bool(scalings - {round(head_size**-0.5, 9)}),
        "sinks": any(name.endswith(".sinks") for name, _ in model.named_parameters()),
        "softcap": bool(getattr(config, "attn_logit_softcapping", None)),
    }
    return ModelNeeds(tuple(name for name, is_needed in needed.items() if is_needed), head_size)


def _scalings(model: Any) -> set[float]:
    return {module.scaling for module in model.modules() if isinstance(getattr(module, "scaling", None), float)}
