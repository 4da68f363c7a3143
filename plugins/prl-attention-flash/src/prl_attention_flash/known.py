"""The parameters of the libraries' functions as their sources list them, with the revisions they were read at.

Data for tests and for `python -m prl_attention_flash.check`; no kernel depends on it. A parameter is
`name:type=default`: T tensor, f float, i int, b bool, with ? where None is allowed; no default means that it "
        "is required"
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """One version of one library. `is_operator` where its functions are torch custom operators.

    `returned` is how many values the forward pass returns. `fills_gradients` where the backward pass only fills what it
    is given and returns no gradient.
    """

    library: str
    version: str
    revision: str
    forward: str
    backward: str
    is_operator: bool
    returned: int
    fills_gradients: bool


_PACKED = "cu_seqlens_q:T cu_seqlens_k:T max_seqlen_q:i max_seqlen_k:i"
_PACKED_OPTIONAL = "cu_seqlens_q:T?=None cu_seqlens_k:T?=None"
_ROTARY = (
    "rotary_cos:T?=None rotary_sin:T?=None seqlens_rotary:T?=None q_descale:T?=None k_descale:T?=None v_descale:T?=None"
)

KNOWN = (
    Known(
        library="flash-2",
        version="2.7.0",
        revision="tag v2.7.0, flash_attn/flash_attn_interface.py",
        forward=f"q:T k:T v:T {_PACKED} dropout_p:f softmax_scale:f causal:b window_size_left:i=-1 "
        "window_size_right:i=-1 softcap:f=0.0 alibi_slopes:T?=None return_softmax:b=False block_table:T?=None "
        "leftpad_k:T?=None "
        "seqused_k:T?=None",
        backward=f"dout:T q:T k:T v:T out:T softmax_lse:T dq:T? dk:T? dv:T? {_PACKED} dropout_p:f softmax_scale:f "
        "causal:b window_size_left:i window_size_right:i softcap:f alibi_slopes:T? deterministic:b rng_state:T?=None",
        is_operator=True,
        returned=4,
        fills_gradients=True,
    ),
    Known(
        library="flash-2",
        version="2.8.3",
        revision="tag v2.8.3, flash_attn/flash_attn_interface.py",
        forward=f"q:T k:T v:T {_PACKED} dropout_p:f softmax_scale:f causal:b window_size_left:i=-1 "
        "window_size_right:i=-1 softcap:f=0.0 alibi_slopes:T?=None return_softmax:b=False block_table:T?=None "
        "leftpad_k:T?=None "
        "seqused_k:T?=None zero_tensors:b=False",
        backward=f"dout:T q:T k:T v:T out:T softmax_lse:T dq:T? dk:T? dv:T? {_PACKED} dropout_p:f softmax_scale:f "
        "causal:b window_size_left:i window_size_right:i softcap:f alibi_slopes:T? deterministic:b rng_state:T?=None "
        "zero_tensors:b=False",
        is_operator=True,
        returned=4,
        fills_gradients=True,
    ),
    Known(
        library="flash-3",
        version="3.0.0b1",
        revision="before c7697bbf of 2025-11-17, hopper/flash_attn_interface.py",
        forward="q:T k:T v:T k_new:T? v_new:T? qv:T? out:T? cu_seqlens_q:T? cu_seqlens_k:T? cu_seqlens_k_new:T? "
        "seqused_q:T? seqused_k:T? max_seqlen_q:i? max_seqlen_k:i? page_table:T? kv_batch_idx:T? leftpad_k:T? "
        "rotary_cos:T? rotary_sin:T? seqlens_rotary:T? q_descale:T? k_descale:T? v_descale:T? softmax_scale:f causal:b "
        "window_size=(-1,-1) attention_chunk:i=0 softcap:f=0.0 rotary_interleaved:b=True scheduler_metadata:T?=None "
        "num_splits:i=1 pack_gqa:b?=None sm_margin:i=0",
        backward="dout:T q:T k:T v:T out:T softmax_lse:T cu_seqlens_q:T? cu_seqlens_k:T? sequed_q:T? sequed_k:T? "
        "max_seqlen_q:i? max_seqlen_k:i? dq:T? dk:T? dv:T? softmax_scale:f causal:b window_size=(-1,-1) softcap:f=0.0 "
        "deterministic:b=False sm_margin:i=0",
        is_operator=False,
        returned=4,
        fills_gradients=False,
    ),
    Known(
        library="flash-3",
        version="3.0.0",
        revision="e2743ab5 of 2026-02-04, hopper/flash_attn_interface.py",
        forward=f"q:T k:T v:T k_new:T?=None v_new:T?=None qv:T?=None out_:T?=None {_PACKED_OPTIONAL} "
        "cu_seqlens_k_new:T?=None seqused_q:T?=None seqused_k:T?=None max_seqlen_q:i?=None max_seqlen_k:i?=None "
        "page_table:T?=None "
        f"kv_batch_idx:T?=None leftpad_k:T?=None {_ROTARY} softmax_scale:f?=None causal:b=False window_size_left:i=-1 "
        "window_size_right:i=-1 attention_chunk:i=0 softcap:f=0.0 rotary_interleaved:b=True scheduler_metadata:T?=None "
        "num_splits:i=1 pack_gqa:b?=None sm_margin:i=0",
        backward=f"dout:T q:T k:T v:T out:T softmax_lse:T {_PACKED_OPTIONAL} sequed_q:T?=None sequed_k:T?=None "
        "max_seqlen_q:i?=None max_seqlen_k:i?=None dq:T?=None dk:T?=None dv:T?=None softmax_scale:f?=None "
        "is_causal:b=False window_size_left:i=-1 window_size_right:i=-1 softcap:f=0.0 deterministic:b=False "
        "sm_margin:i=0",
        is_operator=True,
        returned=4,
        fills_gradients=True,
    ),
    Known(
        library="flash-4",
        version="4.0.0b10",
        revision="wheel 4.0.0b10, flash_attn/cute/interface.py",
        forward="q k v qv=None cu_seqlens_q=None cu_seqlens_k=None seqused_q=None seqused_k=None max_seqlen_q=None "
        "max_seqlen_k=None min_seqlen_k=None page_table=None softmax_scale=None causal=False softcap=None "
        "window_size_left=None window_size_right=None learnable_sink=None tile_mn=None mma_pv_is_rs=None "
        "intra_wg_overlap=None num_threads=384 num_splits=1 pack_gqa=None _arch=None score_mod=None mask_mod=None "
        "block_sparse_tensors=None return_lse=False out=None lse=None aux_tensors=None q_descale=None k_descale=None "
        "v_descale=None gather_kv_indices=None",
        backward="q k v out dout lse softmax_scale=None causal=False softcap=0.0 window_size_left=None "
        "window_size_right=None m_block_size=64 n_block_size=128 num_threads=256 pack_gqa=False num_stages_Q=2 "
        "num_stages_dO=2 SdP_swapAB=False dKV_swapAB=False dQ_swapAB=False AtomLayoutMSdP=2 AtomLayoutNdKV=2 "
        "AtomLayoutMdQ=2 V_in_regs=False cu_seqlens_q=None cu_seqlens_k=None seqused_q=None seqused_k=None "
        "max_seqlen_q=None max_seqlen_k=None deterministic=False dq=None dk=None dv=None score_mod=None "
        "score_mod_bwd=None mask_mod=None aux_tensors=None block_sparse_tensors=None dlse=None",
        is_operator=False,
        returned=2,
        fills_gradients=False,
    ),
    Known(
        library="flash-4",
        version="4.0.0b36",
        revision="wheel 4.0.0b36, flash_attn/cute/interface.py",
        forward="q k v qv=None cu_seqlens_q=None cu_seqlens_k=None seqused_q=None seqused_k=None max_seqlen_q=None "
        "max_seqlen_k=None min_seqlen_k=None page_table=None softmax_scale=None causal=False softcap=None "
        "window_size_left=None window_size_right=None learnable_sink=None tile_mn=None mma_pv_is_rs=None "
        "intra_wg_overlap=None num_threads=384 num_splits=1 pack_gqa=None _arch=None score_mod=None mask_mod=None "
        "block_sparse_tensors=None return_lse=False out=None lse=None aux_tensors=None aux_scalars=None q_descale=None "
        "k_descale=None v_descale=None gather_kv_indices=None scheduler_metadata=None seqlen_k_per_split=None "
        "disable_scheduler_metadata=False gather_bwd_recompute_p=False",
        backward="q k v out dout lse softmax_scale=None causal=False softcap=0.0 window_size_left=None "
        "window_size_right=None m_block_size=64 n_block_size=128 num_threads=256 pack_gqa=False num_stages_Q=2 "
        "num_stages_dO=2 SdP_swapAB=False dKV_swapAB=False dQ_swapAB=False AtomLayoutMSdP=2 AtomLayoutNdKV=2 "
        "AtomLayoutMdQ=2 V_in_regs=False cu_seqlens_q=None cu_seqlens_k=None seqused_q=None seqused_k=None "
        "max_seqlen_q=None max_seqlen_k=None deterministic=False dq=None dk=None dv=None score_mod=None "
        "score_mod_bwd=None mask_mod=None aux_tensors=None aux_scalars=None block_sparse_tensors=None dlse=None "
        "learnable_sink=None",
        is_operator=False,
        returned=5,
        fills_gradients=False,
    ),
)


def names_of(parameters: str) -> list[str]:
    """Return the names of a list of parameters, in order."""
    return [one.split("=")[0].split(":")[0] for one in parameters.split()]


def required_of(parameters: str) -> list[str]:
    """Return the names of those without a default."""
    return [one.split(":")[0] for one in parameters.split() if "=" not in one]
