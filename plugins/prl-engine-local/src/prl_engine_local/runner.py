"""Forward passes over the cache: blocks of prompt tokens, then one token a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prl.types import ConfigError

from .cache import BatchCache
from .masks import MaskBuilder

PROBE_TOLERANCE = {torch.float32: 1e-3}
LOOSE_TOLERANCE = 1.0
SCORE_ELEMENTS = 1 << 26  # logits held at once for prompt log-probabilities
MASK_ELEMENTS = 1 << 26  # of one forward pass: a long prompt in wide blocks would need gigabytes for its mask


class ModelRunner:
    """A model and its cache. Rows 0 .. n - 1 of the cache are the running sequences, in the scheduler's order."""

    def __init__(self, model: Any, prefill_tokens: int) -> None:
        self.model = model
        self.device: torch.device = model.device
        self.vocabulary: int = model.get_input_embeddings().weight.shape[0]
        self.cache = BatchCache()
        self._masks = MaskBuilder(model.config, model.dtype)
        self._prefill_tokens = prefill_tokens

    def prefill(self, start: int, prefixes: Sequence[Sequence[int]]) -> None:
        """Fill rows from `start` on with these prefixes, longest first for the least padding."""
        longest = max(map(len, prefixes), default=0)
        if longest == 0:
            return
        self.cache.reserve(start + len(prefixes), longest)
        block = max(1, min(self._prefill_tokens, MASK_ELEMENTS // longest) // len(prefixes))
        for offset in range(0, longest, block):
            tokens = [list(prefix[offset : offset + block]) for prefix in prefixes]
            # a row whose prefix has ended takes no more blocks; prefixes are sorted, so those are the last rows
            tokens = [row for row in tokens if row]
            self._block(start, tokens, offset, head=False)

    def score(self, start: int, tokens: Sequence[int]) -> list[float]:
        """Fill one row with all but the last id; return the log-probability of every id after the first."""
        prefix = tokens[:-1]
        self.cache.reserve(start + 1, len(tokens))
        block = max(1, min(self._prefill_tokens, SCORE_ELEMENTS // self.vocabulary))
        scores: list[float] = []
        for offset in range(0, len(prefix), block):
            logits = self._block(start, [list(prefix[offset : offset + block])], offset, head=True)[0]
            targets = torch.tensor(tokens[offset + 1 : offset + 1 + logits.shape[0]], device=self.device)
            logprobs = torch.log_softmax(logits.float(), dim=-1)
            scores.extend(logprobs.gather(1, targets[:, None])[:, 0].tolist())
        return scores

    def decode(self, tokens: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """Feed one token a row, at its position; return logits [rows, vocabulary]."""
        count, visible = len(tokens), max(positions) + 1
        self.cache.reserve(count, visible)
        place = torch.tensor(positions, device=self.device)
        self.cache.select(0, count, place, visible)
        ids = torch.tensor(tokens, device=self.device)[:, None]
        return self._forward(self.model, ids, place[:, None], visible).logits[:, -1]  # type: ignore[no-any-return]

    def _block(self, start: int, rows: list[list[int]], offset: int, *, head: bool) -> Any:
        width = max(map(len, rows))
        # what a short row is padded with is hidden from its real tokens, and overwritten before it could be seen
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=self.device)
        positions = torch.arange(offset, offset + width, device=self.device).expand(len(rows), width)
        self.cache.select(start, len(rows), offset, offset + width)
        model = self.model if head else self.model.base_model
        out = self._forward(model, ids, positions, offset + width)
        return out.logits if head else None

    def _forward(self, model: Any, ids: torch.Tensor, positions: torch.Tensor, visible: int) -> Any:
        return model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._masks.build(positions, visible),
            past_key_values=self.cache,
            use_cache=True,
        )

    @torch.inference_mode()
    def prove(self) -> None:
        """Compare the cached path with a plain forward pass; raise `ConfigError` if they differ.

        An architecture with state that this cache does not hold would otherwise serve wrong numbers without a sign.
        """
        prompts = [[(7 * i + 3) % self.vocabulary for i in range(length)] for length in (9, 5)]
        self.prefill(0, [prompt[:-1] for prompt in prompts])
        cached = self.decode([prompt[-1] for prompt in prompts], [len(prompt) - 1 for prompt in prompts])
        worst = 0.0
        for row, prompt in enumerate(prompts):
            plain = self.model(input_ids=torch.tensor([prompt], device=self.device), use_cache=False).logits[0, -1]
            difference = torch.log_softmax(plain.float(), -1) - torch.log_softmax(cached[row].float(), -1)
            worst = max(worst, float(difference.abs().mean()))
        self.cache.release()
        if not worst <= PROBE_TOLERANCE.get(self.model.dtype, LOOSE_TOLERANCE):
            raise ConfigError(
                f"the cached forward pass differs from the plain one by {worst:.3g} in log-probability",
                where=f"the start-up check, on {self.model.config.model_type}",
                next_step="serve this architecture with another engine, or check that its weights are finite",
            )
