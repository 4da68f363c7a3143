"""Getting a tokenizer: files, hub ids, the caller's own objects, and errors that say what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from prl.tokenizer import as_tokenizer, load_tokenizer
from prl.types import TokenizerError

CONTROL = ["<s>", "<|end|>"]


def byte_level(*, added: list[str] = CONTROL) -> Tokenizer:
    """Build a byte-level tokenizer with two merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: place for place, char in enumerate([*alphabet, "he", "hel"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("h", "e"), ("he", "l")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in added])
    return tokenizer


def saved(folder: Path, config: dict[str, Any] | None = None, tokenizer: Tokenizer | None = None) -> Path:
    (tokenizer or byte_level()).save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def test_a_directory_gives_tokenizer_template_and_named_tokens(tmp_path: Path) -> None:
    """Auto resolution needs the template and the path; a list of named templates keeps all of them."""
    templates = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    config = {"chat_template": templates, "bos_token": "<s>", "eos_token": {"content": "<|end|>", "lstrip": False}}
    tokenizer = load_tokenizer(saved(tmp_path, config))
    assert tokenizer.chat_template == "D"
    assert tokenizer.chat_templates == {"default": "D", "tool_use": "T"}
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "<|end|>")
    assert tokenizer.name_or_path == str(tmp_path)
    assert tokenizer.encode("hello<|end|>") == load_tokenizer(tmp_path / "tokenizer.json").encode("hello<|end|>")


def test_a_template_file_wins_over_the_config(tmp_path: Path) -> None:
    """Newer repositories keep the template in a file of its own; a stale copy in the config must not win."""
    saved(tmp_path, {"chat_template": "old"})
    (tmp_path / "chat_template.jinja").write_text("new", encoding="utf-8")
    assert load_tokenizer(tmp_path).chat_template == "new"


def test_bos_truncation_and_padding_never_reach_the_ids(tmp_path: Path) -> None:
    """A saved tokenizer may add BOS, cut or fill; renderers own all of that."""
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 258)])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    ours = as_tokenizer(tokenizer)
    assert ours.decode(ours.encode("hello")) == "hello"
    assert ours.encode("hello")[0] == ours.token_id("hel")
    assert tokenizer.truncation["max_length"] == 2, "the caller's object was changed"
    assert load_tokenizer(saved(tmp_path, None, tokenizer)).encode("hello") == ours.encode("hello")


def test_the_callers_later_changes_do_not_leak_in() -> None:
    """The copy is private: adding a token to the original must not move ids under a running renderer."""
    tokenizer = byte_level()
    ours = as_tokenizer(tokenizer)
    before = ours.encode("hello<x>")
    tokenizer.add_special_tokens(["<x>"])
    assert ours.encode("hello<x>") == before
    assert "<x>" not in ours.added_tokens


