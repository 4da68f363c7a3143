"""`/v1/chat/completions`: an OpenAI client gets its shape, a trainer gets the exact ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from prl.types import ConfigError, InvalidToolCall, MalformedRequestError, ParsedResponse, ParsedToolCall
from prl_engine_local.chat import RendererFormat, make_format
from prl_engine_local.options import LocalEngineOptions

END = 599


class WordRenderer:
    """A format with one id a character: it obeys the renderer contract as far as the chat route uses it."""

    name = "word"
    is_prefix_stable = True

    def render_ids(
        self, messages: Sequence[Any], *, tools: Any = None, add_generation_prompt: bool = False
    ) -> list[int]:
        text = "".join(f"{m['role'][0]}{m.get('content') or ''}" for m in messages)
        return [ord(c) % 500 for c in text + str(tools or "")] + [END] * add_generation_prompt

    def parse_response(self, ids: Sequence[int], *, tools: Any = None, prompt_ids: Any = None) -> ParsedResponse:
        assert prompt_ids is not None
        return ParsedResponse(
            content=f"{len(ids)} ids",
            reasoning_content="because",
            tool_calls=(ParsedToolCall("c1", "look", {"where": "é"}),) if tools else (),
            invalid_tool_calls=(InvalidToolCall("<call>", "cut"),) if tools else (),
        )

    def get_stop_token_ids(self) -> list[int]:
        return [END, 3]


@pytest.fixture
async def engine(make_engine: Any) -> Any:
    engine = await make_engine()
    engine.chat._format = RendererFormat(WordRenderer())  # type: ignore[arg-type]
    return engine


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "seed": 1} | changes


async def test_the_answer_has_openais_shape(engine: Any, serve: Any, call: Any) -> None:
    server = serve(engine)
    status, answer = await call("POST", f"{server.url}/v1/chat/completions", body())
    assert status == 200
    assert answer["object"] == "chat.completion"
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "5 ids", "reasoning_content": "because"}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "length", None)
    assert "token_ids" not in choice
    assert "prompt_token_ids" not in answer
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}


async def test_return_token_ids_gives_what_the_model_saw_and_said(
    engine: Any, plain_model: Any, logprobs_of: Any
) -> None:
    answer = await engine.client().chat(body(return_token_ids=True, n=2))
    prompt = [ord("u"), ord("h"), ord("i"), END]
    assert answer["prompt_token_ids"] == prompt
    assert answer["weight_version"] == -1
    for choice in answer["choices"]:
        values = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert values == pytest.approx(logprobs_of(plain_model, prompt + choice["token_ids"])[3:], abs=1e-4)


async def test_tool_calls_are_json_strings_and_malformed_ones_stay_visible(engine: Any) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    every_id = list(range(600))
    answer = await engine.client().chat(body(tools=tools, stop_token_ids=every_id))
    message = answer["choices"][0]["message"]
    assert message["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"where": "é"}'}}
    ]
    assert message["content"].endswith("<call>")
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


async def test_the_formats_stop_ids_end_the_turn(engine: Any) -> None:
    engine.chat._format.stop_token_ids = list(range(600))
    answer = await engine.client().chat(body(max_tokens=None, max_completion_tokens=30))
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"stream": True}, "stream"),
        ({"stop": ["x"]}, "stop"),
        ({"messages": []}, "messages"),
        ({"max_completion_tokens": 3}, "not both"),
    ],
)
async def test_a_field_that_would_be_ignored_is_refused(engine: Any, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(MalformedRequestError, match=field):
        await engine.client().chat(body(**changes))


async def test_a_retry_with_the_same_id_repeats_the_answer(engine: Any) -> None:
    first = await engine.client().chat(body(seed=None, return_token_ids=True, request_id="q"))
    again = await engine.client().chat(body(seed=None, return_token_ids=True, request_id="q"))
    assert first["choices"] == again["choices"]
    assert engine.core.scheduler.counters.sampled_tokens == 5


@pytest.fixture
def with_tokenizer(model_dir: str, tmp_path: Path) -> str:
    """The tiny model with a character-level tokenizer and a chat template beside it."""
    import shutil

    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    path = tmp_path / "with-tokenizer"
    shutil.copytree(model_dir, path)
    vocabulary = {chr(i): i for i in range(32, 127)} | {"<unk>": 0, "<end>": 1}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>")
    fast.chat_template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}a:"
    fast.save_pretrained(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1]}))
    return str(path)


async def test_the_tokenizers_own_template_when_asked(make_engine: Any, with_tokenizer: str) -> None:
    engine = await make_engine(model=with_tokenizer, use_tokenizer_template=True)
    answer = await engine.client().chat(body(return_token_ids=True))
    assert answer["prompt_token_ids"] == [ord(c) for c in "u:hi;a:"]
    assert set(answer["choices"][0]["message"]) == {"role", "content"}
    assert engine.chat._format.stop_token_ids == [1]


@pytest.mark.parametrize("message", [{}, {"content": "no role"}])
async def test_messages_that_break_the_template_are_the_clients_fault(
    make_engine: Any, serve: Any, call: Any, with_tokenizer: str, message: dict[str, Any]
) -> None:
    """A vendor's template is a program; what it raises must not look like a fault of the engine."""
    server = serve(await make_engine(model=with_tokenizer, use_tokenizer_template=True))
    status, answer = await call("POST", f"{server.url}/v1/chat/completions", body(messages=[message]))
    assert (status, answer["error"]["code"]) == (400, "render")


