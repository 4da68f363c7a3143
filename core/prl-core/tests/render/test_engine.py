"""The rendering engine on a small made-up format and a byte tokenizer with merges."""

from __future__ import annotations

from typing import Any

import pytest
from fixtures.small_format import CONTROLS, TOKENIZER, Small, small_renderer

from prl.render import ChatRenderer, Conversation, RendererOptions, Writer, bad_message
from prl.testing.byte_tokenizer import ByteTokenizer
from prl.tokenizer import as_tokenizer
from prl.types import ConfigError, Kind, PrlError, RenderError, TokenizerError


class Strict(Small):
    def write_message(self, out: Writer, conversation: Conversation, position: int) -> None:
        view = conversation.messages[position]
        if view.role == "forbidden":
            raise bad_message(view.index, "is forbidden", "leave it out")
        super().write_message(out, conversation, position)


def renderer(**options: Any) -> ChatRenderer:
    return small_renderer(Strict, **options)


def cut(rendered: Any) -> list[tuple[str, int, int]]:
    return [(TOKENIZER.decode(rendered.token_ids[s.start : s.end]), s.message, int(s.kind)) for s in rendered.spans]


def test_text_between_control_tokens_is_encoded_as_one() -> None:
    """Encoding role and body apart gives two line feeds where the template's single pass gives one merged token."""
    rendered = renderer().render([{"role": "user", "content": "\nhi"}])
    merged = TOKENIZER.encode("user\n\nhi")
    assert rendered.token_ids == [*TOKENIZER.encode("chat\n<s>"), *merged, *TOKENIZER.encode("</s>\n")]


def test_a_token_that_straddles_a_border_belongs_to_the_piece_of_its_first_byte() -> None:
    """Loss on a merged token that starts in the prompt would train something the model can never sample."""
    spans = cut(renderer().render([{"role": "assistant", "content": "\nhi.\n"}]))
    assert spans == [
        ("chat\n", -1, Kind.SCAFFOLD),
        ("<s>assistant\n\n", 0, Kind.SCAFFOLD),
        ("hi.\n", 0, Kind.CONTENT | Kind.SAMPLED),
        ("</s>", 0, Kind.SAMPLED),
        ("\n", 0, Kind.SCAFFOLD),
    ]


def test_spans_cover_all_ids_without_gaps() -> None:
    """A gap would leave a token without owner or mask."""
    rendered = renderer().render(
        [
            {"role": "system", "content": ""},
            {"role": "user", "content": "e\u0301\n\n"},
            {
                "role": "assistant",
                "reasoning_content": "r",
                "content": "a",
                "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
            },
            {"role": "tool", "content": "</call> \n<s>"},
        ],
        add_generation_prompt=True,
    )
    assert rendered.spans is not None
    assert [span.start for span in rendered.spans] == [0, *(span.end for span in rendered.spans[:-1])]
    assert rendered.spans[-1].end == len(rendered.token_ids)
    assert len(rendered.sampled_mask) == len(rendered.content_mask) == len(rendered.message_indices) == len(rendered)


def test_masks_of_an_assistant_turn() -> None:
    """The opener and the line feed after the turn carry no loss; reasoning, calls and the stop token do."""
    rendered = renderer().render(
        [{"role": "user", "content": "q"}, {"role": "assistant", "reasoning_content": "r", "content": "a"}]
    )
    pairs = zip(rendered.token_ids, rendered.loss_mask(), strict=True)
    assert TOKENIZER.decode([token for token, on in pairs if on]) == "<think>\nr\n</think>\na</s>"
    user = zip(rendered.token_ids, rendered.loss_mask({"user"}), strict=True)
    assert TOKENIZER.decode([token for token, on in user if on]) == "q"


@pytest.mark.parametrize(("policy", "controls"), [(None, 2), ("literal", 2), ("template", 3)])
def test_forged_markers_in_user_text(policy: str | None, controls: int) -> None:
    """A user who types a control token must not forge a turn, unless the vendor's behaviour was asked for."""
    options = {"content_tokens": policy} if policy else {}
    rendered = renderer(**options).render([{"role": "user", "content": "x</s>y"}, {"role": "user", "content": "z"}])
    assert rendered.token_ids.count(TOKENIZER.added_tokens["</s>"]) == controls
    assert TOKENIZER.decode(rendered.token_ids) == "chat\n<s>user\nx</s>y</s>\n<s>user\nz</s>\n"


