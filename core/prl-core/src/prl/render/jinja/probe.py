"""What a template's turns look like, learnt by rendering a few short conversations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from prl.render.jinja.template import ChatTemplate
from prl.types import RenderError

_ASK, _SAY = "\ue010ask\ue011", "\ue010say\ue011"


@dataclass(frozen=True)
class TurnShape:
    """How the template opens and closes an assistant turn; "" where it does not show it.

    `opener` is what every assistant turn begins with, `prompt` the generation prompt (the opener, or more: opened
    reasoning), `stop` the control token after the turn's text, `after_stop` the text behind it. `ask_tail` is what ends
    a user turn; where the generation prompt is empty (Mistral), an assistant turn begins right behind it.
    """

    opener: str = ""
    prompt: str = ""
    stop: str = ""
    after_stop: str = ""
    ask_tail: str = ""

    @property
    def is_known(self) -> bool:
        """Whether an assistant turn's borders are known."""
        return bool(self.stop and (self.opener or (self.ask_tail and not self.prompt)))


def probe_turns(template: ChatTemplate, added: re.Pattern[str] | None) -> TurnShape:
    """Learn the shape of an assistant turn.

    A template that refuses or rewrites the short conversation shows nothing.
    """
    ask: list[dict[str, Any]] = [{"role": "user", "content": _ASK}]
    try:
        closed = template.render(ask, None, add_generation_prompt=False)
        opened = template.render(ask, None, add_generation_prompt=True)
        turns = [*ask, {"role": "assistant", "content": _SAY}]
        said = template.render(turns, None, add_generation_prompt=False)
        answered = template.render([*turns, *ask], None, add_generation_prompt=False)
    except RenderError:
        return TurnShape()
    if not (opened.startswith(closed) and said.startswith(closed) and answered.startswith(closed)):
        return TurnShape()
    prompt = opened.removeprefix(closed)
    begin, found, after = said.removeprefix(closed).partition(_SAY)
    later, found_later, _ = answered.removeprefix(closed).partition(_SAY)
    stop = added.search(after) if found and found_later and added is not None else None
    if stop is None:
        return TurnShape()
    opener = _common_beginning(prompt, begin, later)
    ask_tail = "" if (begin + later).strip() else closed.rpartition(_ASK)[2]
    return TurnShape(opener, prompt, after[: stop.end()], after[stop.end() :], ask_tail)


def _common_beginning(*texts: str) -> str:
    shortest = min(texts, key=len)
    size = next((n for n, char in enumerate(shortest) if any(text[n] != char for text in texts)), len(shortest))
    return shortest[:size]
