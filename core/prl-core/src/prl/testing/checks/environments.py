"""Checks of an environment: tasks that stay the same, answers that can be rendered, episodes that end."""

from __future__ import annotations

import asyncio
import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prl.contracts import Environment, StepResult
from prl.types import InvalidToolCall, Message, ParsedResponse, ParsedToolCall

from .check import brief, check, expect

_INDICES = (0, 1, 7, 1_000)
_ROLES = ("system", "user", "assistant", "tool")


@dataclass
class EnvironmentSubject:
    """An environment under check."""

    name: str
    environment: Environment
    quirks: Mapping[str, str] = field(default_factory=dict)


@check("environment")
def an_index_is_always_the_same_task(subject: EnvironmentSubject) -> None:
    """Group advantages compare answers to different tasks, and a resumed run trains on others."""
    environment = subject.environment
    for index in _INDICES:
        first, again = environment.example(index), environment.example(index)
        expect((first.id, first.messages) == (again.id, again.messages), f"task {index} differs when asked for twice")
        expect(bool(first.id), f"task {index} has no id")


@check("environment")
def tasks_can_be_rendered(subject: EnvironmentSubject) -> None:
    """A rollout fails before its first token."""
    for index in _INDICES:
        _check_messages(subject.environment.example(index).messages, f"task {index}")
    for tool in subject.environment.tools or ():
        function = tool.get("function", {})
        expect(tool.get("type") == "function" and bool(function.get("name")), f"no tool in OpenAI form: {brief(tool)}")
        json.dumps(tool, allow_nan=False)
    expect(subject.environment.max_turns >= 1, f"max_turns is {subject.environment.max_turns}")


@check("environment")
def episodes_end_whatever_is_said(subject: EnvironmentSubject) -> None:
    """One odd answer of a young policy ends the run, or an episode never ends."""
    environment = subject.environment
    for parsed in _answers(environment):
        for index in _INDICES[:2]:
            asyncio.run(_play(environment, index, parsed))


@check("environment")
def episodes_do_not_share_state(subject: EnvironmentSubject) -> None:
    """Concurrent rollouts of one task earn each other's rewards."""
    environment = subject.environment
    for parsed in _answers(environment):
        alone = asyncio.run(_play(environment, 0, parsed))
        together = asyncio.run(_play_together(environment, parsed))
        expect(all(one == alone for one in together), f"rewards {together} at once, {alone} alone")


async def _play_together(environment: Environment, parsed: ParsedResponse) -> list[float]:
    return list(await asyncio.gather(*(_play(environment, 0, parsed) for _ in range(4))))


async def _play(environment: Environment, index: int, parsed: ParsedResponse) -> float:
    """Say the same in every turn; return the reward."""
    example = environment.example(index)
    before = copy.deepcopy(example.messages)
    episode = environment.start(example)
    reward = 0.0
    for turn in range(environment.max_turns):
        result = await episode.step(parsed.to_message(), parsed)
        expect(isinstance(result, StepResult), f"step returned {brief(result)}")
        numbers = {"reward": result.reward, **result.metrics}
        wrong = [key for key, value in numbers.items() if not math.isfinite(value)]
        expect(not wrong, f"{wrong} of turn {turn} are no numbers: {brief(numbers)}")
        reward = result.reward
        if result.done:
            break
        _check_messages(result.messages, f"the answer to turn {turn} of task {index}")
        expect(bool(result.messages), f"turn {turn} of task {index} goes on, and nobody answers")
        spoken = [message["role"] for message in result.messages]
        expect("assistant" not in spoken, f"the environment speaks for the model in turn {turn}")
    expect(example.messages == before, f"playing task {index} changed its messages")
    return reward


def _answers(environment: Environment) -> list[ParsedResponse]:
    tools = environment.tools or ()
    names = [str(tool["function"]["name"]) for tool in tools] or ["no_such_tool"]
    return [
        ParsedResponse(""),
        ParsedResponse("I do not know. \N{PILE OF POO}"),
        ParsedResponse("", tool_calls=(ParsedToolCall("call_0", names[0], {}),)),
        ParsedResponse("", tool_calls=(ParsedToolCall("call_0", "no_such_tool", {"x": [None]}),)),
        ParsedResponse("", invalid_tool_calls=(InvalidToolCall("<call>", "cut off"),)),
    ]


def _check_messages(messages: Sequence[Message], what: str) -> None:
    for message in messages:
        expect(message.get("role") in _ROLES, f"{what} has a message of role {message.get('role')!r}")
        expect(
            isinstance(message.get("content"), str | list), f"{what} has a message without content: {brief(message)}"
        )
    json.dumps(list(messages), allow_nan=False)