def test_control_names_inside_the_models_own_vocabulary_are_unreachable_as_text() -> None:
    """Some vendors keep `</s>` in the model's vocabulary too; whole-piece matching would still find it."""
    tokenizer = byte_level(added=[])
    data = json.loads(tokenizer.to_str())
    data["pre_tokenizer"]["use_regex"] = False
    data["model"]["ignore_merges"] = True
    data["model"]["vocab"]["</s>"] = 258
    data["added_tokens"] = [
        {"id": 258, "content": "</s>", "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    ]
    ours = as_tokenizer(Tokenizer.from_str(json.dumps(data)))
    assert ours.encode("</s>") == [258]
    assert 258 not in ours.encode_ordinary("</s>")
    assert ours.decode(ours.encode_ordinary("</s>")) == "</s>"


def test_a_sentencepiece_style_tokenizer_decodes_as_its_own_decoder_does() -> None:
    """Where bytes do not simply join, the vendor's decoder has the word."""
    vocab = {"<unk>": 0, "▁hi": 1, "▁you": 2, "<0x0A>": 3}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    ours = as_tokenizer(tokenizer)
    assert ours.decode([1, 2, 3]) == "hi you\n"
    assert ours.token_bytes[1:4] == [b" hi", b" you", b"\n"]


def test_tiktoken_encodings_are_wrapped() -> None:
    """Kimi and GPT-OSS users hold one of these."""
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"he": 256, b"hel": 257}
    encoding = tiktoken.Encoding(
        "tiny", pat_str=r"\w+|\W", mergeable_ranks=ranks, special_tokens={"<a>": 260, "<ab>": 258}
    )
    ours = as_tokenizer(encoding)
    assert ours.encode("hello<ab>é") == [257, 108, 111, 258, 195, 169]
    assert ours.encode_ordinary("<a>") == [60, 97, 62]
    assert ours.vocab_size == 261
    assert ours.token_bytes[258:] == [b"<ab>", b"", b"<a>"]
    assert ours.encode_with_offsets("é<a>") == ([195, 169, 260], [(0, 1), (0, 1), (1, 4)])
    assert ours.token_id("hel") == 257
    with pytest.raises(TokenizerError, match="surrogate"):
        ours.encode_ordinary("\ud83e")


def test_a_callers_own_object_needs_four_members() -> None:
    """The small protocol is enough for every renderer."""

    class Own:
        special_tokens: ClassVar[dict[str, int]] = {"<|end|>": 256}
        vocab_size = 258

        def encode_ordinary(self, text: str) -> list[int]:
            return list(text.encode())

        def token_bytes(self, token_id: int) -> bytes:
            if token_id > 256:
                raise KeyError(token_id)
            return bytes([token_id]) if token_id < 256 else b"<|end|>"

    ours = as_tokenizer(Own())
    assert ours.encode("ab<|end|>") == [97, 98, 256]
    assert ours.decode([97, 256]) == "a<|end|>"
    assert ours.vocab_size == 258
    assert ours.backend_name == "own"
    assert as_tokenizer(ours) is ours
    assert "no tokenizer.json" in ours.warm_up().backend_report


def test_a_transformers_fast_tokenizer_is_wrapped(qwen3_directory: Path) -> None:
    """Its template and named tokens come along."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(qwen3_directory)
    theirs.chat_template = "X"
    ours = as_tokenizer(theirs)
    assert ours.chat_template == "X"
    assert ours.eos_token == "<|im_end|>"
    text = "<|im_start|>user\ncafé<think>"
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_something_else_is_refused_with_what_would_do() -> None:
    """A slow tokenizer or a path in the wrong place."""
    with pytest.raises(TokenizerError, match=r"builtins\.int") as caught:
        as_tokenizer(3)
    assert "encode_ordinary(text)" in caught.value.next_step


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./missing", "missing/tokenizer.json", "a/b/c"])
def test_a_missing_path_is_not_taken_for_a_hub_id(name: str) -> None:
    """A typing error must not become a download."""
    with pytest.raises(TokenizerError, match="no tokenizer at") as caught:
        load_tokenizer(name)
    assert "tokenizer.json" in caught.value.next_step


def test_a_directory_without_tokenizer_json_says_what_it_has(tmp_path: Path) -> None:
    """Model folders with tiktoken.model or tokenizer.model need another step first."""
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tiktoken.model").touch()
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(tmp_path)
    assert "tiktoken.Encoding" in caught.value.next_step


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"model": {"type": "Nope"}}', "\x00"])
def test_a_broken_tokenizer_json_is_named(tmp_path: Path, text: str) -> None:
    """A cut download."""
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_a_broken_config_is_named(tmp_path: Path) -> None:
    """Silence here would lose the chat template."""
    (saved(tmp_path) / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        load_tokenizer(tmp_path)


def test_an_unknown_backend_lists_the_known(tmp_path: Path) -> None:
    """A typing error in a config."""
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(saved(tmp_path), backend="rust")
    assert "auto, fast, hf" in caught.value.next_step


def test_a_hub_id_without_the_extra_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """prl-core alone reads local files only."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer("Qwen/Qwen3-0.6B")
    assert "pip install 'prl-core[hub]'" in caught.value.next_step


def test_a_hub_that_cannot_be_reached_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback of an HTTP library."""
    hub = pytest.importorskip("huggingface_hub")

    def fail(*_: object, **__: object) -> str:
        raise OSError("Name or service not known")

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(TokenizerError, match="Name or service not known"):
        load_tokenizer("Qwen/Qwen3-0.6B", revision="abc")


def test_a_hub_id_loads_what_the_hub_returns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The revision reaches the hub, weights do not reach the disk, and the name stays the hub id."""
    hub = pytest.importorskip("huggingface_hub")
    seen: dict[str, Any] = {}

    def download(repo: str, **options: Any) -> str:
        seen.update(options, repo=repo)
        return str(saved(tmp_path))

    monkeypatch.setattr(hub, "snapshot_download", download)
    tokenizer = load_tokenizer("Qwen/Qwen3-0.6B", revision="abc")
    assert tokenizer.name_or_path == "Qwen/Qwen3-0.6B"
    assert (seen["repo"], seen["revision"]) == ("Qwen/Qwen3-0.6B", "abc")
    assert not any(pattern.endswith("safetensors") for pattern in seen["allow_patterns"])


def test_importing_the_room_is_light() -> None:
    """`prl --help` must not load tokenizers, transformers or torch."""
    heavy = ("tokenizers", "transformers", "torch", "tiktoken")
    code = f"import prl.tokenizer, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
