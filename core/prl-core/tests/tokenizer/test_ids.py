"""Ids equal the vendor's: what a user sees if these fail is a model fed with tokens it never learned."""

from __future__ import annotations

import threading
import unicodedata

import pytest
from fixtures.plugin import real_tokenizer, vendor_tokenizer

from prl.tokenizer import Tokenizer
from prl.tokenizer.prove import fuzz_texts
from prl.types import TokenizerError

VOCABULARIES = ["qwen3", "qwen3.5"]


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("backend", ["hf", "fast"])
def test_ids_and_text_equal_the_vendors_tokenizer(name: str, backend: str) -> None:
    """Every backend gives the vendor's ids on texts that tell tokenizers apart, and decodes them as the vendor does."""
    ours, vendor = real_tokenizer(name, backend), vendor_tokenizer(name)
    texts = fuzz_texts(sorted(ours.added_tokens), seed=11, count=1_500)
    expected = [encoding.ids for encoding in vendor.encode_batch_fast(texts, add_special_tokens=False)]
    assert ours.encode_many(texts) == expected
    assert [ours.encode(text) for text in texts[-50:]] == expected[-50:]
    for text, ids in zip(texts[::3], expected[::3], strict=True):
        assert ours.decode(ids) == vendor.decode(ids, skip_special_tokens=False)
        assert ours.decode(ids) == unicodedata.normalize("NFC", text) or "\u0eba" in text or "\u0b3c" in text


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("backend", ["hf", "fast"])
def test_ordinary_text_never_becomes_a_control_token(name: str, backend: str) -> None:
    """A forged `<|im_end|>` in a web page would end the turn; also tokens that are added but not special."""
    ours = real_tokenizer(name, backend)
    control = set(ours.added_tokens.values())
    texts = [f"a{token}b {token}\n" for token in ours.added_tokens]
    for text, ids in zip(texts, ours.encode_ordinary_many(texts), strict=True):
        assert not control & set(ids)
        assert ours.decode(ids) == text
        assert ours.encode_ordinary(text) == ids


def test_known_ids_of_qwen3(qwen3_tokenizer: Tokenizer) -> None:
    """The numbers that engines and datasets hold."""
    assert qwen3_tokenizer.encode("<|im_start|>user\nHi<|im_end|>") == [151644, 872, 198, 13048, 151645]
    assert qwen3_tokenizer.encode_ordinary("<think>") == [13708, 766, 29]
    assert qwen3_tokenizer.token_id("<think>") == 151667
    assert qwen3_tokenizer.token_id("\n") == 198
    assert qwen3_tokenizer.token_id("user") == 872
    assert qwen3_tokenizer.token_id("two words here") is None
    assert qwen3_tokenizer.vocab_size == 151669
    assert qwen3_tokenizer.added_tokens["<|im_end|>"] == 151645
    assert 151645 in qwen3_tokenizer.special_ids
    assert 151667 not in qwen3_tokenizer.special_ids


def test_known_ids_of_qwen35(qwen35_tokenizer: Tokenizer) -> None:
    """The numbers that engines and datasets hold."""
    assert qwen35_tokenizer.encode("<|im_start|><think>") == [248045, 248068]
    assert qwen35_tokenizer.vocab_size == 248077


def test_decode_of_cut_characters_and_unknown_ids(qwen3_tokenizer: Tokenizer) -> None:
    """A truncated completion ends inside a character; a padded embedding row samples ids without text."""
    ids = qwen3_tokenizer.encode("𓂀")
    assert len(ids) > 1
    assert qwen3_tokenizer.decode(ids[:-1]) == "\ufffd"
    assert qwen3_tokenizer.decode([151935, *ids, 10**9, -1]) == "𓂀"
    assert qwen3_tokenizer.decode([]) == ""


def test_token_bytes_spell_every_text(qwen3_tokenizer: Tokenizer) -> None:
    """Spans are counted from byte lengths: one wrong length shifts a loss mask."""
    for text in ("naïve 東京\n\n🦉", "<|im_start|> x", "\x00\x7f\u00ad", "a" * 300):
        ids = qwen3_tokenizer.encode(text)
        assert b"".join(qwen3_tokenizer.token_bytes[token_id] for token_id in ids).decode() == text
        assert sum(qwen3_tokenizer.byte_lengths[token_id] for token_id in ids) == len(text.encode())


def test_offsets_are_positions_in_the_text_as_given(qwen3_tokenizer: Tokenizer) -> None:
    """Also where the normalizer changed it, and without losing leading blanks."""
    ids, offsets = qwen3_tokenizer.encode_with_offsets(" hi e\u0301<think>")
    assert ids == qwen3_tokenizer.encode(" hi é<think>")
    assert offsets == [(0, 3), (3, 6), (6, 13)]
    ids, offsets = qwen3_tokenizer.encode_with_offsets("<think>", ordinary=True)
    assert (ids, offsets) == ([13708, 766, 29], [(0, 3), (3, 6), (6, 7)])


def test_added_pattern_takes_the_longest_match(qwen3_tokenizer: Tokenizer) -> None:
    """Content policies find control tokens in text with it."""
    pattern = qwen3_tokenizer.added_pattern
    assert pattern is not None
    assert pattern.findall("a<think>b</think><|im_end|>") == ["<think>", "</think>", "<|im_end|>"]


def test_lossless_says_whether_tokens_spell_the_text(qwen3_tokenizer: Tokenizer) -> None:
    """Counting bytes is right only where the normalizer leaves the text alone."""
    assert qwen3_tokenizer.is_lossless("plain")
    assert qwen3_tokenizer.is_lossless("é東京")
    assert not qwen3_tokenizer.is_lossless("e\u0301")
    assert not qwen3_tokenizer.is_lossless("\u212b")


@pytest.mark.parametrize("backend", ["hf", "fast"])
def test_text_that_no_utf8_can_carry_is_refused(backend: str) -> None:
    """Half a surrogate pair must not silently become U+FFFD or crash in native code."""
    ours = real_tokenizer("qwen3", backend)
    for encode in (ours.encode, ours.encode_ordinary):
        with pytest.raises(TokenizerError, match=r"surrogate pair \(U\+D83E\) at character 2"):
            encode("ab\ud83e")
    with pytest.raises(TokenizerError, match="text 1 is a NoneType"):
        ours.encode_many(["a", None])  # type: ignore[list-item]


def test_many_threads_share_one_tokenizer() -> None:
    """Rollouts render on many threads, also while the encoder is being exchanged."""
    ours = Tokenizer(real_tokenizer("qwen3")._backend)
    texts = [f"thread text {number} <think> é" for number in range(200)]
    expected = real_tokenizer("qwen3").encode_many(texts)
    wrong: list[int] = []

    def work() -> None:
        for _ in range(5):
            if ours.encode_many(texts) != expected:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    ours.warm_up()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_python_calls_nfc_the_vendors_normalizer_leaves_alone() -> None:
    """Text goes to a fast encoder, which does not normalise, by Python's tables: they must never be the laxer ones."""
    marks = [chr(code) for code in range(0x300, 0x20000) if unicodedata.combining(chr(code))]
    bases = [chr(code) for code in range(0x20, 0x2FFF) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]
    normalizer = vendor_tokenizer("qwen3").normalizer
    lines = [base + mark for base in bases[::7] for mark in marks[::3]] + [chr(c) for c in range(0x20, 0xD800)]
    stable = [line for line in lines if unicodedata.is_normalized("NFC", line)]
    assert len(stable) > 100_000
    assert normalizer.normalize_str("\n".join(stable)) == "\n".join(stable)
