"""The same jobs done by transformers, by the PyPI package `renderers` and by prl, on one real Qwen3 vocabulary."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import renderers
import transformers
from workloads import Rollout

from prl import build_supervised_sample, create_renderer, load_tokenizer
from prl.render import proven_bridge
from prl.types import PromptIds

Messages = Sequence[dict[str, Any]]
Prompts = list[list[int]]


class Transformers:
    """`apply_chat_template`: it renders every prompt anew, and cannot parse."""

    name = "transformers"

    def __init__(self, directory: Path, template: str, training_template: str) -> None:
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self._template, self._training_template = template, training_template

    def render(self, messages: Messages, tools: Any, *, prompt: bool = False) -> list[int]:
        """Render to ids."""
        encoding = self._tokenizer.apply_chat_template(
            list(messages), tools=tools, chat_template=self._template, add_generation_prompt=prompt, return_dict=True
        )
        return list(encoding["input_ids"])

    def rollout(self, rollout: Rollout, turns: Sequence[int]) -> Prompts:
        """Render the prompts of some turns."""
        return [self.render(rollout.prompt_messages(turn), rollout.tools, prompt=True) for turn in turns]

    def sample(self, rollout: Rollout) -> tuple[list[int], list[bool]]:
        """Build a training sample with the template that marks assistant text."""
        encoding = self._tokenizer.apply_chat_template(
            rollout.messages,
            tools=rollout.tools,
            chat_template=self._training_template,
            return_assistant_tokens_mask=True,
            return_dict=True,
        )
        return list(encoding["input_ids"]), [bool(on) for on in encoding["assistant_masks"]]

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""
        return self._tokenizer


class Renderers:
    """The `renderers` package."""

    name = "renderers"

    def __init__(self, tokenizer: Any) -> None:
        self._renderer = renderers.create_renderer(tokenizer, renderers.Qwen3RendererConfig())

    def render(self, messages: Messages, tools: Any) -> list[int]:
        """Render with attribution."""
        return list(self._renderer.render(list(messages), tools=tools).token_ids)

    def rollout(self, rollout: Rollout, completions: Prompts) -> Prompts:
        """Render the first prompt, bridge to all others."""
        return _bridged(self._renderer, rollout, completions)

    def parse(self, completions: Prompts, tools: Any, prompt: list[int]) -> list[Any]:
        """Parse completions."""
        return [_parsed(self._renderer.parse_response(ids, tools=tools, prompt_ids=prompt)) for ids in completions]

    def sample(self, rollout: Rollout) -> tuple[list[int], list[bool]]:
        """Build a training sample."""
        sample = renderers.build_training_sample(self._renderer, rollout.messages, tools=rollout.tools)
        return sample.token_ids, sample.loss_mask


class Prl:
    """prl with one tokenizer backend; `fresh()` is another one, without what earlier texts left in caches."""

    def __init__(self, directory: Path, backend: str) -> None:
        self._tokenizer = load_tokenizer(directory, backend=backend).warm_up()
        self.name = f"prl, {self._tokenizer.backend_name}"
        self.backend_name = self._tokenizer.backend_name
        self._renderer: Any = self._create()

    def fresh(self) -> Prl:
        """Return one with an empty run cache."""
        made = copy.copy(self)
        made._renderer = self._create()
        return made

    def _create(self) -> Any:
        return create_renderer(self._tokenizer, "qwen3", content_tokens="template")

    def render(self, messages: Any, tools: Any) -> list[int]:
        """Render with attribution."""
        return self._renderer.render(messages, tools=tools).token_ids

    def rollout(self, rollout: Rollout, completions: Prompts) -> Prompts:
        """Render the first prompt, bridge to all others."""
        return _bridged(self._renderer, rollout, completions)

    def session_rollout(self, rollout: Rollout, completions: Prompts) -> Sequence[Sequence[int]]:
        """Do it as a session of the renderer mode does: every bridge is proven, and prompts share their memory."""
        renderer, tools = self._renderer, rollout.tools
        prompts = [PromptIds(renderer.render_ids(rollout.prompt_messages(0), tools=tools, add_generation_prompt=True))]
        for turn, completion in enumerate(completions[:-1]):
            end = rollout.opening + 2 * turn + 1
            history, new = rollout.messages[:end], rollout.messages[end : end + 1]
            prompt = proven_bridge(renderer, prompts[-1], completion, new, tools=tools, history=history)
            assert prompt is not None
            prompts.append(prompt)
        return prompts

    def parse(self, completions: Prompts, tools: Any, prompt: list[int]) -> list[Any]:
        """Parse completions."""
        return [_parsed(self._renderer.parse_response(ids, tools=tools, prompt_ids=prompt)) for ids in completions]

    def sample(self, rollout: Any) -> tuple[list[int], list[bool]]:
        """Build a training sample."""
        sample = build_supervised_sample(self._renderer, rollout.messages, tools=rollout.tools)
        return sample.token_ids, sample.loss_mask


def _bridged(renderer: Any, rollout: Rollout, completions: Prompts) -> Prompts:
    prompt = renderer.render(rollout.prompt_messages(0), tools=rollout.tools, add_generation_prompt=True).token_ids
    prompts = [prompt]
    for turn, completion in enumerate(completions[:-1]):
        result = rollout.messages[rollout.opening + 2 * turn + 1]
        bridged = renderer.bridge_to_next_turn(prompts[-1], completion, [result], tools=rollout.tools)
        prompts.append(bridged.token_ids)
    return prompts


def _parsed(parsed: Any) -> tuple[str, str | None, list[tuple[str, Any]]]:
    return parsed.content, parsed.reasoning_content, [(call.name, call.arguments) for call in parsed.tool_calls]
