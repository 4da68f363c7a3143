"""renderer = "auto": exact model id, then the chat template's sum, then an error. Never a prefix, never a guess."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from prl.plugin import RendererMismatchWarning, known, resolve_renderer, template_sha256
from prl.testing.fake_dist import write_fake_dist
from prl.types import PluginError

FAMILIES = {
    "qwen3": ("Qwen/Qwen3-8B", "qwen3 template"),
    "qwen3.5": ("Qwen/Qwen3.5-9B", "qwen3.5 template"),
    "qwen3.6": ("Qwen/Qwen3.6-35B-A3B", "qwen3.6 template"),
    "qwen3-vl": ("Qwen/Qwen3-VL-8B-Instruct", "qwen3-vl template"),
    "qwen3-instruct-2507": ("Qwen/Qwen3-4B-Instruct-2507", "2507 template\nline two"),
    "kimi-k2": ("moonshotai/Kimi-K2-Instruct", "kimi template"),
    "kimi-k2.5": ("moonshotai/Kimi-K2.5", "kimi 2.5 template"),
    "kimi-k2.6": ("moonshotai/Kimi-K2.6", "kimi 2.6 template"),
    "glm-4.5": ("zai-org/GLM-4.5-Air", "glm 4.5 template"),
    "glm-5": ("zai-org/GLM-5", "glm 5 template"),
    "glm-5.1": ("zai-org/GLM-5.1", "glm 5.1 template"),
}


def entries(families: dict[str, tuple[str, str]]) -> str:
    lines = [
        f"RendererEntry(name={name!r}, target='m:f', models=({model!r},), templates=({template_sha256(text)!r},)),"
        for name, (model, text) in families.items()
    ]
    return (
        "from prl.plugin import RendererEntry, hookimpl\n@hookimpl\ndef prl_renderers():\n    return ["
        + "\n".join(lines)
        + "]\n"
    )


@pytest.fixture(autouse=True)
def _families(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fake_dist(site, "families", entries(FAMILIES))
    monkeypatch.setenv("PRL_PLUGINS", "families")
    monkeypatch.setattr(known, "known_table", dict)


@pytest.mark.parametrize(("name", "model"), [(name, model) for name, (model, _) in FAMILIES.items()])
def test_exact_model_ids_resolve(name: str, model: str) -> None:
    """Qwen3.5 is rendered with Qwen3's template because its name contains 'Qwen3'."""
    assert resolve_renderer("auto", model=model).name == name


@pytest.mark.parametrize(
    "model",
    [
        "/data/runs/my-qwen3-sft",
        "acme/qwen3-remix",
        "Qwen/Qwen3",
        "Qwen/Qwen3-8B-Base",
        "qwen/qwen3-8b",
        "Qwen3-8B",
        "",
    ],
)
def test_other_names_are_an_error_never_a_default(model: str) -> None:
    """An unknown path quietly gets some renderer, and the run trains on the wrong format."""
    with pytest.raises(PluginError) as caught:
        resolve_renderer("auto", model=model)
    assert caught.value.what == 'renderer = "auto" matches no renderer'
    assert 'renderer = "NAME"' in caught.value.next_step


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, (_, text) in FAMILIES.items()])
def test_a_known_chat_template_resolves_a_fine_tune(name: str, text: str) -> None:
    """A fine-tune in a local folder that kept its base model's template cannot be used without a name."""
    assert resolve_renderer("auto", model="/data/runs/my-sft", chat_template=text).name == name
    assert resolve_renderer("auto", chat_template=text.replace("\n", "\r\n")).name == name


def test_an_edited_template_is_not_taken_for_the_known_one() -> None:
    """One changed character in a template, and the renderer no longer equals it."""
    with pytest.raises(PluginError) as caught:
        resolve_renderer("auto", model="x", chat_template="qwen3 template ")
    assert f"chat template sha256 {template_sha256('qwen3 template ')}" in caught.value.where


def test_the_model_id_wins_and_a_different_template_is_a_warning() -> None:
    """A checkpoint whose template was edited is rendered by its name without a word."""
    with pytest.warns(RendererMismatchWarning, match="model 'Qwen/Qwen3-8B' means renderer 'qwen3'") as seen:
        assert resolve_renderer("auto", model="Qwen/Qwen3-8B", chat_template="glm 5 template").name == "qwen3"
    assert "it is the template of renderer 'glm-5'" in str(seen[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve_renderer("auto", model="Qwen/Qwen3-8B", chat_template="qwen3 template")
        resolve_renderer("qwen3", model="Qwen/Qwen3-8B", chat_template="glm 5 template")


def test_a_name_is_taken_as_it_is() -> None:
    """A chosen name is second-guessed by the model id."""
    assert resolve_renderer("glm-5", model="Qwen/Qwen3-8B").name == "glm-5"
    with pytest.raises(PluginError, match="no renderer is named 'qwen-3'"):
        resolve_renderer("qwen-3")


def test_a_known_model_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user must search for the distribution of a first-party family."""
    facts = {"models": ["acme/hyena-7b"], "templates": [template_sha256("mm")]}
    monkeypatch.setattr(known, "known_table", lambda: {"prl-renderer-hyena": {"renderer": {"hyena": facts}}})
    for given in ({"model": "acme/hyena-7b"}, {"model": "/data/mine", "chat_template": "mm"}):
        with pytest.raises(PluginError) as caught:
            resolve_renderer("auto", **given)
        assert "Try: pip install prl-renderer-hyena" in caught.value.next_step


def test_a_known_model_of_a_broken_plugin_says_what_broke(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told to install a plugin that is installed and failed."""
    facts = {"models": ["MiniMaxAI/MiniMax-M2"]}
    monkeypatch.setattr(known, "known_table", lambda: {"prl-renderer-minimax": {"renderer": {"minimax-m2": facts}}})
    write_fake_dist(site, "prl-renderer-minimax", "raise OSError('no lib')")
    monkeypatch.setenv("PRL_PLUGINS", "families,prl-renderer-minimax")
    with pytest.raises(
        PluginError, match=r"belongs to prl-renderer-minimax 1\.0, which is installed but was not loaded"
    ):
        resolve_renderer("auto", model="MiniMaxAI/MiniMax-M2")


def test_two_renderers_claiming_one_model_is_an_error(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which renderer a model gets depends on the order of installation."""
    write_fake_dist(site, "rival", entries({"my-qwen": ("Qwen/Qwen3-8B", "other")}))
    monkeypatch.setenv("PRL_PLUGINS", "families,rival")
    with pytest.raises(PluginError) as caught:
        resolve_renderer("auto", model="Qwen/Qwen3-8B")
    assert caught.value.what == "2 renderers claim model id 'Qwen/Qwen3-8B'"
    assert caught.value.next_step == 'Choose one by name: renderer = "my-qwen" or renderer = "qwen3"'
