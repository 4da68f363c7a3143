"""Which mode a run gets: a wrong choice changes every token a trainer sees."""

from __future__ import annotations

from typing import Any

import pytest

from prl.client import resolve_client_mode
from prl.types import ConfigError


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, "renderer"),
        ({"client_mode": "renderer"}, "renderer"),
        ({"client_mode": "chat"}, "chat"),
        ({"client_mode": "token"}, "token"),
        ({"client_mode": "acme-stream"}, "acme-stream"),
        ({"use_renderer": True}, "renderer"),
        ({"use_renderer": True, "use_token_client": False}, "renderer"),
        ({"use_token_client": True}, "token"),
        ({"use_renderer": False, "use_token_client": True}, "token"),
        ({"use_renderer": False, "use_token_client": False}, "chat"),
        ({"use_renderer": False}, "chat"),
        ({"client_mode": "renderer", "use_renderer": True}, "renderer"),
        ({"teacher_rollout": True}, "chat"),
        ({"teacher_rollout": True, "use_renderer": True}, "chat"),
        ({"teacher_rollout": True, "use_token_client": True}, "chat"),
        ({"is_vlm": True, "client_mode": "chat"}, "chat"),
        ({"is_vlm": True, "use_token_client": True}, "token"),
        ({"renderer_options": {"thinking_retention": "all"}}, "renderer"),
        ({"client_mode": "acme-stream", "renderer_options": {"a": 1}}, "acme-stream"),
        ({"client_mode": "chat", "renderer_options": {}}, "chat"),
    ],
)
def test_the_policy(settings: dict[str, Any], mode: str) -> None:
    assert resolve_client_mode(**settings) == mode


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_renderer": True, "use_token_client": True}, "both true"),
        ({"is_vlm": True}, "vision-language"),
        ({"is_vlm": True, "use_renderer": True}, "vision-language"),
        ({"client_mode": "chat", "renderer_options": {"a": 1}}, r"renderer options \(a\)"),
        ({"use_token_client": True, "renderer_options": {"a": 1}}, "'token' mode uses no renderer"),
        ({"teacher_rollout": True, "renderer_options": {"a": 1}}, "uses no renderer"),
        ({"client_mode": "chat", "use_renderer": True}, "mean 'renderer'"),
        ({"client_mode": "renderer", "use_token_client": True}, "mean 'token'"),
    ],
)
def test_contradictions_are_config_errors_with_a_next_step(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_client_mode(**settings)
    assert caught.value.where
    assert caught.value.next_step
