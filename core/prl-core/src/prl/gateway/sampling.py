"""How a turn is sampled: what the client asks for, within what the operator has fixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prl.types import SamplingParams

FORCEABLE = ("temperature", "top_p", "top_k", "min_tokens", "max_tokens", "seed", "stop_token_ids")
"""Fields that an operator can fix. `max_tokens` is a limit: a client may ask for less."""


def forced_fields(params: SamplingParams | None) -> dict[str, Any]:
    """Return what a session's sampling fixes; a field that says nothing (no limit, no seed) fixes nothing."""
    if params is None:
        return {}
    values = {name: getattr(params, name) for name in FORCEABLE}
    silent = {"max_tokens": None, "seed": None, "stop_token_ids": ()}
    return {name: value for name, value in values.items() if name not in silent or value != silent[name]}


def apply_forced(asked: SamplingParams, forced: Mapping[str, Any]) -> SamplingParams:
    """Return the client's sampling with the operator's fields; of two limits on tokens the lower one holds."""
    fixed = dict(forced)
    limits = [limit for limit in (asked.max_tokens, fixed.pop("max_tokens", None)) if limit is not None]
    most = min(limits) if limits else None
    merged = replace(asked, **fixed, max_tokens=most)
    return merged if most is None else replace(merged, min_tokens=min(merged.min_tokens, most))
