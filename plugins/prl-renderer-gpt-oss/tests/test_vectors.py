"""Bug reports against other libraries, turned into small inputs with the right answer, on the real vocabulary.

Each test cites the reports. A failure here is a failure that somebody already met in production.
"""

from __future__ import annotations

from typing import Any

import pytest
from fixtures.plugin import real_tokenizer, vendor_tokenizer

from prl import create_renderer
from prl.contracts import Renderer
from prl.types import RenderError

DATE = "2026-01-02"


def renderer(**options: Any) -> Renderer:
    return create_renderer(real_tokenizer("gpt-oss"), "gpt-oss", **({"conversation_start_date": DATE} | options))


def ids_of(text: str) -> list[int]:
    return list(vendor_tokenizer("gpt-oss").encode(text, add_special_tokens=False).ids)


SYSTEM = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
    "Current date: 2026-01-02\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. "
    "Channel must be included for every message.<|end|>"
)
QUESTION = "<|start|>user<|message|>Temp in Oslo?<|end|>"
THOUGHT = "<|start|>assistant<|channel|>analysis<|message|>Call the tool.<|end|>"
TALK: list[Any] = [
    {"role": "user", "content": "Temp in Oslo?"},
    {
        "role": "assistant",
        "thinking": "Call the tool.",
        "tool_calls": [{"type": "function", "function": {"name": "temp", "arguments": {"city": "Oslo"}}}],
    },
    {"role": "tool", "content": "4 C"},
    {"role": "assistant", "thinking": "Report it.", "content": "It is 4 C."},
    {"role": "user", "content": "Thanks"},
]
# What the two layouts write for the call and its result.
EXCHANGE = {
    "template": (
        '<|start|>assistant to=functions.temp<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>'
        '<|start|>functions.temp to=assistant<|channel|>commentary<|message|>"4 C"<|end|>'
    ),
    "harmony": (
        "<|start|>assistant to=functions.temp<|channel|>commentary <|constrain|>json<|message|>"
        '{"city": "Oslo"}<|call|><|start|>functions.temp to=assistant<|channel|>commentary<|message|>4 C<|end|>'
    ),
}
FINAL = "<|start|>assistant<|channel|>final<|message|>It is 4 C."


@pytest.mark.parametrize("layout", EXCHANGE)
def test_reasoning_of_a_call_stands_until_an_answer_and_each_channel_has_its_own_start(layout: str) -> None:
    """Stale reasoning in history, a glued final channel, <|return|> inside history.

    https://github.com/thinking-machines-lab/tinker-cookbook/pull/51 https://github.com/ggml-org/llama.cpp/pull/15181
    """
    one, exchange = renderer(layout=layout), EXCHANGE[layout]
    assert one.render_ids(TALK[:3], add_generation_prompt=True) == ids_of(
        SYSTEM + QUESTION + THOUGHT + exchange + "<|start|>assistant"
    )
    assert one.render_ids(TALK[:4]) == ids_of(
        SYSTEM
        + QUESTION
        + exchange
        + "<|start|>assistant<|channel|>analysis<|message|>Report it.<|end|>"
        + FINAL
        + "<|return|>"
    )
    assert one.render_ids(TALK, add_generation_prompt=True) == ids_of(
        SYSTEM + QUESTION + exchange + FINAL + "<|end|><|start|>user<|message|>Thanks<|end|><|start|>assistant"
    )
    assert not one.is_prefix_stable


@pytest.mark.parametrize(("date", "line"), [("2026-01-02", "Current date: 2026-01-02\n"), ("", "")])
def test_the_date_can_be_fixed_or_left_out(date: str, line: str) -> None:
    """A prompt that changes at midnight cannot be repeated, and no test of it stays green."""
    text = real_tokenizer("gpt-oss").decode(renderer(conversation_start_date=date).render_ids(TALK[:1]))
    assert f"Knowledge cutoff: 2024-06\n{line}\nReasoning: medium" in text


SEEK = "<|channel|>analysis<|message|>Search.<|end|><|start|>assistant"


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.seek <|constrain|>json",
        " to=functions.seek<|channel|>commentary json",
        " to=functions.seek<|channel|>commentary <|constrain|>json",
        "<|channel|>analysis to=functions.seek code",
        "<|channel|>commentary to=functions.seek<|constrain|>json",
        "<|channel|>commentary to=functions.seek",
        "<|channel|>commentary to= functions.seek <|constrain|>json",
        "<|channel|>commentary functions.seek <|constrain|>json",
        " to=functions.seek",
        "<|channel|>commentary to=functions.seek<|channel|>commentary <|constrain|>json",
        "<|channel|>analysis<|channel|>commentary to=functions.seek code",
    ],
)
def test_the_recipient_may_stand_anywhere_in_the_header(header: str) -> None:
    """Markup in the content, or the reference library raising on a few percent of samples.

    https://github.com/ggml-org/llama.cpp/pull/15181 https://github.com/waybarrios/vllm-mlx/pull/562
    https://github.com/openai/harmony/issues/38 https://github.com/openai/harmony/issues/60
    https://github.com/ggml-org/llama.cpp/issues/27720 https://github.com/openai/harmony/pull/97
    """
    parsed = renderer().parse_response(
        ids_of(f'{SEEK}{header}<|message|>{{"q": "fox"}}<|call|>'), prompt_ids=ids_of("<|start|>assistant")
    )
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("seek", {"q": "fox"})]
    assert (parsed.reasoning_content, parsed.content, parsed.invalid_tool_calls) == ("Search.", "", ())


