"""Where the images of a rendered prompt lie in exact ids that take its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prl.types import MalformedRequestError


def moved_placeholders(
    rendered: Sequence[int], ids: Sequence[int], placeholders: Mapping[str, Sequence[Any]], where: str
) -> dict[str, list[Any]]:
    """Return vLLM's placeholder ranges of `rendered`, by modality, with their offsets in `ids`.

    What was sampled may take more or fewer tokens than its rendering: later images lie elsewhere, and vLLM would put
    their features over text. Raises `MalformedRequestError` where the ids do not hold the same images in their order.
    """
    moved: dict[str, list[Any]] = {modality: list(ranges) for modality, ranges in placeholders.items()}
    places = [(one.offset, modality, n) for modality, ranges in placeholders.items() for n, one in enumerate(ranges)]
    position = 0
    for offset, modality, n in sorted(places):
        one = placeholders[modality][n]
        stretch = list(rendered[offset : offset + one.length])
        found = _find(stretch, ids, position)
        if found < 0:
            raise MalformedRequestError(
                f"the ids do not hold {modality} {n} of the messages, which takes {one.length} tokens",
                where=where,
                next_step="send the ids of these messages: as the server rendered them, and what was sampled",
            )
        moved[modality][n] = replace(one, offset=found)
        position = found + one.length
    return moved


def _find(stretch: list[int], ids: Sequence[int], start: int) -> int:
    """Return where a stretch of ids begins, at `start` or later; -1 where it is not."""
    size = len(stretch)
    begins = (n for n in range(start, len(ids) - size + 1) if ids[n] == stretch[0])
    return next((n for n in begins if list(ids[n : n + size]) == stretch), -1)
