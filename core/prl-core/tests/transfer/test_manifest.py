"""How tensors are cut into buckets, and what an engine takes as an offer."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from prl.transfer import OfferBody
from prl.transfer.group import local_address, split_address
from prl.types import TensorSpec, WeightManifest


def manifest(*sizes: int) -> WeightManifest:
    return WeightManifest(tuple(TensorSpec(f"t{n}", "uint8", (size,), size) for n, size in enumerate(sizes)))


def test_a_large_tensor_goes_through_several_buckets_and_small_ones_share_one() -> None:
    cut = [
        [(piece.tensor, piece.start, piece.offset, piece.length) for piece in pieces]
        for pieces in manifest(5, 40, 0, 3).buckets(32)
    ]
    assert cut == [[(0, 0, 0, 5), (1, 0, 16, 16)], [(1, 16, 0, 24)], [(3, 0, 0, 3)]]


@given(st.lists(st.integers(0, 200), max_size=12), st.integers(1, 300))
def test_every_byte_is_sent_once_and_no_bucket_is_too_large(sizes: list[int], limit: int) -> None:
    """A byte that is left out, or lies over another, is a wrong weight."""
    sent: dict[int, list[int]] = {number: [] for number in range(len(sizes))}
    for pieces in manifest(*sizes).buckets(limit):
        assert pieces
        assert pieces[-1].end <= max(16, limit)
        for before, after in itertools.pairwise(pieces):
            assert before.end <= after.offset
        for piece in pieces:
            assert piece.offset % 16 == 0 or piece.start
            sent[piece.tensor] += range(piece.start, piece.start + piece.length)
    assert sent == {number: list(range(size)) for number, size in enumerate(sizes)}


def test_a_manifest_is_known_by_names_types_shapes_and_order() -> None:
    one, two = TensorSpec("a", "float32", (2, 3), 24), TensorSpec("b", "bfloat16", (4,), 8)
    told = WeightManifest((one, two)).digest
    assert told == WeightManifest((one, two)).digest
    turned, other = TensorSpec("a", "float32", (3, 2), 24), TensorSpec("a", "int32", (2, 3), 24)
    others = [(two, one), (one,), (turned, two), (other, two)]
    assert told not in {WeightManifest(tensors).digest for tensors in others}


def test_an_offer_over_http_is_the_same_manifest() -> None:
    body = b'{"tensors": [{"name": "a", "dtype": "float32", "shape": [2, 3], "size": 24}]}'
    read = OfferBody.model_validate_json(body).manifest()
    assert read == WeightManifest((TensorSpec("a", "float32", (2, 3), 24),))


def test_addresses_of_both_families_are_read() -> None:
    assert split_address("10.0.0.7:8000") == ("10.0.0.7", 8000)
    assert split_address("[::1]:8000") == ("::1", 8000)
    assert local_address("127.0.0.1:9") == "127.0.0.1"
