"""Rollouts of an external teacher: it is asked in messages, and our renderer writes down what it said."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from prl.client.chat import ChatAnswer, parse_message, read_answer, said_message, wire_message
from prl.contracts import Renderer
from prl.tokenizer import Tokenizer
from prl.types import EngineError, MalformedResponseError, Message, SamplingParams, ToolSpec, Turn
from prl_train.data.written import WrittenTurn, without_stop, written_turn

from .config import TeacherRolloutsSection

REASONING = ("reasoning_content", "reasoning")
ENDED = frozenset({"stop", "tool_calls", "function_call", "length"})


class ChatServer(Protocol):
    """What answers chat bodies."""

    async def chat(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to an OpenAI chat body."""
        ...


class TeacherMode:
    """A client mode whose turns another model says, in the tokens that our model would say them in.

    Its vocabulary is not ours: turns carry no log-probabilities. Where our template rewrites history, a turn's prompt
    does not extend the one before, and a new training sample starts, as with turns of our own.
    """

    name = "chat"

    def __init__(
        self,
        server: ChatServer,
        renderer: Renderer,
        tokenizer: Tokenizer,
        section: TeacherRolloutsSection,
    ) -> None:
        self.server = server
        self.renderer = renderer
        self.tokenizer = tokenizer
        self.section = section

    def session(
        self,
        *,
        model: str,
        tools: Sequence[ToolSpec] | None = None,
        cache_salt: str | None = None,
        seed: int | None = None,
    ) -> TeacherSession:
        """Begin one conversation; model, salt and seed are the student's, whom nobody asks."""
        return TeacherSession(self, tools)


class TeacherSession:
    """One conversation with the teacher."""

    def __init__(self, mode: TeacherMode, tools: Sequence[ToolSpec] | None) -> None:
        self.messages: list[Message] = []
        self._mode = mode
        self._tools = tools
        self._student: list[Message] = []
        self._last: Turn | None = None

    async def turn(self, new_messages: Sequence[Message], sampling: SamplingParams) -> Turn:
        """Append messages, have the teacher answer; on any error the session is as before.

        The student's `sampling` is not used: its stop ids and temperature mean nothing to the teacher.
        """
        conversation = [*self.messages, *new_messages]
        answer = read_answer(await self._mode.server.chat(self._body(conversation)))
        said, finish = _said(answer)
        learned = said if self._mode.section.keep_reasoning else _without_reasoning(said)
        written = await asyncio.to_thread(self._written, new_messages, learned, finish)
        turn = Turn(
            prompt_ids=written.prompt,
            completion_ids=written.completion,
            completion_mask=written.mask,
            logprobs=None,
            finish_reason=finish,
            weight_version=0,
            message=said,
            parsed=parse_message(said),
        )
        self.messages = [*conversation, said]
        self._student = [*self._student, *new_messages, learned]
        self._last = turn
        return turn

    def _written(self, new: Sequence[Message], said: Message, finish: str) -> WrittenTurn:
        mode = self._mode
        written = written_turn(
            mode.renderer, mode.tokenizer, self._student, new, said, last=self._last, tools=self._tools
        )
        return without_stop(written, mode.renderer.get_stop_token_ids()) if finish == "length" else written

    def _body(self, conversation: Sequence[Message]) -> dict[str, Any]:
        section = self._mode.section
        keep = section.return_reasoning
        messages = [wire_message(one if keep else _without_reasoning(one)) for one in conversation]
        body: dict[str, Any] = {
            "model": section.model,
            "messages": messages,
            "tools": list(self._tools) if self._tools else None,
            **section.sampling.model_dump(),
        }
        return {name: value for name, value in body.items() if value is not None} | section.extra_body


def _said(answer: ChatAnswer) -> tuple[Message, str]:
    """Return what the teacher said, and whether it "stop"ped or ran out of "length"."""
    if len(answer.choices) != 1:
        raise _unusable(f"one completion was asked for, {len(answer.choices)} came")
    choice = answer.choices[0]
    if choice.finish_reason not in ENDED:
        raise EngineError(
            f"the teacher ended its turn with {choice.finish_reason!r}",
            where="the teacher's answer",
            next_step="read its server's documentation; the rollout is counted as broken, and not trained on",
        )
    if choice.message.get("function_call"):
        raise _unusable("the teacher called a function in the form that OpenAI has replaced by tool_calls")
    said = said_message(choice.message)
    if not (said.get("content") or said.get("tool_calls") or said.get("reasoning_content")):
        raise _unusable("the teacher said nothing")
    return said, "length" if choice.finish_reason == "length" else "stop"


def _unusable(what: str) -> MalformedResponseError:
    return MalformedResponseError(
        what,
        where="the teacher's answer",
        next_step="check [teacher.rollouts] extra_body and sampling against what its server takes",
    )


def _without_reasoning(message: Message) -> Message:
    kept: Any = {name: value for name, value in message.items() if name not in REASONING}
    return kept  # type: ignore[no-any-return]
