"""What engines share: statuses of errors, limits of requests, bodies off the wire, checkpoints on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request

from prl.serving.checkpoints import check_listed, check_shapes, read_index, weight_files
from prl.serving.errors import (
    BodyTooLargeError,
    ClientGoneError,
    InvalidFieldsError,
    UnknownModelError,
    WeightLoadError,
    status_of,
)
from prl.serving.http import data_parallel_rank, read_body, read_bytes
from prl.serving.limits import TokenLimits, unknown_model
from prl.serving.schemas import GenerateBody
from prl.types import (
    ConfigError,
    EngineUnreachableError,
    MalformedRequestError,
    PrlError,
    PromptTooLongError,
    WeightTransferError,
)

LIMITS = TokenLimits(vocabulary=10, context=4)


class OverloadedError(MalformedRequestError):
    """An engine's own error."""

    status = 429


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (MalformedRequestError, 400),
        (InvalidFieldsError, 422),
        (BodyTooLargeError, 413),
        (UnknownModelError, 404),
        (WeightTransferError, 409),
        (EngineUnreachableError, 503),
        (OverloadedError, 429),
        (ConfigError, 500),
    ],
)
def test_an_errors_nearest_class_decides_its_status(kind: type[PrlError], status: int) -> None:
    assert status_of(kind("x")) == status


@pytest.mark.parametrize(
    ("ids", "kind", "where"),
    [
        ([], MalformedRequestError, "prompt"),
        ([1, 10], MalformedRequestError, "prompt[1]"),
        ([-1, 10], MalformedRequestError, "prompt[0]"),
        ([1, 2, 3, 4], PromptTooLongError, "prompt"),
    ],
)
def test_a_prompt_that_cannot_be_served_says_where(ids: list[int], kind: type[PrlError], where: str) -> None:
    with pytest.raises(kind) as caught:
        LIMITS.check_prompt(ids, "prompt")
    assert caught.value.where == where


def test_a_close_model_name_is_meant() -> None:
    assert unknown_model("tinny", ["tiny"]).next_step == "Did you mean 'tiny'?"
    assert unknown_model("other", ["tiny"]).next_step == "send model = 'tiny'"


def request(*parts: bytes | None, headers: dict[str, str] | None = None) -> Request:
    """Return a request whose body comes in parts; None stands for a connection that ends."""
    messages = [
        {"type": "http.disconnect"} if part is None else {"type": "http.request", "body": part, "more_body": True}
        for part in parts
    ]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Any:
        return messages.pop(0)

    raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": "POST", "path": "/v1/generate", "headers": raw, "query_string": b""}
    return Request(scope | {"server": ("127.0.0.1", 80), "scheme": "http"}, receive)


async def test_a_body_is_read_no_further_than_its_limit() -> None:
    assert await read_bytes(request(b"12", b"345"), 5) == b"12345"
    sent = request(b"12", b"345", b"6", b"789")
    with pytest.raises(BodyTooLargeError, match="larger than 5 bytes"):
        await read_bytes(sent, 5)
    assert (await sent.receive())["body"] == b"789", "what follows was not taken off the wire"


async def test_a_client_that_leaves_while_it_sends_is_no_fault_of_the_server() -> None:
    with pytest.raises(ClientGoneError) as caught:
        await read_bytes(request(b"12", None), 5)
    assert status_of(caught.value) == 499


async def test_a_hundred_thousand_wrong_ids_are_told_once() -> None:
    """The answer to a body must not be larger than the body."""
    body = json.dumps({"model": "m", "prompt_token_ids": ["x"] * 1000, "n": 0, "m": 1}).encode()
    with pytest.raises(InvalidFieldsError) as caught:
        await read_body(request(body), GenerateBody, 1 << 20)
    assert [name for name, _ in caught.value.fields] == ["n", "prompt_token_ids.0", "m"]


@pytest.mark.parametrize(("value", "ranks"), [("2", 2), ("-1", 2), ("x", 2), ("1", 1)])
def test_a_rank_that_is_not_there_is_refused(value: str, ranks: int) -> None:
    limits = TokenLimits(vocabulary=10, context=4, ranks=ranks)
    with pytest.raises(MalformedRequestError) as caught:
        data_parallel_rank(request(headers={"X-data-parallel-rank": value}), limits)
    wanted = "send a rank from 0 to 1, or leave the header out" if ranks == 2 else "send 0, or leave the header out"
    assert caught.value.next_step == wanted


def test_a_rank_that_is_there_is_passed_on() -> None:
    limits = TokenLimits(vocabulary=10, context=4, ranks=2)
    assert data_parallel_rank(request(headers={"X-data-parallel-rank": "1"}), limits) == 1
    assert data_parallel_rank(request(), limits) is None


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ("{", "is not a weights index"),
        ("[]", "is not a weights index"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "names '../a.safetensors', which is not a file there"),
        ('{"weight_map": {"a": "b.safetensors"}}', "names 'b.safetensors', which is not a file there"),
    ],
)
def test_an_index_that_does_not_fit_its_directory_is_refused(tmp_path: Path, index: str, problem: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    with pytest.raises(WeightLoadError, match=problem):
        weight_files(tmp_path, read_index(tmp_path))


def test_a_tensor_that_is_only_listed_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightLoadError, match="lists 'b', but no file holds it"):
        check_listed({"a": "x", "b": "x"}, {"a"}, tmp_path)


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ({"a": (1,), "b": (2,), "c": (3,)}, "the model has no 'c'"),
        ({"b": (2,)}, "it lacks 'a'"),
        ({"a": (2,)}, r"'a' has shape \[2\], the model's is \[1\]"),
        ({"a": (1,), **{f"x{n}": (1,) for n in range(5)}}, "the model has no 'x0', 'x1', 'x2' and 2 more"),
    ],
)
def test_tensors_of_another_model_are_refused(shapes: dict[str, tuple[int, ...]], problem: str) -> None:
    with pytest.raises(WeightLoadError, match=problem):
        check_shapes(shapes, {"a": (1,), "b": (2,)}, "here", optional={"b"})


def test_what_may_be_missing_may_be_missing() -> None:
    check_shapes({"a": (1,)}, {"a": (1,), "b": (2,)}, "here", optional={"b"})
