"""Rollouts as bytes, for workers in other processes: what comes out equals what went in.

Ids, log-probabilities and routed experts are msgpack; everything that models and environments wrote is JSON text inside
it, because that has what msgpack lacks: integers of any size and unpaired surrogates.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import msgspec

from prl.types import ParsedResponse, Rollout, Turn
from prl_train.run.arrays import pack_array, unpack_array
from prl_train.run.errors import RunError

FORMAT = 1
_NUMBERS = ("prompt_ids", "completion_ids", "logprobs", "routed_experts")

_ENCODER = msgspec.msgpack.Encoder(enc_hook=pack_array)
_DECODER = msgspec.msgpack.Decoder(ext_hook=unpack_array)


def encode_rollout(rollout: Rollout) -> bytes:
    """Return the rollout as bytes; arrays of routed experts stay arrays."""
    text = {name: getattr(rollout, name) for name in Rollout.__slots__ if name != "turns"}
    turns = [_turn_text(turn) for turn in rollout.turns]
    numbers = [[getattr(turn, name) for name in _NUMBERS] for turn in rollout.turns]
    return _ENCODER.encode({"format": FORMAT, "text": json.dumps([text, turns]), "numbers": numbers})


def decode_rollout(data: bytes) -> Rollout:
    """Read `encode_rollout`'s bytes; raise `RunError` where they are not a rollout of this format."""
    try:
        value = _DECODER.decode(data)
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']}, this process reads {FORMAT}")
        text, turns = json.loads(value["text"])
        made = [_turn(written, numbers) for written, numbers in zip(turns, value["numbers"], strict=True)]
        listed: dict[str, Any] = {name: tuple(text.pop(name)) for name in ("messages", "turn_messages", "tools")}
        return Rollout(turns=tuple(made), **listed, **text)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"a worker sent what is not a rollout: {type(error).__name__}: {error}",
            where="a rollout worker's answer",
            next_step="install the same prl-core and prl-train in every process of the run",
        ) from error


def _turn_text(turn: Turn) -> dict[str, Any]:
    text = {name: getattr(turn, name) for name in Turn.__slots__ if name not in (*_NUMBERS, "parsed")}
    return text | {"parsed": None if turn.parsed is None else asdict(turn.parsed)}


def _turn(text: dict[str, Any], numbers: list[Any]) -> Turn:
    parsed = text.pop("parsed")
    response = None if parsed is None else msgspec.convert(parsed, ParsedResponse)
    return Turn(parsed=response, **text, **dict(zip(_NUMBERS, numbers, strict=True)))
