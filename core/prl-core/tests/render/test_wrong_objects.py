"""Wrong objects given to the public functions: one clear error, and never a sample that is silently something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.small_format import TOKENIZER, small_renderer

import prl
from prl.trajectory import interleave_rollout
from prl.types import PrlError

MESSAGES: Any = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
RENDERER: Any = small_renderer()
TOOL = {"type": "function", "function": {"name": "lamp", "parameters": {}}}


def render(messages: Any = MESSAGES, **options: Any) -> Any:
    return RENDERER.render(messages, **options)


def sample(renderer: Any = RENDERER, messages: Any = MESSAGES, **options: Any) -> Any:
    return prl.build_supervised_sample(renderer, messages, **options)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a text as messages": (lambda: render("Hi"), "messages is a str, not a list"),
    "one message as messages": (lambda: render(MESSAGES[0]), "messages is a dict, not a list"),
    "no messages": (lambda: render(None), "messages is a NoneType, not a list"),
    "a text as tools": (lambda: render(tools="lamp"), "tools is a str, not a list"),
    "one tool as tools": (lambda: render(tools=TOOL), "tools is a dict, not a list"),
    "names of tools": (lambda: render(tools=[TOOL, "lamp"]), "tool 1 is a str"),
    "a bridge with names of tools": (
        lambda: RENDERER.bridge_to_next_turn([1], [2], MESSAGES[:1], tools=["lamp"]),
        "tool 0 is a str",
    ),
    "a text as completion": (lambda: RENDERER.parse_response("Hi"), "the completion is a str, not token ids"),
    "no completion": (lambda: RENDERER.parse_response(None), "the completion is a NoneType, not token ids"),
    "a role as roles": (lambda: render().loss_mask("assistant"), "roles is 'assistant'"),
    "a message that is not there": (lambda: render().loss_mask(messages=[1, 2]), "2 is no message of these"),
    "a message from the end": (lambda: sample(messages_to_train=[1, -1]), "-1 is no message of these"),
    "one index as indices": (lambda: sample(messages_to_train=1), "1 is no message of these"),
    "a tokenizer as renderer": (lambda: sample(TOKENIZER), "a Tokenizer is no renderer"),
    "a role that is not there": (lambda: sample(roles=["asistant"]), "no token of this conversation"),
    "roles that are no texts": (lambda: sample(roles=[3]), "no token of this conversation"),
    "no name": (lambda: prl.create_renderer(TOKENIZER, None), "name is None, not a text"),  # type: ignore[arg-type]
    "a model object": (lambda: prl.create_renderer(TOKENIZER, model=TOKENIZER), "model is Tokenizer"),  # type: ignore[arg-type]
    "a path as tokenizer": (lambda: prl.create_renderer("models/m", "default"), "cannot use a builtins.str"),
    "no tokenizer": (lambda: prl.load_tokenizer(None), "None names no tokenizer"),  # type: ignore[arg-type]
    "an empty name": (lambda: prl.load_tokenizer(""), "'' names no tokenizer"),
    "turns as rollout": (lambda: interleave_rollout([]), "a list is no rollout"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_object_is_told_in_three_parts(case: str) -> None:
    call, what = WRONG[case]
    with pytest.raises(PrlError) as caught:
        call()
    assert caught.value.what.startswith(what)
    assert caught.value.where
    assert caught.value.next_step


def test_a_damaged_tokenizer_config_is_not_taken_for_none(tmp_path: Path) -> None:
    """Its chat template and end token would be missing, and nobody would know."""
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(PrlError, match=r"cannot read tokenizer_config\.json: it holds a list"):
        prl.load_tokenizer(tmp_path)