async def test_a_chat_with_prompt_ids_is_parsed_but_not_rendered(engine: Any, serve: Any, call: Any) -> None:
    server = serve(engine)
    sent = body(tokens=[7, 8, 9], return_token_ids=True)
    status, answer = await call("POST", f"{server.url}/v1/chat/completions/tokens", sent)
    assert status == 200
    assert answer["prompt_token_ids"] == [7, 8, 9]
    assert answer["choices"][0]["message"]["content"] == "5 ids"
    assert await engine.client().chat_tokens(sent | {"request_id": None}) | {"id": 0} == answer | {"id": 0}
    for tokens, expected in (([600], 400), ([], 422), (None, 422), ([1] * 256, 400)):
        status, answer = await call("POST", f"{server.url}/v1/chat/completions/tokens", body(tokens=tokens))
        assert (status, "error" in answer) == (expected, True)


async def test_tokenize_tells_what_a_chat_would_send(engine: Any, serve: Any, call: Any) -> None:
    server = serve(engine)
    sent = {"model": "tiny", "messages": body()["messages"]}
    assert await call("POST", f"{server.url}/tokenize", sent) == (
        200,
        {"count": 4, "max_model_len": 256, "tokens": [ord("u"), ord("h"), ord("i"), END]},
    )
    assert await engine.client().tokenize(sent | {"add_generation_prompt": False}) == [ord("u"), ord("h"), ord("i")]
    status, _ = await call("POST", f"{server.url}/tokenize", sent | {"model": "other"})
    assert status == 404


async def test_a_tokenizer_without_a_template_is_refused(make_engine: Any, with_tokenizer: str) -> None:
    for name in ("chat_template.jinja",):
        (Path(with_tokenizer) / name).unlink()
    engine = await make_engine(model=with_tokenizer, use_tokenizer_template=True)
    with pytest.raises(ConfigError, match="no chat template"):
        await engine.client().chat(body())


def test_a_tokenizer_that_is_code_is_refused_and_nobody_is_asked(
    with_tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that asks its terminal whether to run a checkpoint's code hangs, or runs it."""
    (Path(with_tokenizer) / "config.json").unlink()  # of a model whose tokenizer would be known without that code
    path = Path(with_tokenizer) / "tokenizer_config.json"
    own = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    path.write_text(json.dumps(json.loads(path.read_text()) | own))
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "n")
    options = LocalEngineOptions(model=with_tokenizer, use_tokenizer_template=True)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        make_format(options, None)
    assert not asked


async def test_the_renderer_is_made_from_the_options(
    make_engine: Any, model_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import prl

    seen: list[Any] = []

    def create_renderer(tokenizer: str, name: str, *, model: str | None = None, **options: Any) -> Any:
        seen.append((tokenizer, name, model, options))
        return WordRenderer()

    monkeypatch.setattr(prl, "load_tokenizer", lambda path: f"tokenizer of {path}", raising=False)
    monkeypatch.setattr(prl, "create_renderer", create_renderer, raising=False)
    engine = await make_engine(chat_template="word", chat_template_options={"thinking": False})
    await engine.client().chat(body())
    await engine.client().chat(body())
    assert seen == [(f"tokenizer of {model_dir}", "word", "tiny", {"thinking": False})]
