"""The HTTP routes: what a client in another process, or written by someone else, can rely on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fixtures.ports import free_port

from prl_engine_local.engine import create
from prl_engine_local.options import LocalEngineOptions


@pytest.fixture
async def server(make_engine: Any, serve: Any) -> Any:
    return serve(await make_engine(max_model_len=128))


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt_token_ids": [5, 6, 7], "max_tokens": 4, "seed": 1} | changes


async def test_generate_answers_ids_and_logprobs_in_parallel(server: Any, call: Any) -> None:
    status, answer = await call("POST", f"{server.url}/v1/generate", body(n=2, prompt_logprobs=True, request_id="a"))
    assert status == 200
    assert set(answer) == {
        "choices", "prompt_token_ids", "prompt_logprobs", "usage", "weight_version", "request_id",
    }  # fmt: skip
    assert [set(choice) for choice in answer["choices"]] == [
        {"token_ids", "logprobs", "finish_reason", "routed_experts"}
    ] * 2
    assert [len(choice["token_ids"]) for choice in answer["choices"]] == [4, 4]
    assert [len(choice["logprobs"]) for choice in answer["choices"]] == [4, 4]
    assert answer["prompt_token_ids"] == [5, 6, 7]
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == 3
    assert (answer["weight_version"], answer["request_id"]) == (-1, "a"), "nobody published these weights"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}


async def test_status_routes(server: Any, call: Any) -> None:
    assert await call("GET", f"{server.url}/health") == (
        200,
        {"status": "ok", "weight_version": -1, "running": 0, "waiting": 0},
    )
    status, models = await call("GET", f"{server.url}/v1/models")
    assert status == 200
    assert [(model["id"], model["max_model_len"]) for model in models["data"]] == [("tiny", 128)]


@pytest.mark.parametrize(
    ("changes", "status", "code", "field"),
    [
        ({"prompt_token_ids": "abc"}, 422, "malformed_request", "prompt_token_ids"),
        ({"prompt_token_ids": [1, "2"]}, 422, "malformed_request", "prompt_token_ids.1"),
        ({"prompt_token_ids": [1, 2.5]}, 422, "malformed_request", "prompt_token_ids.1"),
        ({"max_tokens": 0}, 422, "malformed_request", "max_tokens"),
        ({"temperature": -1}, 422, "malformed_request", "temperature"),
        ({"max_token": 5}, 422, "malformed_request", "max_token"),
        ({"min_tokens": 5}, 422, "malformed_request", "body"),
        ({"prompt_token_ids": [1] * 128}, 400, "prompt_too_long", None),
        ({"prompt_token_ids": [600]}, 400, "malformed_request", None),
        ({"prompt_token_ids": [-1]}, 400, "malformed_request", None),
        ({"prompt_token_ids": []}, 400, "malformed_request", None),
        ({"model": "other"}, 404, "unknown_model", None),
    ],
)
async def test_a_wrong_body_is_a_typed_error(
    server: Any, call: Any, changes: dict[str, Any], status: int, code: str, field: str | None
) -> None:
    got, answer = await call("POST", f"{server.url}/v1/generate", body(**changes))
    assert (got, answer["error"]["code"]) == (status, code)
    assert all(answer["error"][part] for part in ("message", "where", "next_step"))
    assert [entry["field"] for entry in answer["error"].get("fields", [])] == ([field] if field else [])


@pytest.mark.parametrize("raw", [b"", b"{", b"[1, 2]", b'{"model": "tiny"}', b"\xff\xfe"])
async def test_a_body_that_is_no_request_is_422(server: Any, call: Any, raw: bytes) -> None:
    status, answer = await call("POST", f"{server.url}/v1/generate", raw)
    assert (status, answer["error"]["code"]) == (422, "malformed_request")


@pytest.mark.parametrize(("value", "status"), [("0", 200), ("1", 400), ("-1", 400), ("x", 400), ("", 400)])
@pytest.mark.parametrize("name", ["X-data-parallel-rank", "x-DATA-parallel-RANK"])
async def test_the_data_parallel_rank_is_validated(server: Any, call: Any, name: str, value: str, status: int) -> None:
    got, _ = await call("POST", f"{server.url}/v1/generate", body(), {name: value})
    assert got == status


@pytest.mark.usefixtures("slow_steps")
async def test_a_client_that_goes_away_frees_its_row(server: Any, wait_until: Any) -> None:
    scheduler = server.engine.core.scheduler
    async with aiohttp.ClientSession() as session:
        posts = [
            asyncio.ensure_future(session.post(f"{server.url}/v1/generate", json=body(max_tokens=None, n=16)))
            for _ in range(4)
        ]
        await wait_until(lambda: scheduler.queue_sizes()[0] == 4 * 16)
        for post in posts:
            post.cancel()
        await asyncio.gather(*posts, return_exceptions=True)
        await wait_until(lambda: scheduler.queue_sizes() == (0, 0))
    assert scheduler.counters.aborted == 4
    assert scheduler.counters.sampled_tokens < 4 * 16 * 125


async def test_answers_503_until_the_model_is_loaded(model_dir: str, serve: Any, call: Any) -> None:
    engine = create(LocalEngineOptions(model=model_dir, served_model_name="tiny"))
    server = serve(engine)
    for method, path, sent in (
        ("GET", "/health", None),
        ("GET", "/v1/models", None),
        ("POST", "/v1/generate", body()),
        ("POST", "/v1/weights", {"directory": "d", "version": 1}),
        ("POST", "/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}),
    ):
        status, answer = await call(method, server.url + path, sent)
        assert (status, answer["error"]["code"]) == (503, "engine_unavailable"), path
    await engine.start()
    assert (await call("GET", f"{server.url}/health"))[0] == 200
    await engine.stop()


async def test_weights_route(server: Any, call: Any, new_model: Any, save: Any, tmp_path: Path) -> None:
    good = save(new_model(8, max_position_embeddings=256), "good")
    assert await call("POST", f"{server.url}/v1/weights", {"directory": good, "version": 3}) == (
        200,
        {"status": "ok", "weight_version": 3},
    )
    assert (await call("POST", f"{server.url}/v1/generate", body()))[1]["weight_version"] == 3
    status, answer = await call("POST", f"{server.url}/v1/weights", {"directory": str(tmp_path / "no"), "version": 4})
    assert (status, answer["error"]["code"]) == (400, "bad_weights")
    status, answer = await call("POST", f"{server.url}/v1/weights", {"directory": good})
    assert (status, [entry["field"] for entry in answer["error"]["fields"]]) == (422, ["version"])
    assert (await call("POST", f"{server.url}/v1/generate", body()))[1]["weight_version"] == 3


async def test_the_openapi_document_tells_the_truth(server: Any, call: Any) -> None:
    _, document = await call("GET", f"{server.url}/openapi.json")
    generate = document["paths"]["/v1/generate"]["post"]
    schema = generate["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["required"]) == {"model", "prompt_token_ids"}
    assert schema["additionalProperties"] is False
    assert {"max_tokens", "n", "stop_token_ids", "seed", "prompt_logprobs", "priority", "cache_salt"} <= set(
        schema["properties"]
    )
    assert "$ref" not in json.dumps(schema), "a reference inside the body would point nowhere"
    assert set(generate["responses"]) == {"200", "400", "404", "413", "422", "500", "503"}
    answer = document["components"]["schemas"]["GenerateAnswer"]["properties"]
    _, real = await call("POST", f"{server.url}/v1/generate", body())
    assert set(answer) == set(real)
    assert set(document["paths"]) == {
        "/v1/generate", "/v1/chat/completions", "/v1/chat/completions/tokens", "/tokenize",
        "/v1/weights", "/v1/weights/offer", "/v1/weights/receive", "/health", "/v1/models",
    }  # fmt: skip


def _serve_process(model: str, port: int) -> subprocess.Popen[str]:
    code = (
        "import sys; from prl_engine_local.engine import create; from prl_engine_local.options import *;"
        "from prl.types import PrlError\n"
        "try: create(LocalEngineOptions(model=sys.argv[1], port=int(sys.argv[2]))).serve()\n"
        "except PrlError as error: print(error, file=sys.stderr); sys.exit(1)"
    )
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, model, str(port)]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


async def test_serve_runs_until_interrupted(model_dir: str, call: Any) -> None:
    port = free_port()
    process = _serve_process(model_dir, port)
    try:
        deadline = time.monotonic() + 90
        status = 0
        while status != 200:
            assert time.monotonic() < deadline
            assert process.poll() is None, process.stderr and process.stderr.read()
            await asyncio.sleep(0.2)
            try:
                status, _ = await call("GET", f"http://127.0.0.1:{port}/health")
            except aiohttp.ClientError:
                continue
        process.send_signal(signal.SIGINT)
        process.wait(60)
        assert process.stderr is not None
        said = process.stderr.read()
        assert f"at http://127.0.0.1:{port}" in said
        assert "Traceback" not in said
    finally:
        process.kill()
        process.wait()


def test_serve_says_why_it_cannot_load_or_listen(model_dir: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    process = _serve_process(str(tmp_path), free_port())
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "no weights" in said
    assert "next:" in said
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = _serve_process(model_dir, taken.getsockname()[1])
        _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "cannot listen" in said