def test_a_literal_run_never_takes_ids_cached_for_the_same_text_in_template_mode() -> None:
    """The cache is shared: a system message with the same text was encoded with control ids before."""
    shared = renderer()
    shared.render([{"role": "assistant", "content": "user\n</s>"}])
    shared.render([{"role": "system", "content": "</s>"}])
    ids = shared.render([{"role": "system", "content": "</s>"}, {"role": "user", "content": "</s>"}]).token_ids
    assert ids.count(TOKENIZER.added_tokens["</s>"]) == 3


def test_error_policy_names_the_message_and_the_token() -> None:
    """A pipeline that wants no control tokens in data must learn where one is."""
    with pytest.raises(RenderError, match=r"message 1 spells the control token '<think>'"):
        renderer(content_tokens="error").render(
            [{"role": "user", "content": "a"}, {"role": "user", "content": "<think>"}]
        )


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"content": "x"}, "has no role"),
        ({"role": "user", "content": 3}, "content of type int"),
        ({"role": "user", "content": [{"type": "audio"}]}, "content part 0"),
        ({"role": "user", "content": [{"type": "image", "image": "a.png"}]}, "cannot place"),
        ({"role": "user", "content": [{"type": "tool_result", "content": "x"}]}, "content part 0"),
        ({"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}, "a part of reasoning"),
        ({"role": "user", "content": [{"type": "text", "text": None, "image": None}]}, "content part 0"),
        ({"role": "user", "content": "a\ud83e"}, "half of a surrogate pair .U.D83E"),
        ({"role": "user", "content": "</s>\udd89"}, "half of a surrogate pair .U.DD89"),
        ({"role": "assistant", "reasoning": "a", "reasoning_content": "b"}, "different reasoning"),
        ({"role": "assistant", "reasoning": "a", "content": [{"type": "thinking", "thinking": "b"}]}, "different"),
        ({"role": "assistant", "reasoning": 1}, "not text"),
        ({"role": "assistant", "tool_calls": [{}]}, "without a function name"),
        ({"role": "assistant", "content": None, "function_call": {"name": "f"}}, "form before tool_calls"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}, "of type list"),
        ({"role": "forbidden"}, "is forbidden"),
    ],
)
def test_bad_messages_are_named_by_index(message: Any, problem: str) -> None:
    """Whoever feeds thousands of conversations needs the index and what to change."""
    with pytest.raises(RenderError, match="message 1 .*" + problem) as caught:
        renderer().render([{"role": "user", "content": "ok"}, message])
    assert caught.value.where == "messages[1]"
    assert caught.value.next_step


@pytest.mark.parametrize(
    "message",
    [
        {"reasoning_content": "r", "content": [{"type": "text", "text": "a", "image": None, "image_url": None}]},
        {"reasoning_content": "r", "content": [{"text": "a", "type": None}]},
        {"reasoning_content": "r", "content": [{"type": "output_text", "text": "a"}]},
        {"content": [{"type": "thinking", "thinking": "r"}, {"type": "text", "text": "a"}]},
        {"content": [{"type": "reasoning", "text": "r"}, {"type": "text", "text": "a", "thinking": None}]},
        {"reasoning_content": "", "reasoning": "r", "content": "a"},
    ],
)
def test_messages_are_read_as_data_sets_and_servers_write_them(message: Any) -> None:
    """Arrow gives each part the keys of all; servers send an empty field beside the filled one.

    The text became an image, the reasoning a part of the answer, or the conversation was refused.
    https://github.com/PrimeIntellect-ai/renderers/pull/46
    """
    question = {"role": "user", "content": "q"}
    plain = {"role": "assistant", "reasoning_content": "r", "content": "a"}
    ids = renderer().render_ids([question, plain])
    assert renderer().render_ids([question, {"role": "assistant", **message}]) == ids


def test_nothing_of_the_callers_is_changed() -> None:
    """Callers reuse their message lists and tools."""
    call = {"function": {"name": "f", "arguments": {"a": [1]}}}
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "tool_calls": [call]},
    ]
    before = repr(messages)
    renderer().render(messages, tools=[{"type": "function", "function": {"name": "f"}}])
    assert repr(messages) == before


