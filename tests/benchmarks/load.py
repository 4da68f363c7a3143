"""Many conversations at once over HTTP: CPU a request and how long the event loop is held up, against one stub engine.

All contestants hold the same conversations on the real Qwen3 vocabulary and must end with the same ids. prl and
`renderers` render, bridge and parse; the openai SDK only sends ids that are ready, as an agent framework would.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import renderers
import renderers.client
from fixtures.real_tokenizers import tokenizer_directory
from fixtures.stub_engine import MODEL, choose
from openai import AsyncOpenAI
from transformers import AutoTokenizer
from workloads import Rollout, tool_rollout

from prl import create_renderer, load_tokenizer
from prl.client import HttpEngineClient, RendererModeOptions, create_renderer_mode
from prl.types import SamplingParams

STUB = Path(__file__).parents[1] / "fixtures" / "stub_engine.py"
TURNS, AT_ONCE, RESULT_LINES, ANSWERS = 6, 64, 35, 24
TICK = 0.002  # seconds between two looks at the clock
Ids = list[int]


@dataclass(frozen=True)
class Conversation:
    """What is said, the prompt of each turn, and the last prompt with its completion."""

    work: Rollout
    prompts: list[Ids]
    end: Ids

    def fresh(self, turn: int) -> list[dict[str, Any]]:
        """Return the messages that turn `turn` adds: the opening, then one tool result each."""
        opening = self.work.opening
        place = opening + 2 * turn - 1
        return self.work.messages[:opening] if turn == 0 else self.work.messages[place : place + 1]


Play = Callable[[Conversation], Awaitable[Ids]]


@dataclass
class Measured:
    """What one contestant cost, one entry a repetition; `lags` are seconds by which the loop was late."""

    cpu: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)


def load_table(repetitions: int) -> Iterator[str]:
    """Yield the lines of the table."""
    directory = tokenizer_directory("qwen3")
    tokenizer = load_tokenizer(directory).warm_up()
    theirs = renderers.create_renderer(AutoTokenizer.from_pretrained(directory), renderers.Qwen3RendererConfig())
    table = _completions(theirs)
    make_ours = partial(create_renderer, tokenizer, "qwen3", content_tokens="template")
    with _stub(table) as url:
        make = partial(_conversation, theirs, table)
        measured, sizes = asyncio.run(_measure(url, repetitions, make, make_ours, theirs))
    yield f"  {AT_ONCE} conversations at once, {TURNS} turns each; prompts of {sizes[0]} to {sizes[-1]} tokens"
    for name, one in measured.items():
        yield _line(name, one, measured["prl"])


def _line(name: str, one: Measured, ours: Measured) -> str:
    ratio = statistics.median(theirs / mine for mine, theirs in zip(ours.cpu, one.cpu, strict=True))
    lags = sorted(one.lags)
    p50, p99 = (lags[int(len(lags) * share)] * 1e3 for share in (0.5, 0.99))
    cpu = statistics.median(one.cpu) / (TURNS * AT_ONCE) * 1e6
    late = f"{p50:6.1f} (p50) {p99:7.1f} (p99) {lags[-1] * 1e3:7.1f} (max)"
    return f"  {name:32s} {cpu:7.0f} us CPU a request  {ratio:5.1f}x prl's   loop late by ms: {late}"


async def _measure(
    url: str, repetitions: int, make: Callable[[int], Conversation], make_ours: Callable[[], Any], theirs: Any
) -> tuple[dict[str, Measured], list[int]]:
    client = HttpEngineClient(url)
    sdk = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
    names = ("prl", "renderers", "openai SDK, ids given")
    measured = {name: Measured() for name in names}
    try:
        for repetition in range(-1, repetitions):  # the first opens connections and imports; it is not counted
            works = [make(100 * repetition + number) for number in range(AT_ONCE)]
            # a new renderer each time: what earlier texts left in prl's run cache helps nobody
            plays = (partial(_ours, make_ours(), client), partial(_theirs, theirs, sdk), partial(_bare, url, sdk))
            turn = repetition % len(names)
            order = [*zip(names, plays, strict=True)]
            for name, play in order[turn:] + order[:turn]:
                await _timed(Measured() if repetition < 0 else measured[name], name, play, works)
    finally:
        await client.close()
        await sdk.close()
    return measured, [len(prompt) for prompt in works[0].prompts]


async def _timed(one: Measured, name: str, play: Play, works: Sequence[Conversation]) -> None:
    gc.collect()
    watch = asyncio.create_task(_watch(one.lags))
    begin = time.process_time()
    ends = await asyncio.gather(*map(play, works))
    one.cpu.append(time.process_time() - begin)
    watch.cancel()
    if ends != [work.end for work in works]:
        raise SystemExit(f"{name} ends with other ids; a faster wrong answer is not timed")


async def _watch(lags: list[float]) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(TICK)
        lags.append(max(0.0, time.perf_counter() - before - TICK))


# --- the contestants


async def _ours(renderer: Any, client: HttpEngineClient, talk: Conversation) -> Ids:
    mode = create_renderer_mode(client, renderer, RendererModeOptions())
    session = mode.session(model=MODEL, tools=talk.work.tools)
    for turn in range(TURNS):
        last = await session.turn(talk.fresh(turn), SamplingParams(max_tokens=512))
    return [*last.prompt_ids, *last.completion_ids]


async def _theirs(renderer: Any, sdk: AsyncOpenAI, talk: Conversation) -> Ids:
    prompt: Ids | None = None
    completion: Ids = []
    for turn in range(TURNS):
        if prompt is not None:
            fresh = talk.fresh(turn)
            prompt = renderer.bridge_to_next_turn(prompt, completion, fresh, tools=talk.work.tools).token_ids
        answer = await renderers.client.generate(
            client=sdk,
            renderer=renderer,
            messages=talk.work.prompt_messages(turn),
            model=MODEL,
            prompt_ids=prompt,
            tools=talk.work.tools,
            sampling_params={"max_tokens": 512},
        )
        prompt, completion = answer["prompt_ids"], answer["completion_ids"]
    return [*(prompt or ()), *completion]


async def _bare(url: str, sdk: AsyncOpenAI, talk: Conversation) -> Ids:
    ids: Ids = []
    for prompt in talk.prompts:
        body = {"model": MODEL, "token_ids": prompt, "sampling_params": {"max_tokens": 512, "logprobs": 1}}
        answer: Any = await sdk.post(f"{url}/inference/v1/generate", body=body, cast_to=object)
        ids = answer["choices"][0]["token_ids"]
    return [*talk.prompts[-1], *ids]


# --- the work


def _completions(renderer: Any) -> list[Ids]:
    """Return what the stub answers: tool calls with reasoning, as the model samples them."""
    found: list[Ids] = []
    work = tool_rollout(4_999, ANSWERS + 1, result_lines=2)
    for turn in range(ANSWERS):
        before = work.messages[1 : work.opening]
        answer = work.messages[work.opening + 2 * turn]
        start = renderer.render(before, add_generation_prompt=True).token_ids
        ids = renderer.render([*before, answer]).token_ids[len(start) :]
        stops = renderer.get_stop_token_ids()
        found.append(ids[: next(place for place, token in enumerate(ids) if token in stops) + 1])
    return found


def _conversation(renderer: Any, table: list[Ids], number: int) -> Conversation:
    """Make a conversation and its prompts; by `renderers`, so that prl has seen none of the texts."""
    talk = Conversation(tool_rollout(50_000 + number, TURNS, result_lines=RESULT_LINES), [], [])
    tools, completion = talk.work.tools, list[int]()
    for turn in range(TURNS):
        fresh = talk.fresh(turn)
        if turn == 0:
            prompt = renderer.render(fresh, tools=tools, add_generation_prompt=True).token_ids
        else:
            prompt = renderer.bridge_to_next_turn(talk.prompts[-1], completion, fresh, tools=tools).token_ids
        completion = table[choose(prompt, len(table))]
        talk.prompts.append(prompt)
    talk.end.extend([*prompt, *completion])
    return talk


@contextmanager
def _stub(table: list[Ids]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        path.write_text(json.dumps(table), encoding="utf-8")
        with subprocess.Popen([sys.executable, str(STUB), str(path)], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            try:
                yield f"http://127.0.0.1:{child.stdout.readline().strip()}"
            finally:
                child.kill()
