"""The bridge as its callers use it: what a renderer extended is proven before it goes anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from prl.contracts import Renderer
from prl.types import AlignmentError, Message, PromptIds, ToolSpec, next_prompt


def proven_bridge(
    renderer: Renderer,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    new_messages: Sequence[Message],
    *,
    tools: Sequence[ToolSpec] | None,
    history: Sequence[Message],
) -> PromptIds | None:
    """Return the next prompt, by `renderer.bridge_to_next_turn`; None where that has no bridge.

    It shares its memory with `prompt_ids` where those are `PromptIds`, whatever the renderer returns.
    Raises `AlignmentError` where a bridge does not begin with the ids that were sent and sampled.
    """
    bridged = renderer.bridge_to_next_turn(prompt_ids, completion_ids, new_messages, tools=tools, history=history)
    if bridged is None:
        return None
    if not bridged.begins_with(prompt_ids, completion_ids):
        raise AlignmentError(
            "the bridged prompt does not begin with the ids that were sent and sampled",
            where=f"bridge_to_next_turn of renderer {renderer.name!r}, after {len(history)} messages",
            next_step="report this to the renderer's author: `prl plugins check` shows it",
        )
    return next_prompt(bridged.ids, prompt_ids, completion_ids)
