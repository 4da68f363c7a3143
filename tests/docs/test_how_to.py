"""The how-to pages work: their commands print what they say, their files do what they promise."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.documents import Block, Reader, blocks, titled
from fixtures.environments import ROOT, linked_environment, workspace_distributions
from fixtures.ports import free_port

from prl.config import PluginsConfig
from prl.plugin import RendererEntry, configure_registry, get_registry, reset_registry
from prl.testing.fake_dist import active_site, renderer_plugin, write_fake_dist

HOW_TO = ROOT / "docs" / "how-to"
CHOOSE = HOW_TO / "choose-between-plugins.md"
ENVIRONMENT = HOW_TO / "train-on-your-environment.md"
SERVE = HOW_TO / "serve-and-generate.md"
CLIENT_MODE = HOW_TO / "add-a-client-mode.md"
ENGINE = HOW_TO / "add-an-engine.md"
VLLM = HOW_TO / "serve-with-vllm.md"
FIRST_PARTY = tuple(name for name in workspace_distributions() if name != "prl-renderer-echo")


def reader(tmp_path: Path, *keep: str) -> Reader:
    home = tmp_path / "home"
    home.mkdir()
    return Reader(linked_environment(tmp_path / "environment", keep), home)


def write_rival(site: Path) -> None:
    write_fake_dist(site, "acme-renderers", renderer_plugin("qwen3", "acme"), version="1.2")


def test_a_conflict_is_shown_as_the_page_says(tmp_path: Path) -> None:
    following = reader(tmp_path, "prl-core", "prl-renderer-qwen")
    [site] = following.environment.folder.glob("lib/python*/site-packages")
    write_rival(site)
    assert following.follow(CHOOSE) == 2


def test_prefer_settles_a_conflict(tmp_path: Path) -> None:
    section = tomllib.loads(titled(CHOOSE)["prefer.toml"])["plugins"]
    with active_site(tmp_path / "site") as site:
        write_rival(site)
        configure_registry(PluginsConfig(**section).settings({}))
        assert get_registry().provider(get_registry().find("renderer", "qwen3")).dist == "acme-renderers"


def test_the_pages_python_settles_it_too(tmp_path: Path) -> None:
    [code] = [block.text for block in blocks(CHOOSE) if block.language == "python"]
    with active_site(tmp_path / "site") as site:
        write_rival(site)
        exec(code, {})
        assert get_registry().provider(get_registry().find("renderer", "qwen3")).dist == "acme-renderers"
    reset_registry()


def test_an_environment_of_ones_own_is_offered(tmp_path: Path) -> None:
    assert reader(tmp_path, *FIRST_PARTY).follow(ENVIRONMENT) == 5


@pytest.mark.heavy
def test_an_environment_of_ones_own_trains(tmp_path: Path) -> None:
    following = reader(tmp_path, *FIRST_PARTY)
    following.follow(ENVIRONMENT)
    command = "prl rl -c run.toml orchestrator.steps=2 orchestrator.group_size=4 warmup.steps=60"
    done = following.environment.run(command, following.folder)
    assert done.returncode == 0, done.stdout
    assert "after 2 steps" in done.stdout
    assert (following.folder / "runs" / "sums" / "report.html").is_file()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model in the transformers layout, with its tokenizer."""
    from prl_train.models import create_tiny_qwen3, train_small_tokenizer

    controls = get_registry().find(RendererEntry, "qwen3").control_tokens
    tokenizer = train_small_tokenizer(["Hello there, how are you?"] * 4, controls, 320)
    return create_tiny_qwen3(
        tmp_path_factory.mktemp("model"), tokenizer.to_str(), hidden_size=32, layers=1, heads=2, intermediate=64
    )


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    """host:port of a server started with the page's command."""
    port = free_port()
    [command] = [block.text.strip() for block in blocks(SERVE) if block.language == "console"]
    words = command.removeprefix("$ prl ").replace("DIRECTORY", str(model)).replace("8000", str(port)).split()
    server = subprocess.Popen([sys.executable, "-m", "prl.cli.main", *words])
    try:
        wait_until_healthy(f"127.0.0.1:{port}", server)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=60)


