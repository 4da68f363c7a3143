"""A right attention kernel, as a callable and as two passes, and kernels with one fault each."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from prl.contracts import Scoring
from prl.types import ConfigError

CALLABLE = ("non_causal", "window", "softmax_scale", "gqa", "sinks", "softcap", "deterministic")
PASSES = (*CALLABLE, "lse")


def plain(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Attend by the kit's own arithmetic: what is right by definition."""
    from prl.testing.checks.attention_oracle import plain_attention

    lengths = options.pop("cu_seqlens").diff().tolist()
    del options["max_seqlen"]
    return plain_attention(q, k, v, Scoring.of(q.shape[2], **options), lengths)[0].to(q.dtype)


def whole_row(q: Any, k: Any, v: Any, **options: Any) -> Any:
    whole = options["cu_seqlens"].new_tensor([0, q.shape[0]])
    return plain(q, k, v, **{**options, "cu_seqlens": whole})


def stops_at_an_empty_document(q: Any, k: Any, v: Any, **options: Any) -> Any:
    cu = options["cu_seqlens"]
    empty = (cu.diff() == 0).nonzero()
    kept = cu[: int(empty[0]) + 1] if len(empty) else cu
    out = plain(q[: int(kept[-1])], k[: int(kept[-1])], v[: int(kept[-1])], **{**options, "cu_seqlens": kept})
    return (
        out if out.shape == q.shape else q.new_zeros(q.shape).index_copy(0, cu.new_tensor(range(len(out))).long(), out)
    )


