"""The cache of encoded runs: bounded, and never at the price of a wrong id."""

from __future__ import annotations

from prl.render.runs import RunCache


def test_a_text_in_use_outlives_the_older_generation() -> None:
    """System prompts and tools come again in every rollout; if they were dropped, each render would pay for them."""
    cache = RunCache(max_chars=20)
    cache.put("system", [1, 2])
    for number in range(50):
        cache.put(f"turn {number}", [number])
        assert cache["system"] == [1, 2]


def test_the_cache_stays_within_its_bound() -> None:
    """A long run of fresh texts must not fill the memory of a trainer."""
    cache = RunCache(max_chars=100)
    for number in range(1_000):
        cache.put(f"text {number:05d}", [number])
    held = [number for number in range(1_000) if cache[f"text {number:05d}"] is not None]
    assert 1 <= len(held) <= 10
    assert held[-1] == 999


def test_an_unknown_text_has_no_ids() -> None:
    """Looking a text up must not make it known."""
    cache = RunCache()
    assert cache["new"] is None
    assert "new" not in cache


def test_several_texts_at_once_are_each_known() -> None:
    """A conversation's runs are kept together; one left out would be encoded again in every render."""
    cache = RunCache(max_chars=100)
    cache.put_all(["one", "two"], [[1], [2]])
    assert (cache["one"], cache["two"], cache["three"]) == ([1], [2], None)
    cache.put_all(["x" * 49], [[3]])
    assert (cache["one"], cache["x" * 49]) == ([1], [3])
