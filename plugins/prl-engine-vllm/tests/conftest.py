"""Interpreters with vLLM, tiny models, and real vLLM servers that many tests share."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fixtures.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
CONTEXT = 512
START_SECONDS = 240.0
# No compiler needed, no look at the hub, and one core for each of the server's three processes.
QUIET = {"TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
SERVE = ("--dtype", "float32", "--enforce-eager", "true", "--cpu-cache-gib", "1", "--max-model-len", str(CONTEXT))


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter that has vLLM: $PRL_VLLM_PYTHON, else .venv-vllm of the checkout."""
    python = os.environ.get("PRL_VLLM_PYTHON") or str(ROOT / ".venv-vllm" / "bin" / "python")
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
    try:
        found = subprocess.run([python, "-c", look], check=False, timeout=60).returncode == 0
    except OSError:
        found = False
    if not found:
        pytest.skip(f"{python} cannot import vllm: run `make vllm-env`, or set PRL_VLLM_PYTHON")
    return python


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def save_model(folder: Path, *, seed: int, vocabulary: int, experts: int = 0, **changes: Any) -> Path:
    """Save a random Qwen3 (or its mixture of experts) whose distributions are far from uniform."""
    import torch
    import transformers

    torch.manual_seed(seed)
    fields: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if experts:
        fields |= {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    name = "Qwen3Moe" if experts else "Qwen3"
    config = getattr(transformers, f"{name}Config")(**fields | changes)
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(folder)
    return folder


def plain_model(folder: Path) -> Any:
    """Load a model with transformers alone: the oracle."""
    import torch
    from transformers import AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM
    return factory.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def plain_logprobs(model: Any, ids: Sequence[int], temperature: float = 1.0) -> list[float]:
    """Return log p(ids[i] | ids[:i]) for i >= 1, from one uncached forward pass."""
    import torch

    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, :-1].float() / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()


@pytest.fixture(scope="session")
def logprobs_of() -> Callable[..., list[float]]:
    return plain_logprobs


@pytest.fixture(scope="session")
def oracle() -> Callable[[Path], Any]:
    return plain_model


@pytest.fixture(scope="session")
def new_model() -> Callable[..., Path]:
    return save_model


@pytest.fixture(scope="session")
def qwen_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two tiny Qwen3 models with tied embeddings, the real Qwen3 vocabulary and its chat template."""
    from fixtures.real_tokenizers import tokenizer_directory
    from fixtures.templates import trl_template

    folder = tmp_path_factory.mktemp("qwen")
    made = []
    for seed in (0, 1):
        model = save_model(folder / f"model{seed}", seed=seed, vocabulary=151_936)
        for file in tokenizer_directory("qwen3").iterdir():
            shutil.copy(file, model)
        (model / "chat_template.jinja").write_text(trl_template("qwen3"), encoding="utf-8")
        made.append(model)
    return made[0], made[1]


@pytest.fixture(scope="session")
def moe_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two tiny mixtures of experts, without a tokenizer."""
    folder = tmp_path_factory.mktemp("moe")
    first, second = (save_model(folder / f"moe{i}", seed=i, vocabulary=1024, experts=4) for i in (0, 1))
    return first, second


class Server:
    """`prl serve --engine vllm` as a user runs it, on a free port; ended by its process id."""

    def __init__(self, python: str, folder: Path, model: Path, *words: str) -> None:
        self.model = model
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "serve.log"
        command = [python, "-m", "prl.cli.main", "serve", "--engine", "vllm", "--model", str(model)]
        command += ["--served-model-name", "tiny", "--port", str(self.port), *SERVE, *words]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **QUIET})

    def wait(self) -> None:
        """Wait until it says that it serves; fail with its log where it ends instead."""
        deadline = time.monotonic() + START_SECONDS
        while f"serving 'tiny' at {self.url}" not in self.said():
            assert self.process.poll() is None, self.said()[-6000:]
            assert time.monotonic() < deadline, self.said()[-6000:]
            time.sleep(0.25)

    def said(self) -> str:
        """Return what it wrote so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> int:
        """End it as a terminal would; return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture(scope="session")
def serve(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Start servers; the session ends them."""
    servers: list[Server] = []

    def start(model: Path, *words: str) -> Server:
        servers.append(Server(vllm_python, tmp_path_factory.mktemp("server"), model, *words))
        servers[-1].wait()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def qwen_server(serve: Callable[..., Server], qwen_models: tuple[Path, Path]) -> Server:
    """The first Qwen3 model, with chat, tools and vLLM's own route for ids."""
    words = "args=['--enable-auto-tool-choice', '--tool-call-parser', 'hermes', '--enable-scale-out']"
    return serve(qwen_models[0], words)


@pytest.fixture(scope="module")
def moe_server(
    serve: Callable[..., Server], moe_models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A copy of the first mixture of experts, without a tokenizer, so without vLLM's own check of ids.

    Each file has one of its own: one of them kills it.
    """
    model = tmp_path_factory.mktemp("served") / "moe"
    shutil.copytree(moe_models[0], model)
    server = serve(model, "args=['--skip-tokenizer-init']")
    yield server
    server.stop()
