"""`prl render` and `prl parse`: a conversation to ids, and ids to a message."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from prl.testing.fake_dist import renderer_plugin, write_fake_dist

Run = Callable[..., subprocess.CompletedProcess[str]]

RENDERER = """
from prl.types import Kind, ParsedResponse, RenderedTokens, Span

class Toy:
    def __init__(self, tokenizer, options):
        self.tokenizer, self.options = tokenizer, options

    def render(self, messages, *, tools=None, add_generation_prompt=False):
        ids, spans = [], []
        for index, message in enumerate(messages):
            kind = Kind.SAMPLED | Kind.CONTENT if message["role"] == "assistant" else Kind.CONTENT
            new = self.tokenizer.encode(message["content"])
            spans.append(Span(len(ids), len(ids) + len(new), index, kind))
            ids += new
        return RenderedTokens(ids, spans, tuple(m["role"] for m in messages))

    def parse_response(self, completion_ids, *, tools=None, prompt_ids=None):
        return ParsedResponse(self.tokenizer.decode(completion_ids))

create = Toy
"""
MESSAGES = [{"role": "user", "content": "red fish"}, {"role": "assistant", "content": "blue"}]


@pytest.fixture
def tokenizer(tmp_path: Path, site: Path) -> str:
    write_fake_dist(site, "toys", renderer_plugin("toy", target="toy_heavy:create"))
    (site / "toy_heavy.py").write_text(RENDERER)
    vocabulary = {"red": 0, "Ġfish": 1, "blue": 2, "?": 3}
    for character in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary.setdefault(character, len(vocabulary))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    tokenizer.save(str(directory / "tokenizer.json"))
    return str(directory)


def test_render_prints_ids_pieces_and_json(prl: Run, tokenizer: str) -> None:
    """The ids that a renderer gives can only be seen from Python."""
    common = ("--tokenizer", tokenizer, "--renderer", "toy")
    done = prl("render", *common, stdin=json.dumps(MESSAGES), PRL_PLUGINS="toys")
    assert (done.returncode, done.stdout) == (0, "0 1 2\n"), done.stderr
    done = prl("render", *common, "--format", "json", stdin=json.dumps({"messages": MESSAGES}), PRL_PLUGINS="toys")
    assert json.loads(done.stdout)["spans"] == [[0, 2, 0, 1], [2, 3, 1, 3]]
    done = prl("render", "-", *common, "--format", "pieces", stdin=json.dumps(MESSAGES), PRL_PLUGINS="toys")
    assert [line.split("\t")[:3] for line in done.stdout.splitlines()] == [
        ["0-2", "0:user", "CONTENT"],
        ["2-3", "1:assistant", "CONTENT|SAMPLED"],
    ]


def test_the_model_alone_names_the_tokenizer(prl: Run, tokenizer: str) -> None:
    """`prl audit` and `prl view` take it so; one of four that does not is a stumbling block."""
    arguments = ("render", "--renderer", "toy")
    done = prl(*arguments, "--model", tokenizer, stdin="\ufeff" + json.dumps(MESSAGES), PRL_PLUGINS="toys")
    assert (done.returncode, done.stdout) == (0, "0 1 2\n"), "a byte order mark before the JSON is no fault either"
    done = prl(*arguments, stdin=json.dumps(MESSAGES), PRL_PLUGINS="toys")
    assert (done.returncode, "no tokenizer is named" in done.stderr) == (1, True)
    done = prl("config", "show", PRL_PLUGINS="toys")
    assert (done.returncode, "COMMAND is missing" in done.stderr) == (2, True)


def test_parse_prints_the_message(prl: Run, tokenizer: str) -> None:
    """Ids of a rollout cannot be read back by hand."""
    done = prl("parse", "--tokenizer", tokenizer, "--renderer", "toy", stdin="[2, 2]", PRL_PLUGINS="toys")
    assert json.loads(done.stdout)["message"]["role"] == "assistant", done.stderr
    assert "blue" in json.loads(done.stdout)["message"]["content"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "text"),
    [
        (["render", "--renderer", "toy"], "[{", "the input is not JSON"),
        (["render", "--renderer", "toy"], '{"x": 1}', "the input holds no array of messages"),
        (["render", "absent.json", "--renderer", "toy"], "", "the input cannot be read"),
        (["render", "--renderer", "toi"], "[]", "no renderer is named 'toi'\n  next:  Did you mean 'toy'?"),
        (["render"], "[]", 'renderer = "auto" matches no renderer'),
        (["render", "--renderer", "toy", "-o", "level=1"], "[]", "unknown key 'level'"),
        (["parse", "--renderer", "toy"], "1 two", "the input holds something that is no token id"),
    ],
)
def test_bad_input_is_told(prl: Run, tokenizer: str, arguments: list[str], stdin: str, text: str) -> None:
    """A wrong file ends in a traceback."""
    done = prl(*arguments, "--tokenizer", tokenizer, stdin=stdin, PRL_PLUGINS="toys")
    assert done.returncode == 1
    assert text in done.stderr
    assert "Traceback" not in done.stderr
