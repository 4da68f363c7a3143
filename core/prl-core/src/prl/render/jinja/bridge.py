"""What a template adds to a closed conversation when messages follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prl.contracts import ReasoningCodec
from prl.render.conversation import MessageView
from prl.render.jinja.attribution import sentinel
from prl.render.jinja.probe import TurnShape
from prl.render.jinja.template import ChatTemplate, template_message
from prl.types import RenderError, ToolSpec


def joint(
    template: ChatTemplate,
    views: Sequence[MessageView],
    tools: Sequence[ToolSpec] | None,
    shape: TurnShape,
    reasoning: ReasoningCodec | None,
    *,
    keep_all: bool,
) -> tuple[str, str] | None:
    """Return the text of new messages and a generation prompt, and the same with sentinels; None where not proven.

    A short conversation that ends in an assistant turn is rendered closed, and extended by the new messages. Only if
    the extended text begins with the closed one is the difference what the template adds. With `reasoning` the short
    turn reasons, so that a template which drops earlier reasoning fails this check. Nor may the template rewrite how
    the turn began: the closed conversation must begin with the generation prompt, unless everything is to be kept
    anyway (`keep_all`).
    """
    if not shape.is_known:
        return None
    turn: dict[str, Any] = {"role": "assistant", "content": "said"}
    if reasoning is not None:
        turn["content"] = f"{reasoning.open}{reasoning.after_open}thought{reasoning.before_close}{reasoning.close}" + (
            reasoning.after_close + "said"
        )
    calls = [view.tool_call_id or f"call_{n}" for n, view in enumerate(views) if view.role == "tool"]
    if calls:
        named = [view.name or "call" for view in views if view.role == "tool"]
        turn["tool_calls"] = [
            {"id": call, "type": "function", "function": {"name": name, "arguments": {}}}
            for call, name in zip(calls, named, strict=True)
        ]
    base = [{"role": "user", "content": "ask"}, turn]
    new = [template_message(view) for view in views]
    marked = [
        {**message, "content": sentinel(view)} if view.text.strip() else message
        for message, view in zip(new, views, strict=True)
    ]
    try:
        opened = template.render(base[:1], tools, add_generation_prompt=True)
        closed = template.render(base, tools, add_generation_prompt=False)
        extended = template.render([*base, *new], tools, add_generation_prompt=True)
        extended_marked = template.render([*base, *marked], tools, add_generation_prompt=True)
    except RenderError:
        return None
    if not (keep_all or closed.startswith(opened)):
        return None
    if not (extended.startswith(closed) and extended_marked.startswith(closed)):
        return None
    if not closed.endswith(shape.stop + shape.after_stop):
        return None
    return extended.removeprefix(closed), extended_marked.removeprefix(closed)