@pytest.mark.parametrize(
    ("completion", "reasoning", "content"),
    [
        ("<|channel|>final It is 4 C.<|return|>", None, "It is 4 C."),
        ("<|channel|>analysis Search.<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>", "Search.", "4"),
        ("analysis<|message|>Search.<|end|><|start|>assistantfinal<|message|>4<|return|>", "Search.", "4"),
        ("<|channel|>commentary to=assistant<|channel|>commentary<|message|>4<|return|>", None, "4"),
        ("<|channel|>final", None, ""),
        ("<|channel|>fin", None, ""),
        ("<|channel|>final <|constrain|>json", None, ""),
        ("<|channel|>commentary to", None, ""),
    ],
)
def test_text_behind_a_channel_is_kept_where_markers_are_missing(
    completion: str, reasoning: str | None, content: str
) -> None:
    """A final answer that vanishes with status 200: https://github.com/ai-dynamo/frontend-crates/issues/237"""
    parsed = renderer().parse_response(ids_of(completion), prompt_ids=ids_of("<|start|>assistant"))
    assert (parsed.reasoning_content, parsed.content, parsed.invalid_tool_calls) == (reasoning, content, ())


def test_a_header_that_is_none_keeps_its_text_and_is_marked() -> None:
    """https://github.com/openai/harmony/issues/60 https://github.com/ggml-org/llama.cpp/issues/27720"""
    completion = f"{SEEK}<|channel|>commentary?? junk<|message|>hello<|return|>"
    parsed = renderer().parse_response(ids_of(completion), prompt_ids=ids_of("<|start|>assistant"))
    assert (parsed.reasoning_content, parsed.content, parsed.tool_calls) == ("Search.", "hello", ())
    [fault] = parsed.invalid_tool_calls
    assert fault.raw == "<|start|>assistant<|channel|>commentary?? junk"
    assert fault.error == "the channel 'commentary??' is unknown"


@pytest.mark.parametrize(
    ("header", "word"),
    [
        ("<|channel|>final <|constrain|>functions.seek", "<|constrain|>functions.seek"),
        ("<|channel|>commentary<|constrain|>functions.seek", "<|constrain|>functions.seek"),
        ("<|channel|>commentary to=", "to="),
    ],
)
def test_a_call_that_names_no_recipient_is_marked_and_never_executed(header: str, word: str) -> None:
    """An answer of bare arguments with nothing that says so: 17 of 200 requests in one report.

    https://github.com/thinking-machines-lab/tinker-cookbook/issues/947
    """
    parsed = renderer().parse_response(ids_of(f'{header}<|message|>{{"q": "fox"}}<|call|>'))
    assert (parsed.content, parsed.tool_calls) == ('{"q": "fox"}', ())
    [fault] = parsed.invalid_tool_calls
    assert (fault.raw, fault.error) == (header, f"{word!r} stands where the content type does, and calls nobody")


@pytest.mark.parametrize(
    ("completion", "raw"),
    [
        (" to=functions.seek<|channel|>commentary json<|message|>{<|call|>", None),
        (" to=functions.seek<|channel|>commentary json<|message|><|call|>", None),
        ('<|channel|>commentary to=functions.seek<|message|>{"q": "fo', None),
        ("<|channel|>commentary to=functions.seek <|constrain|>json<|call|>", None),
        (
            "<|channel|>final<|message|><|end|><|start|>user<|message|>Thanks<|end|>",
            "<|start|>user<|message|>Thanks<|end|>",
        ),
    ],
)
def test_what_is_no_call_is_kept_verbatim_and_never_executed(completion: str, raw: str | None) -> None:
    """An empty call in place of a malformed one runs a tool that nobody asked for."""
    parsed = renderer().parse_response(ids_of(completion))
    assert parsed.tool_calls == ()
    assert [fault.raw for fault in parsed.invalid_tool_calls] == [raw or completion]
    assert parsed.to_message()["content"] == (raw or completion)


def test_a_built_in_tool_takes_code() -> None:
    """Code is not JSON: a parser that insists on JSON loses every call of the python tool."""
    one = renderer(builtin_tools=("python", "browser"))
    completion = "<|channel|>analysis to=python code<|message|>print(1)\n<|call|>"
    parsed = one.parse_response(ids_of(completion))
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("python", {"code": "print(1)\n"})]
    talk: list[Any] = [TALK[0], parsed.to_message(), {"role": "tool", "content": "1"}]
    assert (
        real_tokenizer("gpt-oss")
        .decode(one.render_ids(talk))
        .endswith(
            "<|start|>assistant to=python<|channel|>analysis code<|message|>print(1)\n<|call|>"
            "<|start|>python to=assistant<|channel|>analysis<|message|>1<|end|>"
        )
    )