def both_ways(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return plain(q, k, v, **options) + 0.01 * v.repeat_interleave(q.shape[1] // v.shape[1], 1).mean(0)


def without_gradient(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return plain(q, k.detach() + 0 * k, v, **options)


def heads_interleaved(q: Any, k: Any, v: Any, **options: Any) -> Any:
    group = q.shape[1] // k.shape[1]
    return plain(q, k.repeat(1, group, 1), v.repeat(1, group, 1), **options)


def gradient_of_the_first_head_only(q: Any, k: Any, v: Any, **options: Any) -> Any:
    group = q.shape[1] // k.shape[1]
    if group == 1:
        return plain(q, k, v, **options)
    wide = k.repeat_interleave(group, dim=1)
    wide = wide.detach() + (wide - wide.detach()) * (wide.new_tensor(range(wide.shape[1])) % group == 0)[None, :, None]
    return plain(q, wide, v.repeat_interleave(group, dim=1), **options)


def own_scale(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return plain(q, k, v, **{**options, "softmax_scale": None})


def always_causal(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return plain(q, k, v, **{**options, "causal": True})


def window_off_by_one(q: Any, k: Any, v: Any, **options: Any) -> Any:
    left, right = options.get("window", (-1, -1))
    return plain(q, k, v, **{**options, "window": (left + 1 if left >= 0 else left, right)})


def gradient_past_the_window(q: Any, k: Any, v: Any, **options: Any) -> Any:
    out = plain(q, k, v, **options)
    wide = plain(q, k, v, **{**options, "window": (-1, -1)})
    return out.detach() + wide - wide.detach()


def without_sinks(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return plain(q, k, v, **{**options, "sinks": None})


def sinks_stay(q: Any, k: Any, v: Any, **options: Any) -> Any:
    sinks = options.get("sinks")
    return plain(q, k, v, **{**options, "sinks": None if sinks is None else sinks.detach() + 0 * sinks})


def without_cap(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return plain(q, k, v, **{**options, "softcap": 0.0})


def trembles(q: Any, k: Any, v: Any, **options: Any) -> Any:
    return plain(q, k, v, **options) * (1 + 1e-6 * random.random())


class Passes:
    """Two passes that are right: the backward is torch's own of the kit's arithmetic, for a given log-sum-exp."""

    def forward(self, q: Any, k: Any, v: Any, varlen: Any, scoring: Scoring) -> Any:
        out, lse = self.attend(q, k, v, varlen, scoring)
        return out.to(q.dtype), lse

    def attend(self, q: Any, k: Any, v: Any, varlen: Any, scoring: Scoring) -> Any:
        from prl.testing.checks.attention_oracle import plain_attention

        lengths = [cu.diff().tolist() for cu in (varlen.cu_seqlens_q, varlen.cu_seqlens_k)]
        return plain_attention(q, k, v, scoring, *lengths)

    def backward(self, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, varlen: Any, scoring: Scoring) -> Any:
        import torch

        with torch.enable_grad():
            leaves = [x.detach().float().requires_grad_(True) for x in (q, k, v)]
            if scoring.sinks is not None:
                leaves.append(scoring.sinks.detach().float().requires_grad_(True))
                scoring = replace(scoring, sinks=leaves[-1])
            mine, total = self.attend(*leaves[:3], varlen, scoring)
            # The probabilities of a given log-sum-exp are those of the own one, times exp(own - given).
            factor = torch.exp(torch.nan_to_num(total.detach() - lse)).T[..., None]
            grads = torch.autograd.grad((mine * dout.float() * factor).sum(), leaves)
        return (*grads, None)[:4]


class TopLeft(Passes):
    def attend(self, q: Any, k: Any, v: Any, varlen: Any, scoring: Scoring) -> Any:
        import torch

        parts = []
        ends = [cu.tolist() for cu in (varlen.cu_seqlens_q, varlen.cu_seqlens_k)]
        from prl.testing.checks.attention_oracle import plain_attention

        for a, b, c, d in zip(ends[0], ends[0][1:], ends[1], ends[1][1:], strict=False):
            reach = min(d, c + b - a) if scoring.causal else d
            parts.append(plain_attention(q[a:b], k[c:reach], v[c:reach], scoring, [b - a], [reach - c]))
        return torch.cat([one for one, _ in parts]), torch.cat([one for _, one in parts], dim=1)


class LogToTheBaseTwo(Passes):
    def forward(self, q: Any, k: Any, v: Any, varlen: Any, scoring: Scoring) -> Any:
        out, lse = super().forward(q, k, v, varlen, scoring)
        return out, lse * 1.442695


class EvenWeightsWithoutKeys(Passes):
    def forward(self, q: Any, k: Any, v: Any, varlen: Any, scoring: Scoring) -> Any:
        out, lse = super().forward(q, k, v, varlen, scoring)
        return out + (lse == -float("inf")).T[..., None] * v.mean(0), lse


class ItsOwnLogSumExp(Passes):
    def backward(self, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, varlen: Any, scoring: Scoring) -> Any:
        own = self.attend(q, k, v, varlen, scoring)[1]
        return super().backward(dout, q, k, v, out, own, varlen, scoring)


class RefusesByAnotherName:
    def __call__(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        if options.get("window", (-1, -1)) != (-1, -1):
            raise ConfigError("no")
        return plain(q, k, v, **options)


FAULTS: list[tuple[Any, tuple[str, ...], str]] = [
    (whole_row, CALLABLE, "documents_do_not_see_each_other"),
    (stops_at_an_empty_document, CALLABLE, "empty_documents_are_legal"),
    (both_ways, CALLABLE, "a_token_sees_no_later_one"),
    (without_gradient, CALLABLE, "gradients_are_those_of_plain_attention"),
    (heads_interleaved, CALLABLE, "shared_key_heads_are_shared_right"),
    (gradient_of_the_first_head_only, CALLABLE, "gradients_of_shared_key_heads_add_up"),
    (own_scale, CALLABLE, "the_scale_is_the_callers"),
    (always_causal, CALLABLE, "without_a_causal_mask_all_is_seen"),
    (window_off_by_one, CALLABLE, "windows_count_tokens_as_the_contract_says"),
    (gradient_past_the_window, CALLABLE, "gradients_stay_in_the_window"),
    (without_sinks, CALLABLE, "sinks_take_their_share"),
    (sinks_stay, CALLABLE, "sinks_are_trained"),
    (without_cap, CALLABLE, "scores_are_capped"),
    (trembles, CALLABLE, "the_same_call_gives_the_same_bits"),
    (without_sinks, ("window", "softmax_scale", "gqa", "non_causal"), "an_option_it_lacks_is_refused"),
    (always_causal, ("window", "softmax_scale", "gqa", "sinks"), "an_option_it_lacks_is_refused"),
    (RefusesByAnotherName(), ("softmax_scale", "gqa", "sinks", "non_causal"), "an_option_it_lacks_is_refused"),
    (TopLeft(), PASSES, "the_last_query_sees_the_last_key"),
    (LogToTheBaseTwo(), PASSES, "the_log_sum_exp_is_that_of_the_scores"),
    (EvenWeightsWithoutKeys(), PASSES, "a_query_without_keys_gives_nothing"),
    (ItsOwnLogSumExp(), PASSES, "gradients_over_parts_of_the_keys_add_up"),
]
"""Kernel, the features it claims, and the check that must see its fault."""
