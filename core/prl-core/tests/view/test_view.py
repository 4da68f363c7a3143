"""What a view shows of a token is what the data says of it: owner, masks, log-probability, or that it is not known."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from fixtures.plugin import real_tokenizer

from prl import create_renderer
from prl.contracts import Renderer
from prl.trajectory import read_trajectory
from prl.types import ConfigError
from prl.view import RolloutView, mask_letters, view_trajectory
from prl.view.terminal import plain, rollout_lines

ASK: dict[str, Any] = {"role": "user", "content": "Where?"}
SAID: dict[str, Any] = {"role": "assistant", "content": "hello"}
TWO_TURNS: list[Any] = [ASK, SAID, {"role": "user", "content": "So?"}, {"role": "assistant", "content": "bye"}]


@functools.cache
def renderer(name: str = "qwen3-instruct-2507") -> Renderer:
    return create_renderer(real_tokenizer("qwen3"), name)


def encode(text: str) -> list[int]:
    return real_tokenizer("qwen3").encode(text)


def view(data: dict[str, Any], *, using: Renderer | None = None) -> RolloutView:
    return view_trajectory(read_trajectory(data, where="f:1", number=1), real_tokenizer("qwen3"), using)


def lines(shown: RolloutView, **options: bool) -> list[str]:
    return [plain(line) for line in rollout_lines(shown, **options)]


def turns() -> list[dict[str, Any]]:
    """Two turns as a client records them: the model spelled "hello" in two tokens."""
    prompt = renderer().render_ids([ASK], add_generation_prompt=True)
    completion = [*encode("hel"), *encode("lo"), *encode("<|im_end|>")]
    bridge = renderer().bridge_to_next_turn(prompt, completion, TWO_TURNS[2:3], history=TWO_TURNS[:2])
    assert bridge is not None
    return [
        {"prompt_ids": prompt, "completion_ids": completion, "logprobs": [-0.05, -0.5, -4.25]},
        {"prompt_ids": bridge.token_ids, "completion_ids": encode("bye"), "finish_reason": "length"},
    ]


def test_a_conversation_shows_the_renderers_own_masks() -> None:
    shown = view({"messages": TWO_TURNS}, using=renderer())
    rendered = renderer().render(TWO_TURNS)
    [sample] = shown.samples
    assert [token.token_id for token in sample.tokens] == rendered.token_ids
    assert [token.owner for token in sample.tokens] == rendered.message_indices
    assert [token.sampled for token in sample.tokens] == rendered.sampled_mask
    assert [token.content for token in sample.tokens] == rendered.content_mask
    assert [token.loss for token in sample.tokens] == rendered.loss_mask()
    assert "".join(token.text for token in sample.tokens) == real_tokenizer("qwen3").decode(rendered.token_ids)


RECORDED = """\
t  (f:1)
  reward 1 · ids as recorded
sample 0: 25 tokens, 4 sampled, ? content, 4 in the loss; turns 0, 1
          0-3  0:user       ...                <|im_start|>user\\n
          3-5  0:user       .C.                Where?
          5-7  0:user       ...                <|im_end|>\\n
         7-10  template     ...                <|im_start|>assistant\\n
        10-13  1:assistant  S?L  -1.60/-4.25   hello<|im_end|>
        13-14  template     ...                \\n
        14-17  2:user       ...                <|im_start|>user\\n
        17-19  2:user       .C.                So?
        19-21  2:user       ...                <|im_end|>\\n
        21-24  template     ...                <|im_start|>assistant\\n
        24-25  3:assistant  S?L                bye"""


def test_recorded_turns_show_proven_owners_and_what_is_not_known() -> None:
    """The content mask of tokens that no render gives is a question mark, never a guess."""
    shown = view({"id": "t", "reward": 1.0, "messages": TWO_TURNS, "turns": turns()}, using=renderer())
    assert "\n".join(lines(shown)) == RECORDED


def test_without_a_renderer_nothing_is_claimed_about_owners() -> None:
    shown = view({"turns": turns()})
    [sample] = shown.samples
    assert {shown.owner(token.owner) for token in sample.tokens} == {"?"}
    assert {mask_letters(token) for token in sample.tokens} == {".?.", "S?L"}


def test_samples_of_a_run_show_their_own_mask_spans_and_breaks() -> None:
    """A masked completion is sampled and not in the loss: both must be seen."""
    prompt, answer = encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"), encode("hello<|im_end|>")
    first = {
        "prompt_ids": prompt,
        "completion_ids": answer,
        "mask": [0, 1],
        "logprobs": [-1.5, -0.25],
        "spans": [[0, len(prompt), 0], [len(prompt), len(prompt) + 2, 1]],
    }
    second = {"prompt_ids": [1, 2], "completion_ids": [3], "mask": [1], "logprobs": [-2.0], "spans": None}
    data = {
        "trajectory_id": "r",
        "messages": [ASK, SAID, ASK, SAID],
        "samples": [first, second],
        "breaks": [{"turn": 1, "cause": "compaction", "position": 0}],
    }
    shown = view(data)
    assert shown.breaks == ["turn 1: compaction at token 0"]
    tokens = shown.samples[0].tokens[-2:]
    assert [(token.sampled, token.loss, token.logprob, token.owner) for token in tokens] == [
        (True, False, None, 1),
        (True, True, -0.25, 1),
    ]
    assert [sample.turns[0].turn for sample in shown.samples] == [0, 1]


def test_a_break_between_turns_is_told_and_starts_a_sample() -> None:
    drifted = turns()
    drifted[1]["prompt_ids"] = renderer().render_ids(TWO_TURNS[:3], add_generation_prompt=True)
    shown = view({"messages": TWO_TURNS, "turns": drifted}, using=renderer())
    assert shown.breaks == ["turn 1: bpe_drift at token 10"]
    assert [[one.turn for one in sample.turns] for sample in shown.samples] == [[0], [1]]


def test_one_turn_alone_is_what_it_added() -> None:
    shown = view({"messages": TWO_TURNS, "turns": turns()}, using=renderer()).of_turn(1)
    [sample] = shown.samples
    text = "".join(token.text for token in sample.tokens)
    assert text == "\n<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\nbye"
    assert view({"turns": turns()}).of_turn(9).samples == []


def test_token_by_token_names_ids_and_logprobs() -> None:
    shown = view({"messages": TWO_TURNS, "turns": turns()}, using=renderer())
    assert lines(shown, by_token=True)[13:16] == [
        "      10    49122  1:assistant  S?L    -0.050  hel",
        "      11      385  1:assistant  S?L    -0.500  lo",
        "      12   151645  1:assistant  S?L    -4.250  <|im_end|>",
    ]


def test_parts_of_a_character_are_shown_as_bytes() -> None:
    """Half of an emoji decodes to a replacement character, which hides what it is."""
    ids = encode("🜁")
    assert len(ids) > 1
    shown = view({"turns": [{"prompt_ids": ids, "completion_ids": [10**7]}]})
    texts = [token.text for token in shown.samples[0].tokens]
    assert texts[0].startswith("\\xf0\\x9f")
    assert texts[-1] == "<id 10000000 is outside the vocabulary>"


def test_what_cannot_be_shown_is_told() -> None:
    with pytest.raises(ConfigError, match="holds messages and no token ids"):
        view({"messages": TWO_TURNS})
    with pytest.raises(ConfigError, match="neither messages nor turns"):
        view({"turns": [{"completion_ids": [1]}]})
