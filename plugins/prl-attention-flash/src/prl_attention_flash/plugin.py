"""What this distribution offers. Light: torch and the libraries are imported on first use."""

from __future__ import annotations

from prl.plugin import AttentionEntry, hookimpl

_FEATURES = ("non_causal", "window", "softmax_scale", "gqa", "lse")


@hookimpl
def prl_attention_kernels() -> list[AttentionEntry]:
    """Offer the three generations of FlashAttention."""
    return [
        AttentionEntry(
            name="flash-2",
            target="prl_attention_flash.libraries:create_flash_2",
            devices=("cuda",),
            dtypes=("bfloat16", "float16"),
            needs=("torch", "flash_attn"),
            install="pip install 'prl-attention-flash[flash-2]'",
            features=(*_FEATURES, "softcap", "deterministic"),
            head_size_max=256,
            head_size_multiple=8,
            compute_capability=(8, 0),
            priority=30,
            summary="FlashAttention 2, Ampere and newer",
        ),
        AttentionEntry(
            name="flash-3",
            target="prl_attention_flash.libraries:create_flash_3",
            devices=("cuda",),
            dtypes=("bfloat16", "float16"),
            needs=("torch", "flash_attn_interface"),
            install="build flash_attn_3 from the hopper folder of the flash-attention repository",
            features=(*_FEATURES, "softcap", "deterministic"),
            head_size_max=256,
            head_size_multiple=8,
            compute_capability=(9, 0),
            compute_capability_below=(10, 0),
            priority=40,
            summary="FlashAttention 3, Hopper; before and after its renaming of arguments",
        ),
        AttentionEntry(
            name="flash-4",
            target="prl_attention_flash.libraries:create_flash_4",
            devices=("cuda",),
            dtypes=("bfloat16", "float16"),
            needs=("torch", "flash_attn"),
            install="pip install --pre 'prl-attention-flash[flash-4]'",
            features=_FEATURES,
            head_size_max=128,
            head_size_multiple=8,
            compute_capability=(9, 0),
            compute_capability_below=(12, 0),
            priority=35,
            summary="FlashAttention 4, Hopper and Blackwell",
        ),
    ]
