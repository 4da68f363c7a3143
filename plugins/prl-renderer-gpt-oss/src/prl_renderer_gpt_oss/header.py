"""Message headers: role, recipient, channel and content type, in any of the orders that models write."""

from __future__ import annotations

from typing import NamedTuple

from prl_renderer_gpt_oss.tokens import CHANNEL, CONSTRAIN

CHANNELS = ("analysis", "commentary", "final")
_BEHIND_CHANNELS = ("json", "code", "to=")
"""What a header says behind its channel, a recipient's name aside."""
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
    Of several channels the first counts, as in the vendor's own repair; a channel's name may stand without its marker.
    """
    before, marked, after = text.partition(CHANNEL)
    heads = _words(before)
    after, *others_marked = after.split(CHANNEL)
    tails = _words(after)
    role = heads.pop(0) if heads and not _is_recipient(heads[0]) else _ASSISTANT
    if role.startswith(_ASSISTANT) and role != _ASSISTANT:
        role, heads = _ASSISTANT, [role.removeprefix(_ASSISTANT), *heads]  # what was sampled clings to the prompt
    channel = tails.pop(0) if tails and not _is_recipient(tails[0]) else ""
    if not marked and heads and heads[0] in CHANNELS:
        channel, marked = heads.pop(0), CHANNEL
    repeated = [word for part in others_marked for word in _words(part)]
    words = heads + tails + [word for word in repeated if word not in CHANNELS]
    recipients = [word.removeprefix("to=") for word in words if _is_recipient(word) and word != "to="]
    others = [word for word in words if not _is_recipient(word) or (word == "to=" and not recipients)]
    recipient = recipients[0] if recipients and recipients[0] not in _NO_TOOL else ""
    fault = _fault(channel, others) if marked else ("the header holds more than a role" if others else "")
    return Header(role, channel, recipient, fault)


def unmarked_body(text: str) -> str | None:
    """Return the text behind a header's channel, where `<|message|>` is missing.

    "" where the header only names a channel and a content type, or was cut off in them. None where it is none.
    """
    after = text.partition(CHANNEL)[2]
    words = after.split(None, 1)
    if not words:
        return ""
    body = words[1] if len(words) > 1 else ""
    if words[0].partition(CONSTRAIN)[0] not in CHANNELS:
        return "" if not body and any(name.startswith(words[0]) for name in CHANNELS) else None
    if any(name.startswith(body.removeprefix(CONSTRAIN).strip()) for name in _BEHIND_CHANNELS):
        return ""
    return None if CHANNEL in body or CONSTRAIN in body else body


def _fault(channel: str, others: list[str]) -> str:
    if channel not in CHANNELS:
        return f"the channel {channel!r} is unknown" if channel else "the channel has no name"
    if len(others) > 1:
        return "the header holds more than a content type"
    if others and _is_recipient(others[0].removeprefix(CONSTRAIN)):
        return f"{others[0]!r} stands where the content type does, and calls nobody"
    return ""


def _words(text: str) -> list[str]:
    return text.replace(CONSTRAIN, f" {CONSTRAIN}").split()


def _is_recipient(word: str) -> bool:
    return word.startswith(("to=", "functions."))
