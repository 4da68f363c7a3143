"""The conversation generator and the byte tokenizer: what conformance suites stand on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prl.testing.byte_tokenizer import ByteTokenizer
from prl.testing.conversations import ORDINARY, generate_assistant, generate_conversation, generate_conversations
from prl.tokenizer import as_tokenizer


def test_the_same_seed_gives_the_same_conversations() -> None:
    """A failure in CI must be repeatable from its seed."""
    first = [conversation.messages for conversation in generate_conversations(20, seed=4)]
    assert first == [conversation.messages for conversation in generate_conversations(20, seed=4)]
    assert first != [conversation.messages for conversation in generate_conversations(20, seed=5)]
    assert generate_assistant(8) == generate_assistant(8)


def test_conversations_cover_the_edges() -> None:
    """A fuzz corpus that lost an edge would let its bug back in."""
    messages: list[Any] = [message for c in generate_conversations(400, seed=1) for message in c.messages]
    contents = [message["content"] for message in messages]
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    assert None in contents
    assert "" in contents
    assert any(isinstance(content, list) for content in contents)
    assert any(isinstance(content, str) and "<|im_end|>" in content for content in contents)
    assert any(isinstance(content, str) and content.startswith("\n") for content in contents)
    assert any("reasoning" in message for message in messages)
    assert any("reasoning_content" in message for message in messages)
    assert any(isinstance(call["function"]["arguments"], str) for call in calls)
    assert any(len(message.get("tool_calls") or ()) > 1 for message in messages)
    assert any(
        c.messages[place]["role"] == "system"
        for c in generate_conversations(400)
        for place in range(1, len(c.messages))
    )
    assert any(c.tools and "größe" in json.dumps(c.tools, ensure_ascii=False) for c in generate_conversations(100))


def test_ordinary_conversations_have_no_edges() -> None:
    """Suites that compare exactly use these."""
    for seed in range(100):
        for message in generate_conversation(seed, ORDINARY).messages:
            content = message["content"]
            assert isinstance(content, str)
            assert content == content.strip()
            assert content or message.get("tool_calls")
            assert "<|" not in content


def test_the_byte_tokenizer_round_trips_and_merges() -> None:
    """Merges across piece borders are what it exists to show."""
    tokenizer = as_tokenizer(ByteTokenizer(["<|end|>", "<x>"]))
    for text in ("", "é東京🦉\x00", "a\n\n\nb", "x<|end|>y\n"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("\n\n")) == 1
    assert tokenizer.encode("\n") + tokenizer.encode("\n") != tokenizer.encode("\n\n")
    assert tokenizer.encode("<|end|>") == [tokenizer.token_id("<|end|>")]
    assert tokenizer.encode_ordinary("<x>") == [60, 120, 62]
    with pytest.raises(KeyError):
        ByteTokenizer([]).token_bytes(100_000)
