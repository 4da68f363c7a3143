"""A request that is sent again is answered once, whatever kind of future its work has."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from prl.serving.retries import RetryBook
from prl.types import MalformedRequestError


class Work:
    """Counts how often it was begun; its futures are finished by the test."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self.futures: list[Any] = []

    def __call__(self) -> Any:
        self.futures.append(self._make())
        return self.futures[-1]


@pytest.fixture(params=["thread", "event loop"])
async def work(request: pytest.FixtureRequest) -> Work:
    return Work(Future if request.param == "thread" else asyncio.get_running_loop().create_future)


def make_book(limit: int = 100) -> RetryBook[str]:
    return RetryBook(limit, len)


def ask(book: RetryBook[str], key: str | None, work: Work, body: bytes = b"") -> asyncio.Task[str]:
    return asyncio.create_task(book.answer(key, lambda: body, work))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_retry_waits_for_the_first_try_and_gets_its_answer_again_later(work: Work) -> None:
    book = make_book()
    tries = [ask(book, "k", work) for _ in range(3)]
    await settle()
    work.futures[0].set_result("yes")
    assert await asyncio.gather(*tries) == ["yes"] * 3
    assert await ask(book, "k", work) == "yes"
    assert len(work.futures) == 1, "it was sampled once"


async def test_without_a_key_each_is_a_request_of_its_own(work: Work) -> None:
    tries = [ask(make_book(), None, work) for _ in range(2)]
    await settle()
    for number, future in enumerate(work.futures):
        future.set_result(str(number))
    assert await asyncio.gather(*tries) == ["0", "1"]


async def test_a_key_of_another_request_is_refused(work: Work) -> None:
    book = make_book()
    first = ask(book, "k", work, b"one")
    await settle()
    with pytest.raises(MalformedRequestError, match="'k' was used for another request"):
        await ask(book, "k", work, b"two")
    work.futures[0].set_result("yes")
    assert await first == "yes", "the first one goes on"


@pytest.mark.parametrize("key", ["k", None])
async def test_the_last_waiter_to_leave_aborts_the_work(work: Work, key: str | None) -> None:
    book = make_book()
    tries = [ask(book, key, work) for _ in range(2 if key else 1)]
    await settle()
    for number, one in enumerate(tries):
        one.cancel()
        await settle()
        assert work.futures[0].cancelled() is (number == len(tries) - 1)


async def test_a_failure_is_not_remembered(work: Work) -> None:
    book = make_book()
    first = ask(book, "k", work)
    await settle()
    work.futures[0].set_exception(MalformedRequestError("out of memory"))
    with pytest.raises(MalformedRequestError):
        await first
    again = ask(book, "k", work)
    await settle()
    work.futures[1].set_result("yes")
    assert await again == "yes"


async def test_the_oldest_answers_are_forgotten_beyond_the_limit(work: Work) -> None:
    """Answers of a week must not stay in memory; `len` counts a letter as a token here."""
    book = make_book(limit=5)
    for number, key in enumerate("abc"):
        one = ask(book, key, work)
        await settle()
        work.futures[number].set_result("xx")
        await one
    assert await ask(book, "c", work) == "xx"
    assert await ask(book, "b", work) == "xx"
    assert len(work.futures) == 3
    again = ask(book, "a", work)
    await settle()
    assert len(work.futures) == 4, "the oldest is sampled anew"
    again.cancel()
