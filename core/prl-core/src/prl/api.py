"""The public functions: load a tokenizer, create a renderer, build a supervised sample."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

from prl.contracts import Renderer
from prl.plugin import create, get_registry, resolve_renderer
from prl.tokenizer import as_tokenizer
from prl.types import ConfigError, Message, RenderedTokens, RenderError, ToolSpec


def list_renderers() -> list[str]:
    """Return the names of all installed renderers, sorted."""
    return sorted(record.name for record in get_registry().all("renderer"))


def create_renderer(tokenizer: Any, name: str = "auto", *, model: str | None = None, **options: Any) -> Renderer:
    """Create a renderer on a tokenizer.

    tokenizer: what `load_tokenizer` returns, a `tokenizers.Tokenizer`, a transformers fast tokenizer, a
    `tiktoken.Encoding`, or
        an object with the small protocol of `prl.tokenizer.BringYourOwn`.
    name: a renderer, or "auto": by exact model id (`model`, else the tokenizer's own name), then by its chat template.
    options: fields of the renderer's options model.

    Raises `PluginError` for an unknown name, `ConfigError` for an unknown option, `TokenizerError` for a missing
    control token.
    """
    for argument, value in (("name", name), ("model", model or "")):
        if not isinstance(value, str):
            raise ConfigError(
                f"{argument} is {value!r}, not a text",
                where=f"create_renderer({argument}=...)",
                next_step='give a name of `prl.list_renderers()`, or "auto" and a model id',
            )
    adapted = as_tokenizer(tokenizer)
    record = resolve_renderer(name, model=model or adapted.name_or_path or None, chat_template=adapted.chat_template)
    return cast(Renderer, create("renderer", record.name, adapted, **options))


@dataclass(frozen=True)
class SupervisedSample:
    """A conversation as one training sequence; `loss_mask[i]` says token i is a target (not shifted)."""

    token_ids: list[int]
    loss_mask: list[bool]
    rendered: RenderedTokens


def build_supervised_sample(
    renderer: Renderer,
    messages: Sequence[Message],
    *,
    tools: Sequence[ToolSpec] | None = None,
    roles: Collection[str] = ("assistant",),
    messages_to_train: Collection[int] | None = None,
) -> SupervisedSample:
    """Render a finished conversation and mask what is trained.

    Assistant turns contribute what the model would sample, stop token included; other `roles` their body only.
    `messages_to_train` narrows the targets to some message indices. Raises `RenderError` where nothing would be
    trained.
    """
    if not callable(getattr(renderer, "render", None)):
        raise ConfigError(
            f"a {type(renderer).__name__} is no renderer",
            where="build_supervised_sample(renderer, ...)",
            next_step="give what `prl.create_renderer(tokenizer, name)` returns",
        )
    rendered = renderer.render(messages, tools=tools)
    mask = rendered.loss_mask(roles, messages=messages_to_train)
    if True not in mask:
        raise RenderError(
            "no token of this conversation would be trained",
            where=f"{len(messages)} messages, roles {', '.join(sorted(map(str, roles)))}",
            next_step="check that the conversation holds a turn of these roles, or drop the sample",
        )
    return SupervisedSample(rendered.token_ids, mask, rendered)
