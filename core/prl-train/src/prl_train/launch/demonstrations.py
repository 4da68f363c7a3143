"""Demonstrations with the exact tokens a rollout would have: the same prompts, bridges and completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prl.contracts import Demonstrator, Environment, Renderer
from prl.tokenizer import Tokenizer
from prl.trajectory import interleave_rollout
from prl.types import ConfigError, Message, Rollout, ToolSpec, Turn
from prl_train.data.sft_rows import SftSample
from prl_train.data.written import written_turn
from prl_train.orchestrator import Schedule


def demonstration_rollout(
    renderer: Renderer, tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[ToolSpec] | None
) -> Rollout:
    """Return a conversation as the rollout it would have been, had the model sampled its assistant turns.

    A full render would not do: templates write past turns otherwise than they prompt for new ones.
    """
    turns: list[Turn] = []
    answered = 0
    for position, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        written = written_turn(
            renderer,
            tokenizer,
            messages[:answered],
            messages[answered:position],
            message,
            last=turns[-1] if turns else None,
            tools=tools,
        )
        turns.append(
            Turn(
                prompt_ids=written.prompt,
                completion_ids=written.completion,
                completion_mask=written.mask,
                logprobs=None,
                finish_reason="stop",
                weight_version=0,
                message=message,
            )
        )
        answered = position + 1
    return Rollout(trajectory_id="demonstration", turns=tuple(turns), reward=0.0, messages=tuple(messages))


def demonstrators(schedule: Schedule) -> None:
    """Raise `ConfigError` unless every environment can demonstrate."""
    for entry in schedule.environments:
        if not (isinstance(entry.environment, Environment) and isinstance(entry.environment, Demonstrator)):
            raise ConfigError(
                f"environment {entry.environment.name!r} has no demonstrations",
                where="[warmup] or [model.scratch]",
                next_step="give it a `demonstration(index)` method, or start from a trained model without warm-up",
            )


def demonstrations(schedule: Schedule, first: int = 0) -> Iterator[tuple[Environment, list[Message]]]:
    """Yield endless (environment, conversation) pairs, in the environments' shares."""
    demonstrators(schedule)
    number = first
    while True:
        environment = schedule.environment(number)
        if isinstance(environment, Environment) and isinstance(environment, Demonstrator):  # all are, by now
            yield environment, environment.demonstration(number)
        number += 1


def supervised_samples(schedule: Schedule, renderer: Renderer, tokenizer: Tokenizer) -> Iterator[SftSample]:
    """Yield endless supervised samples whose targets are the demonstrations' assistant turns."""
    for environment, messages in demonstrations(schedule):
        rollout = demonstration_rollout(renderer, tokenizer, messages, environment.tools)
        for sample in interleave_rollout(rollout).samples:
            yield SftSample(
                token_ids=sample.prompt_ids + sample.completion_ids,
                loss_mask=[False] * len(sample.prompt_ids) + sample.completion_mask,
            )
