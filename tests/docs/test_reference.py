"""docs/reference and the README's plugin list say what the installed plugins really offer."""

from __future__ import annotations

import sys

import pytest
from fixtures.environments import ROOT


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """What the generator would write, by path."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import generate
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return {str(path.relative_to(ROOT)): text for path, text in generate.pages().items()}


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        *(f"docs/reference/{page}.md" for page in ("hooks", "commands", "config", "options", "api", "routes")),
    ],
)
def test_the_page_is_current(pages: dict[str, str], name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == pages[name], f"{name} is not current; run: make docs"


def test_no_generated_page_is_left_over(pages: dict[str, str]) -> None:
    written = {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "reference").glob("*.md")}
    assert written == {name for name in pages if name.startswith("docs/reference/")}


def test_every_hook_is_documented_with_its_signature_and_record(pages: dict[str, str]) -> None:
    text = pages["docs/reference/hooks.md"]
    assert "prl_renderers() -> Iterable[RendererEntry]" in text
    assert "| `control_tokens` | `tuple[str, ...]` | `()` |" in text
    assert text.count("\n## prl_") == 13


def test_every_option_of_a_renderer_is_in_the_reference(pages: dict[str, str]) -> None:
    _, _, section = pages["docs/reference/options.md"].partition("### renderer `qwen3.6`")
    section = section.partition("\n### ")[0]
    names = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert names == ["content_tokens", "thinking_retention", "enable_thinking", "add_vision_id", "preserve_thinking"]


def test_every_route_of_the_engine_is_in_the_reference_with_its_fields(pages: dict[str, str]) -> None:
    text = pages["docs/reference/routes.md"]
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        "POST /v1/generate",
        "POST /v1/chat/completions",
        "POST /v1/chat/completions/tokens",
        "POST /tokenize",
        "POST /v1/weights",
        "POST /v1/weights/offer",
        "POST /v1/weights/receive",
        "GET /health",
        "GET /v1/models",
        "Errors",
    ]
    assert (
        "| `prompt_token_ids` | `list[integer]` | required | The prompt, as the exact ids the model is to see. |"
        in text
    )
    assert "| `choices[].logprobs` | `list[number]` | required |" in text
