"""Message headers: role, recipient, channel and content type, in any of the orders that models write."""

from __future__ import annotations

from typing import NamedTuple

from prl_renderer_gpt_oss.tokens import CHANNEL, CONSTRAIN

CHANNELS = ("analysis", "commentary", "final")
_ASSISTANT = "assistant"
_NO_TOOL = (_ASSISTANT, "user", "all")


class Header(NamedTuple):
    """A header. `recipient` is the tool that is called, "" for messages to nobody in particular.

    `fault` says what is wrong with a header that is not quite one.
    """

    role: str
    channel: str = ""
    recipient: str = ""
    fault: str = ""


def read_header(text: str) -> Header:
    """Read a header whose control tokens are spelled out; never raises.

    The recipient may stand before or after the channel, with or without a content type, marked as a constraint or not.
    """
    before, marked, after = text.partition(CHANNEL)
    heads = _words(before)
    tails = _words(after)
    role = heads.pop(0) if heads and not _is_recipient(heads[0]) else _ASSISTANT
    if role.startswith(_ASSISTANT) and role != _ASSISTANT:
        role, heads = _ASSISTANT, [role.removeprefix(_ASSISTANT), *heads]  # what was sampled clings to the prompt
    channel = tails.pop(0) if tails and not _is_recipient(tails[0]) else ""
    words = heads + tails
    recipients = [word.removeprefix("to=") for word in words if _is_recipient(word)]
    others = [word for word in words if not _is_recipient(word)]
    recipient = recipients[0] if recipients and recipients[0] not in _NO_TOOL else ""
    fault = _fault(channel, others) if marked else ("the header holds more than a role" if others else "")
    return Header(role, channel, recipient, fault)


def _fault(channel: str, others: list[str]) -> str:
    if channel not in CHANNELS:
        return f"the channel {channel!r} is unknown" if channel else "the channel has no name"
    if len(others) > 1:
        return "the header holds more than a content type"
    return ""


def _words(text: str) -> list[str]:
    return text.replace(CONSTRAIN, f" {CONSTRAIN}").split()


def _is_recipient(word: str) -> bool:
    return word.startswith(("to=", "functions."))
