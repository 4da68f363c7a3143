"""Drawing tokens: one uniform number a token, from each sequence's own generator.

Reported log-probabilities are those of `log_softmax(logits / temperature)` in float32, before top-k, top-p and
`min_tokens` cut anything off: the policy's own distribution, which a trainer can compute again. Temperature 0 takes the
likeliest token and reports its log-probability at temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch

from .sequence import Sequence

BITS = 52  # so that u * total stays strictly below total in float64


class Sampler:
    """The sampling fields of one batch as tensors; rebuilt when the batch changes."""

    def __init__(self, sequences: SequenceOf[Sequence], device: torch.device) -> None:
        self._sequences = list(sequences)
        params = [sequence.sampling for sequence in self._sequences]
        self._device = device
        self._temperature = torch.tensor([p.temperature or 1.0 for p in params], device=device)[:, None]
        self._greedy = torch.tensor([p.temperature == 0 for p in params], device=device)
        self._any_greedy = any(p.temperature == 0 for p in params)
        self._all_greedy = all(p.temperature == 0 for p in params)
        self._cut = [i for i, p in enumerate(params) if p.temperature and (p.top_p < 1 or p.top_k > 0)]
        self._top_p = torch.tensor([params[i].top_p for i in self._cut], device=device)[:, None]
        self._top_k = [params[i].top_k for i in self._cut]
        self._held = [i for i, p in enumerate(params) if p.min_tokens and self._sequences[i].stop_ids]

    def draw(self, logits: torch.Tensor) -> tuple[list[int], list[float]]:
        """Sample one token a row from logits [rows, vocabulary]; return ids and log-probabilities."""
        logprobs = torch.log_softmax(logits.float() / self._temperature, dim=-1)
        allowed = self._without_early_stops(logprobs)
        if self._all_greedy:
            chosen = allowed.argmax(dim=-1)
        else:
            chosen = self._draw_by_cdf(allowed)
            if self._any_greedy:
                chosen = torch.where(self._greedy, allowed.argmax(dim=-1), chosen)
        values = logprobs.gather(1, chosen[:, None])[:, 0]
        return chosen.tolist(), values.tolist()

    def _without_early_stops(self, logprobs: torch.Tensor) -> torch.Tensor:
        early = [i for i in self._held if len(self._sequences[i].logprobs) < self._sequences[i].sampling.min_tokens]
        if not early:
            return logprobs
        allowed = logprobs.clone()
        for i in early:
            allowed[i, list(self._sequences[i].stop_ids)] = float("-inf")
        return allowed

    def _draw_by_cdf(self, allowed: torch.Tensor) -> torch.Tensor:
        probabilities = allowed.exp()
        if self._cut:
            probabilities[self._cut] = self._truncated(probabilities[self._cut])
        cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
        uniform = [sequence.random.getrandbits(BITS) / (1 << BITS) for sequence in self._sequences]
        target = torch.tensor(uniform, dtype=torch.float64, device=self._device)[:, None] * cumulative[:, -1:]
        # right=True skips entries equal to the target, so a token of probability zero is never taken
        chosen = torch.searchsorted(cumulative, target, right=True)[:, 0]
        return chosen.clamp_(max=cumulative.shape[1] - 1)

    def _truncated(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Keep the top k, then the smallest set whose share of those reaches top p."""
        ordered, order = probabilities.sort(dim=-1, descending=True)
        size = ordered.shape[1]
        keep = torch.tensor([k if k > 0 else size for k in self._top_k], device=self._device)[:, None]
        ordered = ordered.masked_fill(torch.arange(size, device=self._device) >= keep, 0.0)
        before = ordered.cumsum(dim=-1) - ordered
        ordered = ordered.masked_fill(before >= self._top_p * ordered.sum(dim=-1, keepdim=True), 0.0)
        return torch.zeros_like(probabilities).scatter_(1, order, ordered)
