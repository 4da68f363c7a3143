"""Which client mode a run uses: one policy for the modern spelling and the two older switches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prl.types import ConfigError

RENDERER = "renderer"
TOKEN = "token"
CHAT = "chat"
WITHOUT_RENDERER = frozenset({TOKEN, CHAT})

_AT_TOP = "{key} = ... at the top of the file, above the first [section]"
_IN_OPTIONS = "{key} = ... in the top-level section [renderer_options]"
MISPLACED = {
    "renderer": 'renderer = "NAME" at the top of the file, its options in [renderer_options]',
    "renderer_options": "the top-level section [renderer_options]",
    "client_mode": _AT_TOP,
    "client_mode_options": "the top-level section [client_mode_options]",
    "use_renderer": _AT_TOP,
    "use_token_client": _AT_TOP,
    "tool_parser": _IN_OPTIONS,
    "reasoning_parser": _IN_OPTIONS,
    "enable_thinking": _IN_OPTIONS,
    "thinking_retention": _IN_OPTIONS,
    "content_tokens": _IN_OPTIONS,
}
"""Settings of rendering that are looked for under [model], and where they belong."""


def resolve_client_mode(
    client_mode: str | None = None,
    *,
    use_renderer: bool | None = None,
    use_token_client: bool | None = None,
    teacher_rollout: bool = False,
    is_vlm: bool = False,
    renderer_options: Mapping[str, Any] | None = None,
) -> str:
    """Return the mode's name; raise `ConfigError` for settings that contradict each other.

    A rollout by an external teacher forces `chat`: its vocabulary is not ours. The renderer then turns what it said to
    tokens, so renderer options count. Otherwise `client_mode` names any plugin's mode; of the switches, `use_renderer`
    means `renderer`, `use_token_client` means `token`, and switches that are all off mean `chat`. With nothing set it
    is `renderer`.
    """
    switched = _from_switches(use_renderer, use_token_client)
    if teacher_rollout:
        return _of_teacher(client_mode, switched)
    mode = _named(client_mode, switched)
    if mode == RENDERER and is_vlm:
        raise ConfigError(
            "a vision-language model cannot be served through the renderer mode",
            where="client_mode (or use_renderer) and the model",
            next_step='set client_mode = "chat" or "token", where the server prepares the images',
            keys=[("client_mode",)],
        )
    if renderer_options and mode in WITHOUT_RENDERER:
        raise ConfigError(
            f"renderer options ({', '.join(sorted(renderer_options))}) are set, but the {mode!r} mode uses no renderer",
            where="[renderer_options]",
            next_step='set client_mode = "renderer", or remove the renderer options',
            keys=[("renderer_options",)],
        )
    return mode


def refuse_misplaced(model_section: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for settings of rendering under [model]; the error says where each belongs."""
    wrong = [key for key in MISPLACED if key in model_section]
    if wrong:
        raise ConfigError(
            f"{' and '.join(f'model.{key}' for key in wrong)}: [model] says which model it is, not how it is spoken to",
            where=", ".join(f"[model] {key}" for key in wrong),
            next_step="write " + "; ".join(MISPLACED[key].format(key=key) for key in wrong),
        )


def _of_teacher(client_mode: str | None, switched: str | None) -> str:
    """Return `chat`, unless another mode was asked for by name."""
    asked = next((mode for mode in (client_mode, switched) if mode not in (None, CHAT)), None)
    if asked is not None:
        raise ConfigError(
            f"rollouts come from an external teacher, and the {asked!r} mode was asked for",
            where="[teacher.rollouts], and client_mode or the switches use_renderer and use_token_client",
            next_step="remove the client mode: a teacher is always asked in the chat mode",
            keys=[("teacher", "rollouts")],
        )
    return CHAT


def _from_switches(use_renderer: bool | None, use_token_client: bool | None) -> str | None:
    if use_renderer and use_token_client:
        raise ConfigError(
            "use_renderer and use_token_client are both true",
            where="the client settings",
            next_step='choose one: client_mode = "renderer" or client_mode = "token"',
            keys=[("use_renderer",), ("use_token_client",)],
        )
    if use_renderer is None and use_token_client is None:
        return None
    if use_renderer:
        return RENDERER
    return TOKEN if use_token_client else CHAT


def _named(client_mode: str | None, switched: str | None) -> str:
    if client_mode is not None and switched is not None and client_mode != switched:
        raise ConfigError(
            f"client_mode = {client_mode!r}, but use_renderer and use_token_client mean {switched!r}",
            where="the client settings",
            next_step="keep client_mode and remove the two older switches",
            keys=[("client_mode",)],
        )
    return client_mode or switched or RENDERER
