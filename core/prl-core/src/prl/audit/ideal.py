"""What a rollout costs where nothing breaks: one sample that holds every message once."""

from __future__ import annotations

from collections.abc import Sequence

from prl.contracts import Renderer
from prl.types import ToolSpec, Turn

from .steps import Step


def ideal_tokens(
    steps: Sequence[Step], prompts: Sequence[Sequence[int]], renderer: Renderer, tools: Sequence[ToolSpec] | None
) -> int:
    """Return the tokens of each first prompt, each completion, and each new message once.

    `prompts` are those of the renderer mode: a bridge says what a message costs; where there is none, a full render
    does, by the tokens behind the last one that an earlier message owns.
    """
    total = sum(len(step.completion_ids) for step in steps)
    earlier: list[list[int]] = []
    for step, prompt in zip(steps, prompts, strict=True):
        before = None if step.after is None else earlier[step.after]
        if before is not None and list(prompt[: len(before)]) == before and _is_latest(step, steps):
            total += len(prompt) - len(before)
        else:
            total += _new_tokens(step, renderer, tools)
        earlier.append([*prompt, *step.completion_ids])
    return total


def _is_latest(step: Step, steps: Sequence[Step]) -> bool:
    """Whether all messages behind those of the step that this one goes on from are new."""
    return step.after is not None and step.shared == len(steps[step.after].history) + 1


def _new_tokens(step: Step, renderer: Renderer, tools: Sequence[ToolSpec] | None) -> int:
    """Return the tokens behind those of the shared messages: behind the stop of an answer, which was counted."""
    rendered = renderer.render(step.history, tools=tools, add_generation_prompt=True)
    if not step.shared:
        return len(rendered)
    is_answer = rendered.roles[step.shared - 1] == "assistant"
    flags = rendered.sampled_mask if is_answer else [True] * len(rendered)
    owned = enumerate(zip(rendered.message_indices, flags, strict=True))
    last = max((place for place, (owner, flag) in owned if flag and owner == step.shared - 1), default=None)
    if last is None:
        last = max((n for n, owner in enumerate(rendered.message_indices) if 0 <= owner < step.shared), default=-1)
    return len(rendered) - 1 - last


def recorded_ideal(turns: Sequence[Turn]) -> int:
    """Return the same for turns that are known as ids alone: what each prompt adds to the longest earlier sequence."""
    total = 0
    earlier: list[list[int]] = []
    for turn in turns:
        longest = max(map(len, earlier), default=0)
        total += max(len(turn.prompt_ids) - longest, 0) + len(turn.completion_ids)
        earlier.append([*turn.prompt_ids, *turn.completion_ids])
    return total
