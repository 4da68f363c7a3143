"""Rollouts as bytes, for workers in other processes: what comes out equals what went in.

Ids, log-probabilities and routed experts are msgpack; everything that models and environments wrote is JSON text inside
it, because that has what msgpack lacks: integers of any size and unpaired surrogates. Of a prompt that goes on from the
turn before only what is new is written, so that a rollout takes no more than its last prompt.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import msgspec

from prl.types import ParsedResponse, PromptIds, Rollout, Turn, goes_on_from
from prl_train.run.arrays import pack_array, unpack_array
from prl_train.run.errors import RunError

FORMAT = 2
_NUMBERS = ("completion_ids", "logprobs", "routed_experts")

_ENCODER = msgspec.msgpack.Encoder(enc_hook=pack_array)
_DECODER = msgspec.msgpack.Decoder(ext_hook=unpack_array)


def encode_rollout(rollout: Rollout) -> bytes:
    """Return the rollout as bytes; arrays of routed experts stay arrays."""
    text = {name: getattr(rollout, name) for name in Rollout.__slots__ if name != "turns"}
    turns = [_turn_text(turn) for turn in rollout.turns]
    numbers = [[getattr(turn, name) for name in _NUMBERS] for turn in rollout.turns]
    prompts = [_new_ids(turn, before) for turn, before in zip(rollout.turns, (None, *rollout.turns), strict=False)]
    written = {"format": FORMAT, "text": json.dumps([text, turns]), "prompts": prompts, "numbers": numbers}
    return _ENCODER.encode(written)


def decode_rollout(data: bytes) -> Rollout:
    """Read `encode_rollout`'s bytes; raise `RunError` where they are not a rollout of this format."""
    try:
        value = _DECODER.decode(data)
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']}, this process reads {FORMAT}")
        text, turns = json.loads(value["text"])
        made: list[Turn] = []
        for written, (goes_on, new), numbers in zip(turns, value["prompts"], value["numbers"], strict=True):
            prompt = _behind(made[-1]).extended(new) if goes_on else PromptIds(new)
            made.append(_turn(written, prompt, numbers))
        listed: dict[str, Any] = {name: tuple(text.pop(name)) for name in ("messages", "turn_messages", "tools")}
        return Rollout(turns=tuple(made), **listed, **text)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, LookupError, TypeError) as error:
        raise RunError(
            f"a worker sent what is not a rollout: {type(error).__name__}: {error}",
            where="a rollout worker's answer",
            next_step="install the same prl-core and prl-train in every process of the run",
        ) from error


def _turn_text(turn: Turn) -> dict[str, Any]:
    text = {name: getattr(turn, name) for name in Turn.__slots__ if name not in (*_NUMBERS, "prompt_ids", "parsed")}
    return text | {"parsed": None if turn.parsed is None else asdict(turn.parsed)}


def _new_ids(turn: Turn, before: Turn | None) -> tuple[bool, list[int]]:
    """Return whether a prompt goes on from the turn before, and what it adds to that."""
    if before is not None and goes_on_from(turn.prompt_ids, before.prompt_ids, before.completion_ids):
        return True, list(turn.prompt_ids[len(before.prompt_ids) + len(before.completion_ids) :])
    return False, list(turn.prompt_ids)


def _behind(turn: Turn) -> PromptIds:
    return PromptIds(turn.prompt_ids).extended(turn.completion_ids)


def _turn(text: dict[str, Any], prompt: PromptIds, numbers: list[Any]) -> Turn:
    parsed = text.pop("parsed")
    response = None if parsed is None else msgspec.convert(parsed, ParsedResponse)
    return Turn(prompt_ids=prompt, parsed=response, **text, **dict(zip(_NUMBERS, numbers, strict=True)))
