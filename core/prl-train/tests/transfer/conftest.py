"""Ends of transfers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .ends import Ends


@pytest.fixture
def make_ends() -> Iterator[Callable[..., Ends]]:
    """Make senders; they end with the test."""
    made: list[Ends] = []

    def make(seconds: float = 10.0) -> Ends:
        made.append(Ends(seconds))
        return made[-1]

    yield make
    for ends in made:
        ends.close()
