"""Rows of a supervised data set: read and clean them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from prl.types import Message, ToolSpec
from prl_train.errors import DataError

KNOWN_COLUMNS = frozenset({"messages", "prompt", "completion", "tools", "tool_defs"})
SWITCHES = ("train", "weight")
"""Keys of a message that say whether it is trained; `weight` is that of OpenAI's fine-tuning files."""


class SupervisedSample(Protocol):
    """What a supervised step trains on: ids, and per token whether it is a target."""

    @property
    def token_ids(self) -> Sequence[int]:
        """The tokens."""
        ...

    @property
    def loss_mask(self) -> Sequence[bool]:
        """Per token: whether it is a target (not shifted)."""
        ...


@dataclass(frozen=True, slots=True)
class SftSample:
    """A supervised sample; `index` is the row it came from, or -1. `notes` counts what is odd about its row's turns."""

    token_ids: list[int]
    loss_mask: list[bool]
    index: int = -1
    notes: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class SftRow:
    """One cleaned row: a conversation, its tools, and the columns nobody knows.

    `switches[i]` says whether message i is trained: True or False where the row says so, None where its role decides.
    """

    messages: list[Message]
    tools: list[ToolSpec] | None
    unknown_columns: tuple[str, ...] = ()
    switches: tuple[bool | None, ...] = ()

    def targets(self, roles: Collection[str]) -> list[int]:
        """Return the indices of the messages that are trained; `roles` decide where a message does not."""
        switches = self.switches or (None,) * len(self.messages)
        return [
            index
            for index, (message, switch) in enumerate(zip(self.messages, switches, strict=True))
            if switch or (switch is None and message["role"] in roles)
        ]


def read_row(row: Mapping[str, Any], where: str = "row") -> SftRow:
    """Read `messages` (or `prompt` + `completion`) and `tools` (or `tool_defs`); lists, or the JSON of such.

    Columns are tested for null, not for presence: Arrow gives every row every column.
    """
    messages = _decoded(row.get("messages"))
    given = 0
    if messages is None:
        prompt = _side(row.get("prompt"), "user", "prompt", where)
        given, messages = len(prompt), [*prompt, *_side(row.get("completion"), "assistant", "completion", where)]
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise DataError(
            "`messages` is not a list of messages", where=where, next_step="give each row a non-empty `messages` list"
        )
    places = [f"{where}, message {index}" for index in range(len(messages))]
    cleaned = [normalise_message(message, place) for message, place in zip(messages, places, strict=True)]
    switches = [take_switch(message, place) for message, place in zip(cleaned, places, strict=True)]
    # What a prompt holds was given to the model, assistant turns included.
    switches[:given] = [switch or False for switch in switches[:given]]
    tools = row.get("tools") if row.get("tools") is not None else row.get("tool_defs")
    return SftRow(cleaned, _tools(tools, where), tuple(sorted(set(row) - KNOWN_COLUMNS)), tuple(switches))


def take_switch(message: Message, where: str = "message") -> bool | None:
    """Remove a message's own loss switch and return it; None where it has none.

    `"train": false` and `"weight": 0` keep a message out of the loss, true and 1 put it in, whatever its role.
    """
    fields = cast(dict[str, Any], message)
    found = {name: fields.pop(name) for name in SWITCHES if name in fields}
    if any(value not in (0, 1) for value in found.values()) or len(set(found.values())) > 1:
        raise DataError(
            f"the message's loss switch is {found}",
            where=where,
            next_step="give `train` (true or false) or `weight` (1 or 0), not another number and not both apart",
        )
    return bool(next(iter(found.values()))) if found else None


def _side(value: Any, role: str, column: str, where: str) -> list[Any]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, Sequence):
        return list(value)
    raise DataError(
        f"the row has neither `messages` nor a usable `{column}`",
        where=where,
        next_step="give each row `messages`, or `prompt` and `completion` (text or a list of messages)",
    )


def _decoded(value: Any) -> Any:
    """Return what a text is the JSON of, as columns hold what no Arrow type fits; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _tools(value: Any, where: str) -> list[ToolSpec] | None:
    value = _decoded(value)
    if value is None or value == [] or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, str):
        raise DataError("`tools` is text but not JSON", where=where, next_step="store tools as a JSON list")
    tools = [_decoded(tool) for tool in value] if isinstance(value, list) else []
    if not tools or not all(isinstance(tool, dict) for tool in tools):
        raise DataError(
            "`tools` is not a list of objects", where=where, next_step="store tools as a JSON list of objects"
        )
    return [_schema(tool) for tool in tools]


_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
"""Parts of a JSON schema whose keys are names, and not the schema's own words."""
_VALUES = ("default", "const", "example")
"""Parts of a JSON schema that are any value, null too."""
_DATA = (*_VALUES, "enum", "examples")
"""Parts of a JSON schema that are no schemas."""


def _schema(value: Any, *, has_names: bool = False) -> Any:
    """Return a tool's schema without null parts: a schema has none, and Arrow gives each tool those of all others."""
    if isinstance(value, list):
        return [_schema(entry) for entry in value]
    if not isinstance(value, Mapping):
        return value
    data, values = ((), ()) if has_names else (_DATA, _VALUES)
    return {
        key: part if key in data else _schema(part, has_names=key in _BY_NAME and not has_names)
        for key, part in value.items()
        if part is not None or key in values
    }


def normalise_message(message: Any, where: str = "message") -> Message:
    """Return a copy without the null fields that Arrow adds; null inside tool arguments is data and stays.

    Removed where null: a message's own fields (`content` stays: null content has a meaning), a content part's, a tool
    call's, and a function's other than `arguments`.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataError(
            "a message needs a `role`", where=where, next_step='write messages as {"role": ..., "content": ...}'
        )
    cleaned = {key: value for key, value in message.items() if value is not None or key == "content"}
    if isinstance(cleaned.get("content"), list):
        cleaned["content"] = [_without_nulls(part) for part in cleaned["content"]]
    if "tool_calls" in cleaned:
        cleaned["tool_calls"] = [_normalise_call(call) for call in _calls(cleaned["tool_calls"], where)]
    return cast(Message, cleaned)


def _calls(value: Any, where: str) -> Sequence[Any]:
    value = _decoded(value) or ()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return value
    raise DataError(
        f"the message's tool_calls are {type(value).__name__}",
        where=where,
        next_step="give a list of calls, or its JSON",
    )


def _without_nulls(value: Any, keep: str = "") -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: entry for key, entry in value.items() if entry is not None or key == keep}


def _normalise_call(call: Any) -> Any:
    cleaned = _without_nulls(call)
    if isinstance(cleaned, dict) and isinstance(cleaned.get("function"), Mapping):
        cleaned["function"] = _without_nulls(cleaned["function"], keep="arguments")
    return cleaned