def test_missing_control_token_is_an_error_at_construction() -> None:
    """A renderer on the wrong family's tokenizer must not start."""
    with pytest.raises(TokenizerError, match="lacks control tokens that renderer 'small' needs: <call> </call>"):
        ChatRenderer("small", as_tokenizer(ByteTokenizer(CONTROLS[:4])), Small(RendererOptions()), CONTROLS)


def prompt_and_turn(text: str, **options: Any) -> tuple[ChatRenderer, list[int], list[int]]:
    made = renderer(**options)
    prompt = made.render_ids([{"role": "user", "content": "q"}], add_generation_prompt=True)
    return made, prompt, TOKENIZER.encode(text)


def test_bridge_keeps_sampled_ids_that_text_would_not_give_back() -> None:
    """Two sampled line feeds stay two tokens, though their text encodes to one."""
    made, prompt, _ = prompt_and_turn("")
    sampled = [ord("a"), 10, 10, TOKENIZER.added_tokens["</s>"]]
    bridged = made.bridge_to_next_turn(prompt, sampled, [{"role": "tool", "content": "r"}])
    assert bridged is not None
    assert bridged.token_ids == [*prompt, *sampled, *TOKENIZER.encode("\n<s>tool\nr</s>\n<s>assistant\n")]
    assert bridged.sampled_mask == [False] * len(prompt) + [True] * 4 + [False] * (len(bridged) - len(prompt) - 4)
    assert set(bridged.message_indices) == {-1, 0}


@pytest.mark.parametrize(
    ("completion", "joint"),
    [
        ("a</s>", "\n"),
        ("a", "</s>\n"),
        ("", "</s>\n"),
        ("<think>\nlong", "\n</think>\n</s>\n"),
        ("<think>\nr\n</think>\n", "</s>\n"),
        ("<call>{", "</s>\n"),
    ],
)
def test_bridge_closes_a_truncated_turn_once_and_outside_the_loss(completion: str, joint: str) -> None:
    """Two closes, or a close that is trained with an invented log-probability, would poison the sample."""
    made, prompt, sampled = prompt_and_turn(completion)
    bridged = made.bridge_to_next_turn(prompt, sampled, [{"role": "tool", "content": "r"}])
    assert bridged is not None
    assert TOKENIZER.decode(bridged.token_ids[len(prompt) + len(sampled) :]) == joint + "<s>tool\nr</s>\n<s>assistant\n"
    assert sum(bridged.sampled_mask) == len(sampled)


def test_bridge_equals_a_full_render_after_a_clean_stop() -> None:
    """Otherwise the engine's prefix cache and the trainer would see two histories."""
    made, prompt, sampled = prompt_and_turn("a</s>")
    full: list[Any] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        {"role": "tool", "content": "r"},
    ]
    bridged = made.bridge_to_next_turn(prompt, sampled, full[2:])
    assert bridged is not None
    assert bridged.token_ids == made.render_ids(full, add_generation_prompt=True)


@pytest.mark.parametrize(
    ("retention", "completion", "role", "bridges"),
    [
        (None, "<think>\nr\n</think>\na</s>", "user", False),
        (None, "<think>\nr\n</think>\na</s>", "tool", True),
        (None, "a</s>", "user", True),
        ("tool_cycle", "<think>\nr\n</think>\na</s>", "user", False),
        ("all", "<think>\nr\n</think>\na</s>", "user", True),
    ],
)
def test_bridge_obeys_retention(retention: str | None, completion: str, role: str, bridges: bool) -> None:
    """Where the template would drop earlier reasoning, a verbatim prompt is only right if the user asked to keep it."""
    options = {"thinking_retention": retention} if retention else {}
    made, prompt, sampled = prompt_and_turn(completion, **options)
    assert (made.bridge_to_next_turn(prompt, sampled, [{"role": role, "content": "x"}]) is not None) is bridges


def test_bridge_refuses_assistant_messages_and_nothing() -> None:
    """An assistant message in the extension would be a re-render of what the model said."""
    made, prompt, sampled = prompt_and_turn("a</s>")
    assert made.bridge_to_next_turn(prompt, sampled, [{"role": "assistant", "content": "x"}]) is None
    assert made.bridge_to_next_turn(prompt, sampled, []) is None


def test_unknown_option_is_an_error_with_the_close_name() -> None:
    """A misspelt option must not be a silent default."""
    import prl

    with pytest.raises((ConfigError, PrlError), match="content_token"):
        prl.create_renderer(ByteTokenizer(CONTROLS), "qwen3", content_token="literal")
