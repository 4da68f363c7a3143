"""Learning from other models with real parts: what they say, and how likely they find what ours says."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from engines.local import CONTEXT, local_server, make_model

from prl import load_tokenizer
from prl.client.pool import EnginePool, FixedAddresses
from prl.types import ConfigError, GenerateRequest, SamplingParams
from prl_train.launch.processes import run_everything
from prl_train.run import RunFolder
from prl_train.run.metrics import read_metrics
from prl_train.teacher.logprobs import TeacherScorer
from prl_train.teacher.vocabulary import check_vocabulary

pytestmark = pytest.mark.heavy
KEY = "k-4711-very-secret"


def plain_logprobs(model: Path, ids: list[int]) -> list[float]:
    """Return log p(ids[i] | ids[:i]) for i >= 1, from one plain forward pass of transformers."""
    from transformers import AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM
    loaded = factory.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = loaded(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    scores: list[float] = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    return scores


def test_scores_are_those_of_a_plain_forward_pass_also_of_what_the_cache_holds(tmp_path: Path) -> None:
    """An engine gives no log-probabilities of cached prefixes: a scorer that meets its cache would get holes."""
    teacher = make_model(tmp_path / "teacher", seed=5)
    draw = random.Random(0)
    samples = [[draw.randrange(280) for _ in range(length)] for length in (2, 17, CONTEXT - 1)]
    samples.append(samples[1] + samples[0])

    async def score(url: str) -> list[list[float]]:
        pool = EnginePool(FixedAddresses([url]))
        try:
            assert await check_vocabulary(pool, "tiny", load_tokenizer(teacher)) == "ids"
            for ids in samples[:2]:  # now the engine's own cache holds them
                await pool.generate(
                    GenerateRequest(model="tiny", prompt_token_ids=ids, sampling=SamplingParams(max_tokens=1))
                )
            scorer = TeacherScorer(pool, model="tiny", context=CONTEXT)
            first = await asyncio.gather(*(scorer.score(ids) for ids in samples))
            assert await asyncio.gather(*(scorer.score(ids) for ids in samples)) == first
            return first
        finally:
            await pool.close()

    with local_server(teacher) as server:
        scores = asyncio.run(score(server.url))
    for ids, given in zip(samples, scores, strict=True):
        assert given[0] == 0.0
        assert given[1:] == pytest.approx(plain_logprobs(teacher, ids), abs=1e-4)


def test_another_vocabulary_is_refused_before_anything_is_sampled(tmp_path: Path, configure: Any) -> None:
    with local_server(make_model(tmp_path / "teacher")) as server:
        settings = (f"teacher.logprobs={{base_urls = ['{server.url}']}}", "trainer.loss={name = 'distillation'}")
        with pytest.raises(ConfigError, match="one vocabulary"):
            run_everything(configure(tmp_path / "run", "warmup.steps=0", *settings))
    assert RunFolder(tmp_path / "run").batch_steps() == []


def test_the_student_comes_closer_to_a_teacher_that_scores_its_samples(tmp_path: Path, configure: Any) -> None:
    student, teacher = make_model(tmp_path / "student", seed=0), make_model(tmp_path / "teacher", seed=1)
    with local_server(teacher) as server:
        config = configure(tmp_path / "run", "orchestrator.steps=12", "warmup.steps=0")
        values = config.model_dump() | {
            "model": {"path": str(student)},
            "environments": [{"name": "reverse-text", "options": {"words": 1}}],
            "sampling": {"max_tokens": 16},
            "teacher": {"logprobs": {"base_urls": [server.url]}},
        }
        values["trainer"] |= {"loss": {"name": "distillation"}, "lr": 1e-2, "warmup_steps": 1}
        run_everything(type(config).model_validate(values))
    folder = RunFolder(tmp_path / "run")
    rows = read_metrics(folder.metrics)
    assert len(rows) == 12
    assert all(row["rollouts/errors"] == 0 for row in rows)
    gaps = [row["teacher_kl"] for row in rows]
    assert gaps[-1] < 0.7 * gaps[0], gaps
    batch = folder.read_batch(folder.batch_steps()[-1])
    assert batch is not None
    assert batch.samples, "a loss that reads no advantages needs no differing rewards"
    for sample in batch.samples[:3]:
        ids = sample.prompt_ids + sample.completion_ids
        assert sample.teacher_logprobs is not None
        assert sample.teacher_logprobs[1:] == pytest.approx(plain_logprobs(teacher, ids), abs=1e-4)


class _Master(BaseHTTPRequestHandler):
    """Plays number guessing without a mistake, over OpenAI's chat API; its thoughts are its own."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Authorization"] == f"Bearer {KEY}"
        heard = [str(message["content"]) for message in body["messages"] if message["role"] == "tool"]
        guess = 2 if not heard else 3 if "higher" in heard[-1] else 1
        call = {"id": "c", "type": "function", "function": {"name": "guess", "arguments": json.dumps({"n": guess})}}
        message = {"role": "assistant", "content": None, "reasoning_content": "Halve it.", "tool_calls": [call]}
        answer = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


@contextmanager
def master() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Master)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_student_learns_to_say_what_a_teacher_says(
    tmp_path: Path, configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTERS_KEY", KEY)
    with master() as url:
        config = configure(tmp_path / "run", "orchestrator.steps=12", "warmup.steps=0", "trainer.lr=6e-3")
        values = config.model_dump() | {
            "client_mode": None,
            "teacher": {
                "rollouts": {
                    "base_url": url,
                    "model": "master",
                    "api_key_env": "MASTERS_KEY",
                    "keep_reasoning": False,
                    "min_reward": 1.0,
                }
            },
        }
        values["trainer"]["loss"] = {"name": "cross-entropy"}
        run_everything(type(config).model_validate(values))
    folder = RunFolder(tmp_path / "run")
    rows = read_metrics(folder.metrics)
    assert len(rows) == 12
    assert all(row["reward"] == 1.0 for row in rows)
    assert all(row["breaks"] == 0 for row in rows)
    assert rows[-1]["nll"] < 0.5 * rows[0]["nll"], [row["nll"] for row in rows]
    batch = folder.read_batch(folder.batch_steps()[-1])
    assert batch is not None
    tokenizer = load_tokenizer(folder.model)
    assert all(sample.completion_logprobs is None for sample in batch.samples)
    assert all(sample.advantage == 1.0 for sample in batch.samples)
    text = tokenizer.decode(batch.samples[0].completion_ids)
    assert text.startswith('<tool_call>\n{"name": "guess", "arguments": {"n": 2}}\n</tool_call><|im_end|>')
    for path in folder.root.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
