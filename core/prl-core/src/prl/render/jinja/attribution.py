"""Whose text is whose: a second render with sentinels in place of bodies, accepted only where it proves itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prl.render.conversation import MessageView
from prl.render.jinja.probe import TurnShape

_TRIMS: tuple[Callable[[str], str], ...] = (str, str.strip, str.rstrip, str.lstrip, lambda text: text.strip("\n"))


@dataclass(frozen=True)
class Segment:
    """A stretch of the rendered text.

    Its owner (None: nobody), whether it is the owner's body, whether it is sampled.
    """

    text: str
    owner: MessageView | None
    body: bool = False
    sampled: bool = False


def sentinel(view: MessageView) -> str:
    """Return the text that stands for a message's body; no template knows it and white space trimming keeps it."""
    return f"\ue000{view.index}\ue001"


def attribute(text: str, marked: str, views: Sequence[MessageView], shape: TurnShape) -> list[Segment] | None:
    """Return the segments of `text`, or None where the template does not let them be proven.

    `marked` is the same conversation rendered with `sentinel` in place of each non-empty body. Proven means: the
    sentinels come in order, once each; the bodies put back in their places (trimmed as the template trims) give
    `text` exactly; each assistant turn begins with the generation prompt and ends with the template's stop token, and
    no other text does.
    """
    bodies = [view for view in views if view.text.strip()]
    gaps: list[str] = []
    rest = marked
    for view in bodies:
        gap, found, rest = rest.partition(sentinel(view))
        if not found:
            return None
        gaps.append(gap)
    gaps.append(rest)
    for trim in _TRIMS:
        filled = [trim(view.text) for view in bodies]
        if "".join(part for pair in zip(gaps, [*filled, ""], strict=True) for part in pair) == text:
            return _segments(gaps, bodies, filled, views, shape)
    return None


def _segments(
    gaps: list[str], bodies: list[MessageView], filled: list[str], views: Sequence[MessageView], shape: TurnShape
) -> list[Segment] | None:
    """Share the text between bodies out to the messages, walking the turns in order."""
    walk = _Walk(shape)
    queue = list(views)
    for gap, body, text in zip(gaps, [*bodies, None], [*filled, ""], strict=True):
        due = queue[: queue.index(body) + 1] if body is not None else queue
        del queue[: len(due)]
        if not walk.gap(gap, due, body):
            return None
        if body is not None:
            walk.add(text, body, body=True, sampled=walk.sampling)
    return None if walk.sampling else walk.segments


class _Walk:
    """The walk over one conversation's text; `sampling` says whether an assistant turn is open."""

    def __init__(self, shape: TurnShape) -> None:
        self._shape = shape
        self._owner: MessageView | None = None
        self.segments: list[Segment] = []
        self.sampling = False

    def add(self, text: str, owner: MessageView | None, *, body: bool = False, sampled: bool = False) -> None:
        """Add a stretch of text."""
        if text:
            self.segments.append(Segment(text, owner, body, sampled))

    def gap(self, gap: str, due: Sequence[MessageView], body: MessageView | None) -> bool:
        """Share out the text before the body of the last message that is due.

        False where a turn has no clear borders.
        """
        shape = self._shape
        for view in due:
            if view.role != "assistant":
                continue
            gap = self._close(gap)
            after = None if self.sampling or not shape.is_known else self._open(gap, view)
            if after is None:
                return False
            self._owner, self.sampling, gap = view, True, after
        last = due[-1] if due else None
        if body is not None and last is body and body.role == "assistant":
            self.add(gap, body, sampled=True)
            return shape.stop not in gap
        gap = self._close(gap)
        if self.sampling:
            return False
        if body is not None:
            self._owner = body
            self.add(gap, body)
            return not shape.opener or shape.opener not in gap
        before, found, after = gap.partition(shape.opener) if shape.opener else (gap, "", "")
        self.add(before, self._owner)
        self.add(found + after, None)
        return True

    def _open(self, gap: str, view: MessageView) -> str | None:
        """Find where an assistant turn begins in a gap; return what follows its opening, None where it has none."""
        shape = self._shape
        if not shape.opener:
            after = gap.removeprefix(shape.ask_tail)
            if not gap.startswith(shape.ask_tail) or after.strip():
                return None
            self.add(shape.ask_tail, self._owner)
            return after
        before, found, after = gap.partition(shape.opener)
        if not found:
            return None
        self.add(before, self._owner)
        opened = shape.prompt.removeprefix(shape.opener)
        if after.startswith(opened):
            found, after = found + opened, after.removeprefix(opened)
        self.add(found, view)
        return after

    def _close(self, gap: str) -> str:
        """End an open assistant turn at the stop token; return what follows it."""
        if not self.sampling:
            return gap
        before, found, after = gap.partition(self._shape.stop)
        if not found:
            return gap
        self.add(before + found, self._owner, sampled=True)
        self.sampling = False
        return after
