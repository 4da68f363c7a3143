"""What environments answer, checked where it comes in: what is no reward is an error of the rollout, never a batch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NoReturn

from prl.contracts import AgentResult, Example, StepResult
from prl.types import PrlError

ROLES = ("system", "developer", "user", "tool")
"""Who may speak between two turns of the model; what an assistant says is sampled, never given."""


class EnvironmentAnswerError(PrlError):
    """An environment answered what no rollout can go on with, or did not answer in time."""

    code = "environment"


async def in_time(answer: Awaitable[StepResult], seconds: float | None, where: str) -> StepResult:
    """Await an environment's answer; raise `EnvironmentAnswerError` after `seconds`."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await answer
    except TimeoutError as error:
        if not limit.expired():  # the environment's own
            raise
        raise EnvironmentAnswerError(
            f"the environment did not answer within {seconds:g} s",
            where=where,
            next_step="see what its step() waits for, or raise orchestrator.environment_seconds",
        ) from error


def check_example(example: Any, where: str) -> Example:
    """Return the example; raise `EnvironmentAnswerError` where it is none, or has no messages."""
    if not isinstance(example, Example):
        _refuse(f"example() returned {_named(example)}", where, "return prl.contracts.Example")
    messages = _messages(example.messages, where, roles=(*ROLES, "assistant"))
    if not messages:
        _refuse("the example has no messages", where, "give at least the user's question")
    return example


def check_step(result: Any, where: str) -> StepResult:
    """Return what an episode answered, its figures as floats; raise `EnvironmentAnswerError` for nonsense."""
    if not isinstance(result, StepResult):
        _refuse(f"step() returned {_named(result)}", where, "return prl.contracts.StepResult")
    messages = _messages(result.messages, where, roles=ROLES)
    if not result.done and not messages:
        _refuse(
            "the episode is not done and says nothing", where, "return messages for the model to answer, or done=True"
        )
    return StepResult(
        messages=messages,
        done=bool(result.done),
        reward=check_reward(result.reward, where),
        metrics=_metrics(result.metrics, where),
    )


def check_agent_result(result: Any, where: str) -> AgentResult:
    """Return an agent's result, its figures as floats; raise `EnvironmentAnswerError` for nonsense."""
    if not isinstance(result, AgentResult):
        _refuse(f"run() returned {_named(result)}", where, "return prl.contracts.AgentResult")
    return AgentResult(
        reward=check_reward(result.reward, where),
        metrics=_metrics(result.metrics, where),
        output=str(result.output),
    )


def check_reward(reward: Any, where: str) -> float:
    """Return the reward as a finite float: one `nan` would make every advantage of its group `nan`."""
    return _number(reward, "the reward", where)


def _metrics(metrics: Any, where: str) -> dict[str, float]:
    if not isinstance(metrics, Mapping):
        _refuse(f"the metrics are {_named(metrics)}", where, "return a mapping of names to numbers")
    named: dict[str, float] = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name or not _is_text(name):
            _refuse(f"a metric is named {name!r}", where, "name metrics by text")
        named[name] = _number(value, f"metric {name!r}", where)
    return named


def _number(value: Any, what: str, where: str) -> float:
    """Return a finite float; numbers of numpy and torch are numbers too, text is none."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        _refuse(f"{what} is {_named(value)}", where, "return a number")
    number = float(value)
    if not math.isfinite(number):
        _refuse(f"{what} is {number}", where, "return a finite number: it would spoil the whole group")
    return number


def _messages(messages: Any, where: str, *, roles: Sequence[str]) -> tuple[Any, ...]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        _refuse(f"the messages are {_named(messages)}", where, "return a sequence of messages")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            _refuse(f"message {number} is {_named(message)}", where, 'write {"role": ..., "content": ...}')
        if message.get("role") not in roles:
            _refuse(f"message {number} has the role {message.get('role')!r}", where, f"use one of {', '.join(roles)}")
    return tuple(messages)


def _named(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _is_text(name: str) -> bool:
    """Whether a name can be written: half a surrogate pair cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _refuse(what: str, where: str, next_step: str) -> NoReturn:
    raise EnvironmentAnswerError(what, where=where, next_step=next_step)
