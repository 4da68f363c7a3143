"""Keep the routing rows of a mixture-of-experts model aligned with the tokens of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prl.types import AlignmentError

NO_ROUTE = -1
"""Expert index of a row that no forward pass produced; never a valid expert, unlike zero."""


def align_routed_experts(turns: Sequence[tuple[int, int, Any]]) -> list[Any] | None:
    """Return one routing row per token of a sample, or None where no turn has routing.

    `turns` are (sample length after the turn, sample length before it, rows) per turn of one sample. An engine reports
    `tokens - 1` rows: the last sampled token was never fed. The row missing at the end of one turn is the real row of
    the next turn, which did feed that token; only the sample's very last row is padding.
    """
    if all(rows is None for _, _, rows in turns):
        return None
    aligned: list[Any] = []
    for number, (length, earlier, rows) in enumerate(turns):
        reported = _rows(rows, length, number)
        # Row `earlier - 1` was padding: this turn's forward pass computed the real one.
        keep = max(earlier - 1, 0)
        aligned = aligned[:keep] + reported[keep:]
    return aligned


def _rows(rows: Any, length: int, number: int) -> list[Any]:
    where = f"turn {number} of the sample"
    if rows is None:
        raise AlignmentError(
            "some turns of this sample carry routed experts and others do not",
            where=where,
            next_step="ask the engine for routed experts on every request, or on none",
        )
    reported = list(rows)
    if len(reported) == length:
        return reported
    if len(reported) != length - 1 or not reported:
        raise AlignmentError(
            f"{len(reported)} routing rows for {length} tokens; an engine reports one row per token, or one less",
            where=where,
            next_step="compare the engine's version with the one this client was written for",
        )
    return [*reported, _padding_like(reported[-1])]


def _padding_like(row: Any) -> Any:
    """Return a row of the same nesting whose every expert index is `NO_ROUTE`."""
    if hasattr(row, "tolist"):  # an array, whose integers may have no sign
        row = row.tolist()
    if isinstance(row, (list, tuple)):
        return [_padding_like(entry) for entry in row]
    return NO_ROUTE
