"""Which mode a run gets: a wrong choice changes every token a trainer sees."""

from __future__ import annotations

from typing import Any

import pytest

from prl.client import resolve_client_mode
from prl.client.routing import refuse_misplaced
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
        ({"teacher_rollout": True, "use_renderer": False}, "chat"),
        ({"teacher_rollout": True, "use_renderer": False, "use_token_client": False}, "chat"),
        ({"teacher_rollout": True, "client_mode": "chat"}, "chat"),
        ({"teacher_rollout": True, "is_vlm": True}, "chat"),
        ({"teacher_rollout": True, "renderer_options": {"enable_thinking": False}}, "chat"),
        ({"is_vlm": True, "client_mode": "token"}, "token"),
        ({"is_vlm": True, "use_renderer": False, "use_token_client": False}, "chat"),
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
        ({"use_renderer": False, "renderer_options": {"a": 1}}, "'chat' mode uses no renderer"),
        ({"teacher_rollout": True, "use_renderer": True}, "external teacher, and the 'renderer' mode"),
        ({"teacher_rollout": True, "use_token_client": True}, "external teacher, and the 'token' mode"),
        ({"teacher_rollout": True, "use_renderer": True, "use_token_client": True}, "both true"),
        ({"teacher_rollout": True, "client_mode": "renderer"}, "external teacher, and the 'renderer' mode"),
        ({"client_mode": "chat", "use_renderer": True}, "mean 'renderer'"),
        ({"client_mode": "renderer", "use_token_client": True}, "mean 'token'"),
    ],
)
def test_contradictions_are_config_errors_with_a_next_step(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_client_mode(**settings)
    assert caught.value.where
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ({"path": "m", "renderer": "qwen3"}, 'renderer = "NAME" at the top of the file'),
        ({"path": "m", "renderer": {"name": "qwen3"}}, "[renderer_options]"),
        ({"path": "m", "renderer_options": {"enable_thinking": False}}, "[renderer_options]"),
        ({"path": "m", "use_renderer": True}, "use_renderer = ... at the top of the file"),
        ({"path": "m", "use_token_client": True}, "use_token_client = ... at the top of the file"),
        ({"path": "m", "client_mode": "chat"}, "client_mode = ... at the top of the file"),
        ({"path": "m", "tool_parser": "hermes"}, "tool_parser = ... in the top-level section [renderer_options]"),
        ({"path": "m", "reasoning_parser": "x"}, "reasoning_parser = ... in the top-level section [renderer_options]"),
    ],
)
def test_renderer_settings_under_model_are_sent_to_their_place(section: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_misplaced(section)
    assert caught.value.where.startswith("[model] ")
    assert place in caught.value.next_step


def test_a_model_section_of_its_own_keys_passes() -> None:
    refuse_misplaced({"path": "m", "scratch": {}})
