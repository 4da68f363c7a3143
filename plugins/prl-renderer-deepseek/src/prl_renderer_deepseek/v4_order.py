"""The order in which V4 writes messages: system messages first, calls and their results by the calls' ids."""

from __future__ import annotations

from collections.abc import Sequence

from prl.contracts import CallView
from prl.render import MessageView


def sorted_calls(calls: Sequence[CallView]) -> list[CallView]:
    """Return the calls of one turn by their ids."""
    return sorted(calls, key=lambda call: call.id or "")


def written_order(messages: Sequence[MessageView], positions: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return positions in the order in which they are written.

    As in the vendor's encoder: of the n messages behind a turn of n calls, the results come first, by id. `sizes` are
    those n, one for each position (0 where a message makes no call). Turns are gone through once, by their places
    before anything was moved.
    """
    order = list(positions)
    for place, size in enumerate(sizes):
        if size > 1:
            window = slice(place + 1, place + 1 + size)
            order[window] = sorted(order[window], key=lambda position: _key(messages[position]))
    return order


def _key(view: MessageView) -> tuple[bool, bool, str]:
    """Results come before all else, among them those without an id."""
    is_result = view.role == "tool"
    return (not is_result, is_result and view.tool_call_id is not None, (view.tool_call_id or "") if is_result else "")
