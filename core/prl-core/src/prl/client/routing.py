"""Which client mode a run uses: one policy for the modern spelling and the two older switches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prl.types import ConfigError

RENDERER = "renderer"
TOKEN = "token"
CHAT = "chat"
WITHOUT_RENDERER = frozenset({TOKEN, CHAT})


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

    A rollout by an external teacher forces `chat`: its vocabulary is not ours. Otherwise `client_mode` names any
    plugin's mode; of the switches, `use_renderer` means `renderer`, `use_token_client` means `token`, and switches that
    are all off mean `chat`. With nothing set it is `renderer`.
    """
    mode = CHAT if teacher_rollout else _named(client_mode, _from_switches(use_renderer, use_token_client))
    if mode == RENDERER and is_vlm:
        raise ConfigError(
            "a vision-language model cannot be served through the renderer mode",
            where="client_mode (or use_renderer) and the model",
            next_step='set client_mode = "chat"',
        )
    if renderer_options and mode in WITHOUT_RENDERER:
        raise ConfigError(
            f"renderer options ({', '.join(sorted(renderer_options))}) are set, but the {mode!r} mode uses no renderer",
            where="[renderer_options]" + (", with an external teacher" if teacher_rollout else ""),
            next_step='set client_mode = "renderer", or remove the renderer options',
        )
    return mode


def _from_switches(use_renderer: bool | None, use_token_client: bool | None) -> str | None:
    if use_renderer and use_token_client:
        raise ConfigError(
            "use_renderer and use_token_client are both true",
            where="the client settings",
            next_step='choose one: client_mode = "renderer" or client_mode = "token"',
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
        )
    return client_mode or switched or RENDERER
