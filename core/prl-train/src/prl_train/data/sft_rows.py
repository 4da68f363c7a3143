"""Rows of a supervised data set: read, clean and tokenise them through a renderer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from prl.contracts import Renderer
from prl.types import Message, ToolSpec
from prl_train.errors import DataError

KNOWN_COLUMNS = frozenset({"messages", "prompt", "completion", "tools", "tool_defs"})


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
    """A supervised sample; `index` is the row it came from, or -1."""

    token_ids: list[int]
    loss_mask: list[bool]
    index: int = -1

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class SftRow:
    """One cleaned row: a conversation, its tools, and the columns nobody knows."""

    messages: list[Message]
    tools: list[ToolSpec] | None
    unknown_columns: tuple[str, ...] = ()


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON Lines file; raise `DataError` naming the line of a bad one."""
    if not path.is_file():
        raise DataError(
            "the data file does not exist", where=str(path), next_step="check `data` in the configuration file"
        )
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"not JSON: {error.msg}", where=where, next_step="write one JSON object a line"
                ) from error
            if not isinstance(row, dict):
                raise DataError("the row is not an object", where=where, next_step="write one JSON object a line")
            yield row


def read_row(row: Mapping[str, Any], where: str = "row") -> SftRow:
    """Read `messages` (or `prompt` + `completion`) and `tools` (or `tool_defs`; a list, or its JSON string).

    Columns are tested for null, not for presence: Arrow gives every row every column.
    """
    messages = row.get("messages")
    if messages is None:
        messages = [
            *_side(row.get("prompt"), "user", "prompt", where),
            *_side(row.get("completion"), "assistant", "completion", where),
        ]
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise DataError(
            "`messages` is not a list of messages", where=where, next_step="give each row a non-empty `messages` list"
        )
    cleaned = [normalise_message(message, f"{where}, message {index}") for index, message in enumerate(messages)]
    tools = row.get("tools") if row.get("tools") is not None else row.get("tool_defs")
    return SftRow(cleaned, _tools(tools, where), tuple(sorted(set(row) - KNOWN_COLUMNS)))


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


def _tools(value: Any, where: str) -> list[ToolSpec] | None:
    if isinstance(value, str):
        if not value.strip():
            return None
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise DataError(
                f"`tools` is text but not JSON: {error.msg}", where=where, next_step="store tools as a JSON list"
            ) from error
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise DataError(
            "`tools` is not a list of objects", where=where, next_step="store tools as a JSON list of objects"
        )
    return value


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
        cleaned["tool_calls"] = [_normalise_call(call) for call in cleaned["tool_calls"]]
    return cast(Message, cleaned)


def _without_nulls(value: Any, keep: str = "") -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: entry for key, entry in value.items() if entry is not None or key == keep}


def _normalise_call(call: Any) -> Any:
    cleaned = _without_nulls(call)
    if isinstance(cleaned, dict) and isinstance(cleaned.get("function"), Mapping):
        cleaned["function"] = _without_nulls(cleaned["function"], keep="arguments")
    return cleaned


def build(
    renderer: Renderer,
    row: Mapping[str, Any] | SftRow,
    *,
    roles: Sequence[str] = ("assistant",),
    index: int = -1,
    where: str = "row",
) -> SftSample:
    """Tokenise one row through the renderer: the same code path, tokens and masks as in a rollout."""
    from prl import build_supervised_sample

    cleaned = row if isinstance(row, SftRow) else read_row(row, where)
    built = build_supervised_sample(renderer, cleaned.messages, tools=cleaned.tools, roles=tuple(roles))
    return SftSample(list(built.token_ids), [bool(flag) for flag in built.loss_mask], index)
