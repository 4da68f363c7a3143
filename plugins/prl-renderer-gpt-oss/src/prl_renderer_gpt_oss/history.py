"""What a conversation's past says: who was called, where the last answer stands, what a sampled turn holds."""

from __future__ import annotations

from collections.abc import Sequence

from prl.contracts import CallView
from prl.parse import Grammar
from prl.render import Conversation
from prl_renderer_gpt_oss.header import read_header
from prl_renderer_gpt_oss.parser import HarmonyParser, message_grammar
from prl_renderer_gpt_oss.tokens import CHANNEL, CONTROL_TOKENS, END, START

_NAME_TOKENS = 8
"""Tokens in which a channel's name may be sampled, at most."""


def create_harmony_parser(grammar: Grammar, prompt_ids: Sequence[int] | None, *, offset: int) -> HarmonyParser:
    """Return a parser that begins inside the message which the prompt opened."""
    ids, start = prompt_ids or (), grammar.controls[START]
    opened = next((n for n in range(len(ids) - 1, -1, -1) if ids[n] == start), len(ids))
    return HarmonyParser(message_grammar(grammar), ids[opened:], offset=offset)


def calls_at(conversation: Conversation, position: int) -> Sequence[CallView]:
    """Return a turn's calls; those of a sampled turn that the caller did not describe are read from its ids."""
    view, sampled = conversation.messages[position], conversation.sampled
    if view.index >= 0 or sampled is None:
        return view.calls
    if "calls" not in conversation.memo:
        parser = create_harmony_parser(sampled.grammar, sampled.prompt_ids, offset=len(sampled.prompt_ids))
        parser.feed(sampled.completion_ids)
        found = parser.finish().tool_calls
        conversation.memo["calls"] = [CallView(call.name, call.arguments, call.id) for call in found]
    calls: list[CallView] = conversation.memo["calls"]
    return calls


def called_function(conversation: Conversation, position: int) -> str | None:
    """Return the function that a tool result answers: by its id, else by its name, else by its place."""
    view = conversation.messages[position]
    turns = [n for n in range(position - 1, -1, -1) if conversation.role(n) == "assistant"]
    for n in turns if view.tool_call_id else ():
        for call in calls_at(conversation, n):
            if call.id == view.tool_call_id:
                return call.name
    if view.name:
        return view.name
    for n in turns:
        calls = calls_at(conversation, n)
        if calls:
            place = sum(conversation.role(k) == "tool" for k in range(n + 1, position))
            return calls[place].name if place < len(calls) else None
    return None


def last_message(conversation: Conversation, role: str) -> int:
    """Return the position of a role's last message without calls (the last answer, the last query), -1 for none."""
    if role not in conversation.memo:
        messages = conversation.messages
        found = (n for n in range(len(messages) - 1, -1, -1) if messages[n].role == role and not messages[n].calls)
        conversation.memo[role] = next(found, -1)
    return int(conversation.memo[role])


def last_control(conversation: Conversation) -> str:
    """Return the last control token of the message that was being sampled."""
    sampled = conversation.sampled
    assert sampled is not None
    names = {sampled.grammar.controls[token]: token for token in CONTROL_TOKENS}
    for ids in (sampled.completion_ids, sampled.prompt_ids):
        for token in reversed(ids):
            if token in names:
                return names[token]
    return END


def holds_analysis(grammar: Grammar, ids: Sequence[int]) -> bool:
    """Whether any message of the channel `analysis` stands in the ids (the name may be sampled in several tokens)."""
    channel, size = grammar.controls[CHANNEL], len(grammar.token_bytes)
    for place in (n for n, token in enumerate(ids) if token == channel):
        after = ids[place + 1 : place + 1 + _NAME_TOKENS]
        name = b"".join(grammar.token_bytes[token] for token in after if 0 <= token < size)
        if read_header(CHANNEL + name.decode("utf-8", "replace").split("<|")[0]).channel == "analysis":
            return True
    return False