@pytest.mark.parametrize("layout", EXCHANGE)
def test_reasoning_and_reasoning_content_are_one_field(layout: str) -> None:
    """https://github.com/vllm-project/vllm/issues/38488 https://github.com/vllm-project/vllm/issues/33616"""
    texts = []
    for key in ("reasoning", "reasoning_content", "thinking"):
        turn = {
            "role": "assistant",
            key: "Use df.",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "df", "arguments": {}}}],
        }
        talk: list[Any] = [{"role": "user", "content": "Check disk."}, turn, {"role": "tool", "content": "71%"}]
        texts.append(real_tokenizer("gpt-oss").decode(renderer(layout=layout).render_ids(talk)))
    assert texts[0] == texts[1] == texts[2]
    assert "<|channel|>analysis<|message|>Use df.<|end|>" in texts[0]


@pytest.mark.parametrize("layout", EXCHANGE)
def test_null_content_and_text_parts(layout: str) -> None:
    """The word None, a crash, or a list in the prompt.

    https://github.com/PrimeIntellect-ai/renderers/pull/131 https://github.com/sgl-project/sglang/pull/17867
    """
    one = renderer(layout=layout)
    call = {"id": "c", "function": {"name": "ping", "arguments": '{"x": null}'}}
    parts = [{"type": "text", "text": "Ping "}, {"type": "text", "text": "it."}]
    turns: list[Any] = [
        [
            {"role": "user", "content": user},
            {"role": "assistant", "content": blank, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "ok"},
        ]
        for user, blank in (("Ping it.", ""), (parts, None))
    ]
    assert one.render_ids(turns[0]) == one.render_ids(turns[1])
    text = real_tokenizer("gpt-oss").decode(one.render_ids(turns[1]))
    assert "None" not in text
    assert '{"x": null}<|call|>' in text


@pytest.mark.parametrize("arguments", ["{", "[1]", "null"])
def test_the_template_layout_refuses_arguments_that_are_no_object(arguments: str) -> None:
    """The template would write the string as a JSON string, which no model was trained on."""
    talk: list[Any] = [
        TALK[0],
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
    ]
    with pytest.raises(RenderError, match="message 1"):
        renderer(layout="template").render_ids(talk)
    assert ids_of(f"<|message|>{arguments}<|call|>") == renderer().render_ids(talk)[-2 - len(ids_of(arguments)) :]


def test_results_find_their_function_by_id_in_any_order() -> None:
    """Two results under one name: the model reads an answer to a call that it did not make."""
    calls = [{"id": name, "function": {"name": name, "arguments": {}}} for name in ("left", "right")]
    talk: list[Any] = [
        TALK[0],
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "right", "content": "R"},
        {"role": "tool", "tool_call_id": "left", "content": "L"},
    ]
    text = real_tokenizer("gpt-oss").decode(renderer().render_ids(talk))
    header = "to=assistant<|channel|>commentary<|message|>"
    assert text.endswith(f"<|start|>functions.right {header}R<|end|><|start|>functions.left {header}L<|end|>")


def test_results_without_id_and_name_answer_the_calls_in_their_order() -> None:
    """Some clients send neither; the second result under the first name answers the wrong question."""
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("left", "right")]
    results: list[Any] = [{"role": "tool", "content": text} for text in ("L", "R")]
    turn: Any = {"role": "assistant", "content": None, "tool_calls": calls}
    text = real_tokenizer("gpt-oss").decode(renderer().render_ids([TALK[0], turn, *results]))
    header = "to=assistant<|channel|>commentary<|message|>"
    assert text.endswith(f"<|start|>functions.left {header}L<|end|><|start|>functions.right {header}R<|end|>")
    with pytest.raises(RenderError, match="message 4"):
        renderer().render_ids([TALK[0], turn, *results, results[0]])


def test_messages_of_one_kind_are_joined_by_a_line_feed() -> None:
    """Two thoughts in one word, or a preamble that runs into the answer."""
    completion = (
        "<|channel|>analysis<|message|>One<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>two<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Three.<|return|>"
    )
    parsed = renderer().parse_response(ids_of(completion))
    assert (parsed.reasoning_content, parsed.content) == ("One\ntwo", "Wait.\nThree.")


def test_a_result_without_any_call_is_refused() -> None:
    """Harmony needs the tool's name; a made-up one would be invisible to the caller."""
    with pytest.raises(RenderError, match="message 1"):
        renderer().render_ids([TALK[0], {"role": "tool", "content": "4 C"}])


def test_the_stop_tokens_are_those_of_the_model() -> None:
    """<|end|> ends a message, not a turn: stopping there cuts every turn after its reasoning."""
    assert renderer().get_stop_token_ids() == [200002, 200012, 199999]
