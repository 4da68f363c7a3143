"""Tasks by their number, whatever a taskset's stream is: short, long or without end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from verifiers.v1.dialects.chat import message_to_wire

from prl.contracts import Example

UNSPOKEN = "(the conversation is opened by its user)"


class Tasks:
    """The tasks of a taskset, read as far as they are asked for; a stream that ends begins anew."""

    def __init__(self, source: Iterable[Any]) -> None:
        self._stream = iter(source)
        self._read: list[Any] = []
        self._ended = False
        self._failure: Exception | None = None

    def __getitem__(self, index: int) -> Any:
        """Return task `index`, counted round and round; raise `IndexError` where there is none at all."""
        while not self._ended and len(self._read) <= index:
            self._read_one()
        if not self._read:
            raise IndexError("there is no task")
        return self._read[index % len(self._read)]

    def _read_one(self) -> None:
        if self._failure is not None:  # a generator that has raised says that it has ended, which is not so
            raise self._failure
        try:
            self._read.append(next(self._stream))
        except StopIteration:
            self._ended = True
        except Exception as error:
            self._failure = error
            raise


def example_of(name: str, index: int, task: Any) -> Example:
    """Return what prl knows of a task: an id that stays the task's own, and how its conversation opens."""
    identity = task.data.id or task.key[:16]
    return Example(id=f"{name}/{identity}", messages=tuple(_opening(task.data)), data={"task": index})


def _opening(data: Any) -> list[Any]:
    messages = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
    if isinstance(data.prompt, str):
        return [*messages, {"role": "user", "content": data.prompt}]
    messages += [message_to_wire(message) for message in data.prompt or []]
    return messages or [{"role": "user", "content": UNSPOKEN}]
