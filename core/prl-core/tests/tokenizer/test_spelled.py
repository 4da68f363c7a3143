"""Control tokens spelled in text are found, whatever their names have in common."""

from __future__ import annotations

import pytest

from prl.testing.byte_tokenizer import ByteTokenizer
from prl.tokenizer import as_tokenizer
from prl.tokenizer.table import shared_prefix


@pytest.mark.parametrize(
    ("tokens", "prefix"),
    [
        (["<s>", "</s>", "<think>"], "<"),
        (["<|im_start|>", "<|im_end|>"], "<|im_"),
        (["<s>", "<s>x"], "<s>"),
        (["<s>"], "<s>"),
        (["[INST]", "<s>"], ""),
        (["<s>", ""], "<s>"),
        ([], ""),
    ],
)
def test_what_all_tokens_begin_with(tokens: list[str], prefix: str) -> None:
    """A prefix too long would hide a forged token; one too short only costs time."""
    assert shared_prefix(tokens) == prefix


@pytest.mark.parametrize("tokens", [("<s>", "</s>"), ("[INST]", "<s>"), ("<s>",), ()])
def test_a_spelled_token_is_found(tokens: tuple[str, ...]) -> None:
    """A run that spells a token must not be taken for ordinary text, nor the other way round."""
    tokenizer = as_tokenizer(ByteTokenizer(tokens))
    for text in ("", "plain", "a < b", "[IN <s", *(f"x{token}y" for token in tokens)):
        assert tokenizer.spells_added(text) is any(token in text for token in tokens)