def wait_until_healthy(address: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert server.poll() is None, "the server ended"
        try:
            if request(address, "GET", "/health")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError("the server did not become healthy")


def request(address: str, method: str, path: str, body: str | None = None) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.heavy
def test_the_pages_script_generates(model: Path, address: str, tmp_path: Path) -> None:
    script = tmp_path / "generate.py"
    script.write_text(titled(SERVE)["generate.py"], encoding="utf-8")
    words = [sys.executable, str(script), f"http://{address}", str(model)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    reason, ids, logprobs, version = done.stdout.split("\n")[0].split()
    assert reason in ("stop", "length")
    assert ids == logprobs
    assert version == "-1", "nobody published the weights that the engine was started with"
    assert "'role': 'assistant'" in done.stdout


@pytest.mark.heavy
def test_the_curl_request_answers_with_the_fields_the_page_lists(model: Path, address: str) -> None:
    text = SERVE.read_text(encoding="utf-8")
    [body] = re.findall(r"v1/generate .*-d '\n(\{.*?\})'", text)
    status, answer = request(address, "POST", "/v1/generate", body.replace("DIRECTORY", str(model)))
    assert status == 200
    [choices] = [answer["choices"]]
    assert isinstance(choices, list)
    assert [len(choice["token_ids"]) for choice in choices] == [4, 4]
    fields = {name.partition(".")[0].rstrip("[]") for name in re.findall(r"^\| `([\w\[\].]+)`", text, re.MULTILINE)}
    assert fields <= answer.keys()


@pytest.mark.heavy
def test_the_curl_request_for_weights_is_well_formed(address: str) -> None:
    [body] = re.findall(r"v1/weights .*-d '\n(\{.*?\})'", SERVE.read_text(encoding="utf-8"))
    status, answer = request(address, "POST", "/v1/weights", body)
    assert status == 400, "the page's directory does not exist; anything but a refusal would be wrong"
    assert request(address, "GET", "/health")[0] == 200
    assert "error" in answer


def test_a_client_mode_of_ones_own_is_offered_and_talks(tmp_path: Path) -> None:
    assert reader(tmp_path, *FIRST_PARTY).follow(CLIENT_MODE) == 5


def test_an_engine_of_ones_own_is_offered_and_answers(tmp_path: Path) -> None:
    assert reader(tmp_path, *FIRST_PARTY).follow(ENGINE) == 5


def test_an_engine_of_ones_own_is_served_by_prl(tmp_path: Path) -> None:
    """The page's command, and a client of prl's on the other end."""
    import asyncio

    from prl.client import HttpEngineClient
    from prl.types import GenerateRequest, PromptTooLongError

    following = reader(tmp_path, *FIRST_PARTY)
    following.follow(ENGINE)
    port = free_port()
    words = ["serve", "--engine", "counting", "--port", str(port), "--max-model-len", "8"]
    server = subprocess.Popen([following.environment.bin / "python", following.environment.bin / "prl", *words])

    async def count() -> None:
        client = HttpEngineClient(f"http://127.0.0.1:{port}")
        try:
            answer = await client.generate(GenerateRequest(model="counting", prompt_token_ids=[1, 2]))
            assert answer.choices[0].token_ids == [3, 4, 5, 6, 7, 8]
            await client.load_weights("/anywhere", 4)
            with pytest.raises(PromptTooLongError):
                await client.generate(GenerateRequest(model="counting", prompt_token_ids=[1] * 8))
        finally:
            await client.close()

    try:
        wait_until_healthy(f"127.0.0.1:{port}", server)
        asyncio.run(count())
    finally:
        server.terminate()
        server.wait(timeout=60)


@pytest.mark.parametrize(
    "block", [one for one in blocks(VLLM) if one.language == "toml"], ids=lambda one: one.facts["run"]
)
def test_every_config_of_the_vllm_page_is_accepted(block: Block) -> None:
    """Keys of [engine] are checked by the run's model, those of [engine.options] by the engine's own."""
    from prl.plugin import EngineEntry, build_options
    from prl_train.config import RLConfig
    from prl_train.launch.engines import make_pool

    rest = {"model": {"path": "m"}, "environments": [{"name": "reverse-text"}]}
    config = RLConfig.model_validate(tomllib.loads(block.text) | rest)
    if config.engine.is_embedded:
        record = get_registry().find(EngineEntry, config.engine.kind)
        build_options(record, {"model": "m", **config.engine.options}, where="the page")
    else:
        assert make_pool(config.engine).status() == []


def test_the_vllm_pages_command_has_the_engines_options() -> None:
    from prl.plugin import EngineEntry
    from prl.plugin.loader import import_value

    [command] = re.findall(r"^\$ prl (serve .*)$", VLLM.read_text(encoding="utf-8"), re.MULTILINE)
    options = import_value(get_registry().find(EngineEntry, "vllm").options)
    assert set(re.findall(r"--(\w+)", command)) - {"engine"} <= set(options.model_fields)
