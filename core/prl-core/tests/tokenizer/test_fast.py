"""The fast encoders: used only when proven, left aside with a reason, never a different id."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer, vendor_tokenizer
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from prl.tokenizer import adapter, as_tokenizer, fast
from prl.tokenizer.prove import first_difference, fuzz_texts

TEXT = "Plain text, 東京, <think> and e\u0301.\n\n"


def fresh() -> adapter.Tokenizer:
    """A tokenizer over the real Qwen3 vocabulary whose encoder is not chosen yet."""
    return adapter.Tokenizer(real_tokenizer("qwen3")._backend)


@pytest.mark.parametrize("module", ["fastokens", "tiktoken"])
def test_each_encoder_alone_is_equal_and_says_so(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Either optional package is enough."""
    pytest.importorskip(module)
    monkeypatch.setattr(fast, "_CANDIDATES", tuple(entry for entry in fast._CANDIDATES if entry[0] == module))
    tokenizer = fresh().warm_up()
    assert tokenizer.backend_name == module
    assert "equal to the reference" in tokenizer.backend_report
    texts = fuzz_texts(sorted(tokenizer.added_tokens), seed=23, count=1_500)
    expected = [
        encoding.ids for encoding in vendor_tokenizer("qwen3").encode_batch_fast(texts, add_special_tokens=False)
    ]
    assert tokenizer.encode_many(texts) == expected


def test_without_the_packages_the_reference_serves_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing breaks where the extra is not installed."""
    monkeypatch.setitem(sys.modules, "fastokens", None)
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    tokenizer = fresh().warm_up()
    assert tokenizer.backend_name == "hf"
    assert "fastokens: ModuleNotFoundError" in tokenizer.backend_report
    assert tokenizer.encode(TEXT) == list(vendor_tokenizer("qwen3").encode(TEXT).ids)


@pytest.mark.parametrize("wrong_on", ["\u00a0", "  \n", "<think>"])
def test_an_encoder_that_is_wrong_somewhere_is_left_aside(monkeypatch: pytest.MonkeyPatch, wrong_on: str) -> None:
    """Exactness is proven on this vocabulary, not assumed from a package's name."""

    def build(_: dict[str, Any]) -> Any:
        encode = real_tokenizer("qwen3").encode_ordinary
        return lambda text: encode(text)[::-1] if wrong_on.strip("<>") in text else encode(text)

    monkeypatch.setattr(fast, "_CANDIDATES", (("hasty", build),))
    tokenizer = fresh().warm_up()
    assert tokenizer.backend_name == "hf"
    assert "hasty: differs" in tokenizer.backend_report


def test_the_upgrade_waits_for_enough_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short job must not pay seconds for an encoder it does not need."""
    monkeypatch.setattr(adapter, "_UPGRADE_AFTER", 3 * len(TEXT))
    tokenizer = fresh()
    first = tokenizer.encode(TEXT)
    tokenizer.encode(TEXT)
    assert tokenizer.backend_report == "reference; no fast encoder tried yet"
    assert tokenizer.encode(TEXT) == first
    assert tokenizer.backend_report != "reference; no fast encoder tried yet"
    assert tokenizer.encode(TEXT) == first


def test_backend_hf_never_upgrades(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who pins the reference keeps it, whatever is installed."""
    monkeypatch.setattr(adapter, "_UPGRADE_AFTER", 1)
    tokenizer = adapter.Tokenizer(real_tokenizer("qwen3")._backend, fast="hf")
    tokenizer.encode(TEXT)
    assert tokenizer.warm_up().backend_name == "hf"
    assert tokenizer.backend_report == "reference only, as asked"


def test_text_that_the_normalizer_changes_goes_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fast encoders do not normalise, and libraries disagree on Unicode versions."""
    seen: list[str] = []

    def build(_: dict[str, Any]) -> Any:
        encode = real_tokenizer("qwen3").encode_ordinary
        return lambda text: (seen.append(text), encode(text))[1]

    monkeypatch.setattr(fast, "_CANDIDATES", (("spy", build),))
    tokenizer = fresh().warm_up()
    assert tokenizer.backend_name == "spy"
    seen.clear()
    assert tokenizer.encode_ordinary("e\u0301") == real_tokenizer("qwen3").encode_ordinary("é")
    assert seen == []
    tokenizer.encode_ordinary("é")
    assert seen == ["é"]


def test_a_text_the_fast_encoder_refuses_goes_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit inside a native regex engine is no reason to fail a rollout."""

    def build(_: dict[str, Any]) -> Any:
        def encode(text: str) -> list[int]:
            if "limit!" in text:
                raise ValueError("match limit")
            return real_tokenizer("qwen3").encode_ordinary(text)

        return encode

    monkeypatch.setattr(fast, "_CANDIDATES", (("limited", build),))
    tokenizer = fresh().warm_up()
    assert tokenizer.backend_name == "limited"
    assert tokenizer.encode("<think>limit!") == real_tokenizer("qwen3").encode("<think>limit!")
    assert tokenizer.encode_ordinary_many(["a", "limit!"]) == real_tokenizer("qwen3").encode_ordinary_many(
        ["a", "limit!"]
    )


def test_added_tokens_that_eat_white_space_keep_the_reference() -> None:
    """Splitting such tokens off first would leave the white space they take."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: place for place, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    ours = as_tokenizer(tokenizer).warm_up()
    assert ours.backend_name == "hf"
    assert "takes the white space around it" in ours.backend_report
    assert len(ours.encode("a  <mask>")) == 2


def test_the_proof_finds_a_difference_in_ordinary_text_only() -> None:
    """Both ways of encoding are compared: content under the literal policy goes the second way."""
    reference = real_tokenizer("qwen3")._backend

    class Careless:
        name = "careless"

        def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
            return reference.encode_many(texts)

        encode_ordinary_many = encode_many

    difference = first_difference(reference, Careless(), count=50)
    assert difference is not None
    assert difference.startswith("differs as plain text")
