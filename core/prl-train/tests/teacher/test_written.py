"""Turns that nobody sampled here get the tokens that a sampler would have drawn: otherwise nothing could say them."""

from __future__ import annotations

from typing import Any

import pytest

from prl.types import Message, RenderError
from prl_train.data.written import WrittenTurn, behind_prompt, without_stop, written_turn

HI: Message = {"role": "user", "content": "Hi"}


def text(tokenizer: Any, turn: WrittenTurn) -> str:
    return str(tokenizer.decode(turn.completion))


def test_a_turn_is_the_prompt_and_what_the_model_samples_with_its_stop_token(tokenizer: Any, render: Any) -> None:
    turn = written_turn(render(), tokenizer, [], [HI], {"role": "assistant", "content": "Hello."})
    assert tokenizer.decode(turn.prompt) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert text(tokenizer, turn) == "<think>\n\n</think>\n\nHello.<|im_end|>"
    assert turn.mask == [True] * len(turn.completion)


def test_reasoning_and_calls_are_part_of_the_turn(tokenizer: Any, render: Any) -> None:
    said: Message = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Look it up.",
        "tool_calls": [{"type": "function", "function": {"name": "find", "arguments": '{"q": "x"}'}}],
    }
    turn = written_turn(render(), tokenizer, [], [HI], said)
    wanted = '<think>\nLook it up.\n</think>\n\n<tool_call>\n{"name": "find", "arguments": {"q": "x"}}\n</tool_call>'
    assert text(tokenizer, turn) == wanted + "<|im_end|>"


def test_text_that_merges_with_the_prompts_end_is_encoded_as_a_sampler_would_begin_it(
    tokenizer: Any, render: Any
) -> None:
    """The vocabulary has one token for "\\n\\n", whose first half ends the prompt: no sampler can say the other."""
    renderer = _Plain(tokenizer)
    turn = written_turn(renderer, tokenizer, [], [HI], {"role": "assistant", "content": "\nHi there"})
    assert renderer.render([HI, {"role": "assistant", "content": "\nHi there"}]).token_ids != [
        *turn.prompt,
        *turn.completion,
    ]
    assert turn.completion == [*tokenizer.encode_ordinary("\nHi there"), tokenizer.token_id("<|im_end|>")]
    assert turn.mask == [True] * len(turn.completion)


def test_every_token_of_a_text_that_merged_with_the_prompts_end_is_the_models(tokenizer: Any) -> None:
    """One token of the render straddles the border; what it becomes is said in several tokens, all of them sampled."""
    data, newline = tokenizer.token_bytes, tokenizer.encode_ordinary("\n")
    merged = next(n for n, text in enumerate(data) if text.startswith(b"\n") and len(text) > 1)
    rest = data[merged][1:]
    fresh = tokenizer.encode_ordinary(rest.decode())
    found = behind_prompt(tokenizer, newline, [merged, newline[0]], [False, True], "plain")
    assert found == (
        tokenizer.encode_ordinary(rest.decode() + "\n"),
        [True] * len(tokenizer.encode_ordinary(rest.decode() + "\n")),
    )
    assert behind_prompt(tokenizer, newline, [merged], [False], "plain") == (fresh, [False] * len(fresh))


def test_a_marker_that_is_only_text_stays_text(tokenizer: Any) -> None:
    """A teacher that explains chat formats must not end the student's turn in the middle of a sentence."""
    renderer = _Plain(tokenizer)
    end = tokenizer.token_id("<|im_end|>")
    turn = written_turn(renderer, tokenizer, [], [HI], {"role": "assistant", "content": "\nsay <|im_end|> to stop"})
    assert turn.completion.count(end) == 1
    assert turn.completion[-1] == end
    assert tokenizer.decode(turn.completion) == "\nsay <|im_end|> to stop<|im_end|>"


def test_a_turn_that_ran_out_of_tokens_has_no_stop_token(tokenizer: Any, render: Any) -> None:
    renderer = render()
    turn = written_turn(renderer, tokenizer, [], [HI], {"role": "assistant", "content": "Hello"})
    cut = without_stop(turn, renderer.get_stop_token_ids())
    assert cut.completion == turn.completion[:-1]
    assert len(cut.mask) == len(cut.completion)
    assert without_stop(cut, renderer.get_stop_token_ids()) == cut


def test_a_renderer_that_prompts_otherwise_than_it_writes_is_refused(tokenizer: Any) -> None:
    """Training would go on silently with a prompt that the student is never given."""
    with pytest.raises(RenderError, match="otherwise than it prompts"):
        written_turn(_Plain(tokenizer, opening="<think>\n"), tokenizer, [], [HI], {"role": "assistant", "content": "x"})


class _Plain:
    """ChatML whose generation prompt is `<|im_start|>assistant\\n` and `opening`; role and content are one run."""

    name = "plain"

    def __init__(self, tokenizer: Any, opening: str = "") -> None:
        self._tokenizer = tokenizer
        self._opening = opening

    def get_stop_token_ids(self) -> list[int]:
        return [self._tokenizer.token_id("<|im_end|>")]

    def render(self, messages: Any, *, tools: Any = None) -> Any:
        from prl.types import Kind, RenderedTokens, Span

        ids: list[int] = []
        spans = []
        start, end = (self._tokenizer.token_id(name) for name in ("<|im_start|>", "<|im_end|>"))
        for index, message in enumerate(messages):
            kind = Kind.SAMPLED | Kind.CONTENT if message["role"] == "assistant" else Kind.CONTENT
            run = self._tokenizer.encode_ordinary(f"{message['role']}\n{message['content']}")
            role = len(self._tokenizer.encode_ordinary(f"{message['role']}"))
            before = len(ids)
            ids += [start, *run, end, *self._tokenizer.encode_ordinary("\n")]
            spans.append(Span(before, before + 2 + role, index, Kind.SCAFFOLD))
            spans.append(Span(before + 2 + role, len(ids) - 1, index, kind))
            spans.append(Span(len(ids) - 1, len(ids), index, Kind.SCAFFOLD))
        return RenderedTokens(ids, spans, tuple(message["role"] for message in messages))

    def render_ids(self, messages: Any, *, tools: Any = None, add_generation_prompt: bool = False) -> list[int]:
        ids = list(self.render(messages).token_ids)
        if add_generation_prompt:
            ids += [self._tokenizer.token_id("<|im_start|>"), *self._tokenizer.encode(f"assistant\n{self._opening}")]
        return ids
