"""Demonstrations with the exact tokens a rollout would have: the same prompts, bridges and completions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prl.contracts import Demonstrator, Environment, Renderer
from prl.tokenizer import Tokenizer
from prl.trajectory import interleave_rollout
from prl.types import ConfigError, Message, Rollout, ToolSpec, Turn
from prl_train.data.sft_rows import SftSample
from prl_train.orchestrator import Schedule


def demonstration_rollout(
    renderer: Renderer, tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[ToolSpec] | None
) -> Rollout:
    """Return a conversation as the rollout it would have been, had the model sampled its assistant turns.

    A full render would not do: templates write past turns otherwise than they prompt for new ones. The turns'
    log-probabilities are zeros that no supervised loss reads.
    """
    turns: list[Turn] = []
    answered = 0
    for position, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = _prompt(renderer, messages, position, answered, turns[-1] if turns else None, tools)
        completion = _completion(renderer, tokenizer, messages[: position + 1], tools)
        turns.append(
            Turn(
                prompt_ids=prompt,
                completion_ids=completion,
                logprobs=[0.0] * len(completion),
                finish_reason="stop",
                weight_version=0,
                message=message,
            )
        )
        answered = position + 1
    return Rollout(trajectory_id="demonstration", turns=tuple(turns), reward=0.0, messages=tuple(messages))


def _prompt(
    renderer: Renderer,
    messages: Sequence[Message],
    position: int,
    answered: int,
    last: Turn | None,
    tools: Sequence[ToolSpec] | None,
) -> list[int]:
    if last is not None:
        bridged = renderer.bridge_to_next_turn(
            last.prompt_ids,
            last.completion_ids,
            messages[answered:position],
            tools=tools,
            history=messages[:answered],
        )
        if bridged is not None:
            return bridged.token_ids
    return renderer.render_ids(messages[:position], tools=tools, add_generation_prompt=True)


def _completion(
    renderer: Renderer, tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[ToolSpec] | None
) -> list[int]:
    """Return the last turn's tokens, stop token included, encoded on their own as a sampler would begin them."""
    prompt = tokenizer.decode(renderer.render_ids(messages[:-1], tools=tools, add_generation_prompt=True))
    whole = tokenizer.decode(renderer.render_ids(messages, tools=tools))
    if not whole.startswith(prompt):
        raise ConfigError(
            f"renderer {renderer.name!r} writes an answered turn otherwise than it prompts for one",
            where="a demonstration's assistant turn",
            next_step="set renderer options that agree with the demonstrations, such as enable_thinking",
        )
    ids = tokenizer.encode(whole[len(prompt) :])
    stops = set(renderer.get_stop_token_ids())
    end = next((index for index, token in enumerate(ids) if token in stops), len(ids) - 1)
    return ids[: end + 1]


def demonstrators(schedule: Schedule) -> None:
    """Raise `ConfigError` unless every environment can demonstrate."""
    for entry in schedule.environments:
        if not isinstance(entry.environment, Demonstrator):
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
        environment, _ = schedule.task(number)
        yield environment, environment.demonstration(number)  # type: ignore[attr-defined]
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
