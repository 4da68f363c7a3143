"""Turns to lines of the journal, and back: what is read again is what was recorded, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET, UnsetType

from prl.trajectory import common_prefix
from prl.types import Message, PromptIds, Turn, goes_on_from

from .answer import Completion
from .body import ChatRequest
from .book import Match, Node
from .canonical import tools_key
from .journal import Sampled, SampledChoice
from .retries import RequestKey
from .sampler import Sampler

if TYPE_CHECKING:
    from .session import GatewaySession


def sampled_line(
    number: int, request: ChatRequest, match: Match, nodes: Sequence[Node], earlier: Sequence[Node], key: RequestKey
) -> Sampled:
    """Return what is written of one answered request, which `earlier` turns of its session came before."""
    first, base = nodes[0].turn, match.node
    kept = _kept(base, first.prompt_ids)
    return Sampled(
        number=number,
        base=None if base is None else earlier.index(base),
        kept=kept,
        prompt_ids=list(first.prompt_ids[kept:]),
        messages=cast(list[dict[str, Any]], list(match.messages[len(match.messages) - match.new :])),
        key=match.key,
        tools=_tools(request, match, earlier),
        choices=[_choice(node, base) for node in nodes],
        weight_version=first.weight_version,
        temperature=first.temperature,
        may_call=request.may_call,
        with_usage=request.include_usage,
        with_logprobs=request.logprobs,
        name=key.name,
        fingerprint=key.fingerprint,
    )


class Replay:
    """Reads a session's lines in their order; `nodes` are its turns so far, `tools` those of the last line."""

    def __init__(self, session: GatewaySession, sampler: Sampler) -> None:
        self.nodes: list[Node] = []
        self.tools: Any = None
        self._key = tools_key(None)
        self._session = session
        self._sampler = sampler

    def read(self, line: Sampled) -> tuple[Match, list[Node]]:
        """Return how a request matched, and its turns."""
        base = None if line.base is None else self.nodes[line.base]
        if line.tools is not UNSET:
            self.tools = line.tools
            self._key = tools_key(line.tools)
        history = () if base is None else base.history
        messages = (*history, *cast(list[Message], line.messages))
        match = Match(node=base, messages=messages, new=len(line.messages), key=line.key, tools=self._key)
        prompt = _prompt(base, line.kept, line.prompt_ids)
        turns = [_turn(line, choice, prompt, base) for choice in line.choices]
        made = [self._sampler.node(self._session, match, turn, may_call=line.may_call) for turn in turns]
        self.nodes += made
        return match, made

    def answer(self, line: Sampled, nodes: Sequence[Node]) -> Completion:
        """Return the answer that the request had."""
        sampler = self._sampler
        return Completion(
            model=sampler.model,
            nodes=nodes,
            with_usage=line.with_usage,
            with_logprobs=line.with_logprobs,
            decode=sampler.decode,
        )


def _kept(base: Node | None, prompt: Sequence[int]) -> int:
    """Return with how many ids of the base's prompt and completion a prompt begins."""
    if base is None:
        return 0
    before = base.turn
    if goes_on_from(prompt, before.prompt_ids, before.completion_ids):
        return len(before.prompt_ids) + len(before.completion_ids)
    return common_prefix([*before.prompt_ids, *before.completion_ids], prompt)


def _prompt(base: Node | None, kept: int, new: Sequence[int]) -> PromptIds:
    if base is None:
        return PromptIds(new)
    before = base.turn
    if kept == len(before.prompt_ids) + len(before.completion_ids):
        return PromptIds(before.prompt_ids).extended(before.completion_ids, new)  # shares its memory, as it did
    return PromptIds([*[*before.prompt_ids, *before.completion_ids][:kept], *new])


def _rows(base: Node | None) -> list[Any]:
    return [] if base is None else base.turn.routed_experts or []


def _tools(request: ChatRequest, match: Match, earlier: Sequence[Node]) -> list[Any] | UnsetType | None:
    return UNSET if earlier and earlier[-1].tools == match.tools else request.tools


def _choice(node: Node, base: Node | None) -> SampledChoice:
    turn = node.turn
    assert turn.parsed is not None
    kept = common_prefix(_rows(base), turn.routed_experts or [])
    return SampledChoice(
        completion_ids=turn.completion_ids,
        logprobs=turn.logprobs,
        finish_reason=turn.finish_reason,
        parsed=turn.parsed,
        rows_kept=kept,
        rows=None if turn.routed_experts is None else turn.routed_experts[kept:],
    )


def _turn(line: Sampled, choice: SampledChoice, prompt: PromptIds, base: Node | None) -> Turn:
    return Turn(
        prompt_ids=prompt,
        completion_ids=choice.completion_ids,
        logprobs=choice.logprobs,
        finish_reason=choice.finish_reason,
        weight_version=line.weight_version,
        message=choice.parsed.to_message(),
        parsed=choice.parsed,
        temperature=line.temperature,
        routed_experts=None if choice.rows is None else [*_rows(base)[: choice.rows_kept], *choice.rows],
    )
