"""The settings of teachers: what contradicts itself is told before anything starts, and keys stand in no file."""

from __future__ import annotations

from typing import Any

import pytest

from prl.config import load_config
from prl.types import ConfigError
from prl_train.config import RLConfig
from prl_train.launch.parts import check_names, client_mode
from prl_train.launch.teachers import check_secrets, compares_rollouts
from prl_train.teacher import TeacherRolloutsSection
from prl_train.teacher.client import read_api_key

ROLLOUTS = {"base_url": "https://host/v1", "model": "big"}
SECRET = "sk-live-4711"


def config(**values: Any) -> RLConfig:
    rest = {"model": {"path": "absent"}, "environments": [{"name": "reverse-text"}]}
    return RLConfig.model_validate(rest | values)


def taught(**values: Any) -> RLConfig:
    return config(teacher={"rollouts": ROLLOUTS}, trainer={"loss": {"name": "cross-entropy"}}, **values)


def test_a_teachers_rollouts_are_asked_for_in_chat_and_learned_without_comparing() -> None:
    made = taught(renderer_options={"enable_thinking": False})
    assert client_mode(made) == "chat"
    assert not compares_rollouts(made)
    check_names(made)
    assert compares_rollouts(config())
    assert compares_rollouts(config(trainer={"loss": {"name": "policy-gradient"}}))
    assert not compares_rollouts(config(trainer={"loss": {"name": "distillation"}}))


def test_one_rollout_a_task_will_do_where_nothing_is_compared() -> None:
    """A teacher's answers cost money: two of each task must not be asked for without need."""
    check_names(taught(orchestrator={"group_size": 1}))
    with pytest.raises(ConfigError, match="no siblings to compare"):
        check_names(config(orchestrator={"group_size": 1}))


@pytest.mark.parametrize("switch", ["use_renderer", "use_token_client"])
def test_a_switch_beside_a_teacher_is_refused(switch: str) -> None:
    with pytest.raises(ConfigError, match="external teacher"):
        check_names(taught(**{switch: True}))


def test_a_loss_that_compares_with_the_sampler_cannot_learn_from_a_teachers_rollouts() -> None:
    with pytest.raises(ConfigError, match="'grpo' compares") as caught:
        check_names(config(teacher={"rollouts": ROLLOUTS}))
    assert "cross-entropy" in caught.value.next_step


def test_a_loss_that_reads_a_teacher_needs_one() -> None:
    with pytest.raises(ConfigError, match="no teacher gives them") as caught:
        check_names(config(trainer={"loss": {"name": "distillation"}}))
    assert "[teacher.logprobs]" in caught.value.next_step
    section = {"logprobs": {"base_urls": ["http://127.0.0.1:9"]}}
    check_names(config(trainer={"loss": {"name": "distillation"}}, teacher=section))


def test_a_teacher_that_scores_at_another_temperature_is_refused() -> None:
    """At 0.7 a model differs from itself at 1: distillation would pull even a perfect student away."""
    settings = {"teacher": {"logprobs": {"base_urls": ["http://127.0.0.1:9"]}}, "sampling": {"temperature": 0.7}}
    with pytest.raises(ConfigError, match=r"scores at temperature 1, and our model samples at 0\.7") as caught:
        check_names(config(trainer={"loss": {"name": "distillation"}}, **settings))
    assert caught.value.next_step == "set sampling.temperature = 1"
    check_names(config(sampling={"temperature": 0.7}))


def test_an_address_that_is_none_is_told_before_anything_loads() -> None:
    with pytest.raises(ConfigError, match="no engine address"):
        check_names(config(teacher={"logprobs": {"base_urls": ["teacher:8000"]}}))


@pytest.mark.parametrize(
    "wrong",
    [
        {"api_key_env": SECRET},
        {"base_url": f"https://user:{SECRET}@host/v1"},
        {"base_url": f"https://host/v1?key={SECRET}"},
        {"extra_body": {"api_key": SECRET}},
        {"extra_body": {"Authorization": SECRET}},
        {"api_key": SECRET},
    ],
)
def test_a_key_in_the_file_is_refused_without_repeating_it(wrong: dict[str, Any], tmp_path: Any) -> None:
    """The error of a bad file ends up in terminals and logs."""
    lines = [f"{name} = {_toml(value)}" for name, value in (ROLLOUTS | wrong).items()]
    path = tmp_path / "run.toml"
    text = "[model]\npath = 'm'\n[[environments]]\nname = 'reverse-text'\n[teacher.rollouts]\n" + "\n".join(lines)
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(RLConfig, path)
    assert SECRET not in f"{caught.value}{caught.value.__cause__}"
    assert "api_key_env" in str(caught.value)


def _toml(value: Any) -> str:
    return "{" + ", ".join(f'{k} = "{v}"' for k, v in value.items()) + "}" if isinstance(value, dict) else f'"{value}"'


def test_the_key_is_read_from_the_environment_of_the_orchestrator(monkeypatch: pytest.MonkeyPatch) -> None:
    section = TeacherRolloutsSection(**ROLLOUTS, api_key_env="A_TEACHERS_KEY")
    assert read_api_key(section, {"A_TEACHERS_KEY": f" {SECRET}\n"}) == SECRET
    assert read_api_key(TeacherRolloutsSection(**ROLLOUTS), {}) is None
    for environment in ({}, {"A_TEACHERS_KEY": " "}, {"A_TEACHERS_KEY": "a\nb"}):
        with pytest.raises(ConfigError, match="A_TEACHERS_KEY holds no API key"):
            read_api_key(section, environment)
    made = config(teacher={"rollouts": ROLLOUTS | {"api_key_env": "A_TEACHERS_KEY"}})
    monkeypatch.delenv("A_TEACHERS_KEY", raising=False)
    with pytest.raises(ConfigError, match="A_TEACHERS_KEY"):
        check_secrets(made)
    monkeypatch.setenv("A_TEACHERS_KEY", SECRET)
    check_secrets(made)


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ('renderer = "qwen3"', "[model] renderer"),
        ("use_renderer = true", "[model] use_renderer"),
        ('tool_parser = "hermes"', "[model] tool_parser"),
        ("[model.renderer]\nname = 'qwen3'", "[model] renderer"),
        ("[model.renderer_options]\nenable_thinking = false", "[model] renderer_options"),
    ],
)
def test_renderer_settings_under_model_are_sent_to_their_place(section: str, place: str, tmp_path: Any) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"[model]\npath = 'm'\n{section}\n[[environments]]\nname = 'reverse-text'\n")
    with pytest.raises(ConfigError, match="how it is spoken to") as caught:
        load_config(RLConfig, path)
    assert place in caught.value.where
    assert "write " in caught.value.next_step


@pytest.mark.parametrize(
    ("settings", "mode"),
    [({"client_mode": "chat"}, "chat"), ({"use_token_client": True}, "token"), ({"use_renderer": False}, "chat")],
)
def test_a_model_that_takes_images_is_spoken_to_in_messages(settings: dict[str, Any], mode: str, tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"vision_config": {"depth": 1}}')
    model = {"path": str(tmp_path)}
    assert client_mode(config(model=model, **settings)) == mode
    for refused in ({}, {"use_renderer": True}, {"client_mode": "renderer"}):
        with pytest.raises(ConfigError, match="vision-language"):
            check_names(config(model=model, **refused))
