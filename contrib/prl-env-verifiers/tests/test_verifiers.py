"""Tasksets of verifiers through the gateway: exact tokens, the taskset's own rewards, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from engines.local import make_model
from fixtures.documents import titled
from fixtures.environments import ROOT
from gateway.agents import ScriptedEngine

from prl import create_renderer
from prl.config import load_config
from prl.contracts import AgentEndpoint, AgentEnvironment, AgentResult, ClosableEnvironment, RolloutJob
from prl.gateway import Gateway, GatewaySession
from prl.plugin import create, get_registry
from prl.testing.byte_tokenizer import ByteTokenizer
from prl.types import ConfigError, PrlError, SamplingParams
from prl_train.config import RLConfig
from prl_train.executor.agents import AgentPlayer
from prl_train.executor.stages import Stage, StagePlayer
from prl_train.launch.processes import run_everything
from prl_train.orchestrator.schedule import Schedule, WeightedEnvironment
from prl_train.run import RunFolder
from prl_train.run.metrics import read_metrics

pytest.importorskip("verifiers")

PAGE = ROOT / "docs" / "how-to" / "train-on-verifiers-environments.md"
HUNT = titled(PAGE)["number_hunt.py"]
UV = """#!/bin/sh
# What verifiers asks of uv: whether it knows scripts, and which interpreter has a script's dependencies.
case "$*" in
*--help*) echo "--script" ;;
"python find"*) echo "{python}" ;;
esac
"""
SMALL = """
import asyncio, itertools
import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.runtimes import ProgramResult


class SmallTask(vf.Task[vf.TaskData]):
{task}


class SmallTaskset(vf.Taskset[SmallTask, vf.TasksetConfig]):
    def load(self):
{load}


class SmallHarness(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
{launch}


EVENTS = []
__all__ = ["SmallHarness", "SmallTaskset"]
{env}
"""
REWARD = "@vf.reward\nasync def done(self, trace): return 1.0"
ONE = "return [SmallTask(vf.TaskData(prompt='hi'), self.config.task)]"
NOTHING = "return ProgramResult(exit_code=0, stdout='', stderr='')"
TWO = "return [SmallTask(vf.TaskData(prompt=str(number)), self.config.task) for number in range(2)]"
ASK = """async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
    await client.chat.completions.create(model=ctx.model, messages=[{'role': 'user', 'content': data.prompt}])
return ProgramResult(exit_code=0, stdout='', stderr='')"""
PROGRAM = """script = 'echo ' + data.prompt + ':$$ >> {pids}; exec sleep 600'
return await runtime.run_program(['sh', '-c', script], {{}})"""
UNSTEADY = """
class SmallEnv(vf.SingleAgentEnv):
    async def start(self):
        EVENTS.append("start")
        if len(EVENTS) == 1:
            raise ConnectionError("not yet")

    async def stop(self):
        EVENTS.append("stop")

__all__ += ["SmallEnv"]
"""

DUEL = """
class DuelConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()
    rival: vf.AgentConfig = vf.AgentConfig()

class DuelEnv(vf.Env[DuelConfig]):
    async def run(self, task, agents):
        await agents.player.run(task)
        await agents.rival.run(task)

__all__ += ["DuelEnv"]
"""

Write = Callable[..., str]


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have verifiers lay out its folders here and not at home."""
    monkeypatch.setattr("verifiers.v1.runtimes.subprocess.CACHE_DIR", tmp_path / "cache")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a module that can be imported while the test lasts: a source, or a small taskset of these parts."""
    monkeypatch.syspath_prepend(tmp_path)
    made: list[str] = []

    def module(
        name: str,
        source: str | None = None,
        *,
        task: str = REWARD,
        load: str = ONE,
        launch: str = NOTHING,
        env: str = "",
    ) -> str:
        parts = {
            "task": indent(task, " " * 4),
            "load": indent(load, " " * 8),
            "launch": indent(launch, " " * 8),
            "env": env,
        }
        (tmp_path / f"{name}.py").write_text(SMALL.format(**parts) if source is None else source)
        made.append(name)
        return name

    yield module
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture
def make() -> Callable[..., Any]:
    """Make an environment as a run does."""

    def environment(**options: Any) -> Any:
        return create("environment", "verifiers", **options)

    return environment


class Place:
    """A gateway whose engine says fixed lines, and keys of it."""

    def __init__(self, lines: Sequence[str]) -> None:
        controls = get_registry().find("renderer", "qwen3").control_tokens
        renderer = create_renderer(ByteTokenizer(controls), "qwen3", thinking_retention="all")
        self.engine = ScriptedEngine(renderer.tokenizer, [f"{line}<|im_end|>" for line in lines])
        self.gateway = Gateway(self.engine, renderer, model="tiny")
        self.url = ""

    def session(self) -> tuple[GatewaySession, AgentEndpoint]:
        session = self.gateway.open_session()
        return session, AgentEndpoint(base_url=self.url, api_key=session.api_key, model="tiny")


@contextlib.asynccontextmanager
async def place(*lines: str) -> AsyncIterator[Place]:
    made = Place(lines)
    made.url = await made.gateway.start()
    try:
        yield made
    finally:
        await made.gateway.close()


async def play(environment: Any, *lines: str, index: int = 0) -> tuple[AgentResult, list[Any]]:
    """Play one rollout and end the environment."""
    async with place(*lines) as there:
        session, endpoint = there.session()
        try:
            return await environment.run(environment.example(index), endpoint), list(await session.close())
        finally:
            await environment.aclose()


async def test_an_episode_is_recorded_token_for_token_and_judged_by_its_taskset(write: Write, make: Any) -> None:
    write("number_hunt", HUNT)
    environment = make(taskset="number-hunt")
    assert isinstance(environment, AgentEnvironment)
    assert isinstance(environment, ClosableEnvironment)
    example = environment.example(4)
    assert (example.id, example) == ("number-hunt/hunt-2", environment.example(4))
    assert example.messages == ({"role": "user", "content": "Find my number from 1 to 3. You have two guesses."},)
    result, turns = await play(environment, "1", "2", index=4)
    metrics = {"guesses": 2.0, "rewards/found": 1.0, "timed_out": 0.0}
    assert result == AgentResult(reward=1.0, metrics=metrics, output="ended by agent_completed")
    first, second = turns
    seen = [*first.prompt_ids, *first.completion_ids]
    assert second.prompt_ids[: len(seen)] == seen, "the second turn's prompt is another rendering of the first turn"


async def test_rollouts_at_once_keep_their_keys_apart_and_share_connections(
    write: Write, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool of connections for each rollout would grow with the run until the process has no more sockets."""
    from verifiers.v1.clients import eval as relaying

    opened: list[str] = []
    build = relaying.build_async_httpx
    monkeypatch.setattr(relaying, "build_async_httpx", lambda config: opened.append(config.base_url) or build(config))
    monkeypatch.setenv("PRIME_API_KEY", "not the gateway's business")
    write("number_hunt", HUNT)
    elastic = {"interception": {"type": "elastic", "multiplex": 2}}
    environment = make(taskset={"id": "number-hunt", "high": 9}, env=elastic)
    async with place("0") as there:
        for _ in range(2):
            pairs = [there.session() for _ in range(6)]
            runs = [environment.run(environment.example(index), endpoint) for index, (_, endpoint) in enumerate(pairs)]
            results = await asyncio.gather(*runs)
            recorded = [await session.close() for session, _ in pairs]
            assert {result.reward for result in results} == {0.0}
            assert {len(turns) for turns in recorded} == {2}
    await environment.aclose()
    assert opened == [there.url] * 3, "a server for two rollouts, a client for each server, whatever is played on them"


@pytest.mark.heavy
async def test_verifiers_own_program_plays_in_a_process(
    write: Write, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundled harness `bash`, verifiers' default: it streams, runs what is called, and sends back what was said."""
    from verifiers.v1.runtimes.subprocess import SubprocessRuntime

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(SubprocessRuntime, "scripts_dir", str(tmp_path / "scripts"))
    uv = tmp_path / ".local" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(UV.format(python=sys.executable))
    uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
    write("number_hunt", HUNT)
    environment = make(taskset="number-hunt", harness="bash", select={"include": {"ids": ["hunt-3"]}})
    call = json.dumps({"name": "bash", "arguments": {"command": "pwd; expr 1 + 2"}})
    thought = f"<think>\nI add.\n</think>\n\n<tool_call>\n{call}\n</tool_call>"
    result, (first, second) = await play(environment, thought, "It is 3.")
    assert (result.reward, result.metrics["guesses"]) == (1.0, 2.0)
    assert second.message["content"] == "It is 3."
    seen = [*first.prompt_ids, *first.completion_ids]
    assert second.prompt_ids[: len(seen)] == seen, "what the program sent back is not what the model had said"
    assert list((tmp_path / "cache" / "runtimes" / "subprocess").iterdir()) == [], "its folder was left behind"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown taskset": ({"taskset": "no-such"}, "there is no taskset 'no-such': no module 'no_such' can be imported"),
    "what there is": ({"taskset": "no-such"}, "here are: harbor, nemo_gym, openenv, textarena"),
    "what it lacks": ({"taskset": "lacking"}, "taskset 'lacking' needs acme_parts, which is not installed"),
    "no taskset in it": ({"taskset": "json"}, "exports no Taskset subclass"),
    "broken on import": ({"taskset": "broken"}, "ZeroDivisionError"),
    "ends the program": ({"taskset": "ending"}, "taskset 'ending' cannot be used: SystemExit: no GPU"),
    "broken tasks": ({"taskset": "broken_tasks"}, "the tasks of 'broken_tasks' cannot be read: KeyError: 'rows'"),
    "no tasks": ({"taskset": "small", "select": {"skip": 1}}, "no task is selected"),
    "unknown selection": ({"taskset": "small", "select": {"limits": 1}}, "limits"),
    "no id": ({"taskset": {"high": 3}}, "name the taskset"),
    "unknown option": ({"taskset": {"id": "small", "hihg": 3}}, "hihg"),
    "unknown harness": ({"taskset": "small", "harness": "nul"}, "The built-in harnesses are: bash"),
    "unknown env": ({"taskset": "small", "env": {"id": "duel"}}, "duel"),
    "taskset in env": ({"taskset": "small", "env": {"taskset": {"id": "small"}}}, "the taskset stands in `taskset`"),
    "no table": ({"taskset": "small", "env": {"agent": 3}}, "env.agent is no table"),
    "twice": ({"taskset": "small", "harness": "null", "env": {"agent": {"harness": {"id": "bash"}}}}, "given twice"),
    "retries": ({"taskset": "small", "env": {"agent": {"retries": {"max_retries": 1}}}}, "a retry would be recorded"),
    "two players": (
        {"taskset": "small", "env": {"id": "user-sim"}},
        "2 agents of the env play with the trained model: assistant, user",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_options_are_told_before_a_run_begins(case: str, write: Write, make: Any) -> None:
    write("small")
    write("broken", "1 / 0")
    write("lacking", "import acme_parts")
    write("ending", "raise SystemExit('no GPU')")
    write("broken_tasks", load="yield {}['rows']")
    options, told = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        make(**options)
    assert told in str(caught.value)
    assert "verifiers" in caught.value.where
    assert caught.value.next_step


FAILING: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "a reward that raises": (
        {"task": "@vf.reward\nasync def done(self, trace): return {}['answer']"},
        {},
        "TaskError: task SmallTask scoring: KeyError: 'answer'",
    ),
    "a reward that takes too long": (
        {"task": "@vf.reward\nasync def done(self, trace): await asyncio.sleep(60)"},
        {"agent": {"timeout": {"scoring": 0.05}}},
        "the reward 'done' was not computed (the rollout ended by 'scoring_timeout')",
    ),
    "no reward": ({"task": "pass"}, {}, "the task has no reward"),
    "tasks that need more": ({"task": f"NEEDS_CONTAINER = True\n{REWARD}"}, {}, "SmallTask needs a container runtime"),
    "a program that fails": (
        {"launch": "return await runtime.run_program(['sh', '-c', 'echo no such thing >&2; exit 3'], {})"},
        {},
        "HarnessError: harness 'small' exited 3: no such thing",
    ),
    "more runs than one": ({}, {"id": "best-of-n", "n": 2}, "ran agent 'agent' 2 times"),
}


@pytest.mark.parametrize("case", FAILING)
async def test_a_failed_episode_is_a_failed_rollout_and_never_a_reward_of_zero(
    case: str, write: Write, make: Any
) -> None:
    parts, env, told = FAILING[case]
    write("small", **parts)
    with pytest.raises(PrlError) as caught:
        await play(make(taskset="small", env=env), "hello")
    assert told in str(caught.value)


async def test_a_cancelled_rollout_ends_its_program_and_no_other(write: Write, make: Any, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    write("small", launch=PROGRAM.format(pids=pids), load=TWO)
    environment = make(taskset="small")
    async with place("hello") as there:
        runs = [environment.run(environment.example(index), there.session()[1]) for index in range(2)]
        stays, goes = [asyncio.create_task(one) for one in runs]
        while not pids.exists() or len(pids.read_text().split()) < 2:
            await asyncio.sleep(0.01)
        numbers = dict(line.split(":") for line in pids.read_text().split())
        goes.cancel()
        with pytest.raises(asyncio.CancelledError):
            await goes
        await until_gone(numbers["1"])
        assert is_alive(numbers["0"])
        stays.cancel()
        await asyncio.gather(stays, return_exceptions=True)
    await environment.aclose()
    await until_gone(numbers["0"])
    assert list((tmp_path / "cache" / "runtimes" / "subprocess").iterdir()) == []


async def until_gone(pid: str) -> None:
    """Wait for a process to end: one that is killed is not gone at once."""
    async with asyncio.timeout(30):
        while is_alive(pid):
            await asyncio.sleep(0.01)


def is_alive(pid: str) -> bool:
    """Whether a process runs; one that has ended, and that nobody has waited for yet, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_servers_that_do_not_come_up_fail_the_rollout_and_are_tried_again(write: Write, make: Any) -> None:
    """The first rollout of a worker may meet a network that is not there yet."""
    write("small", launch=ASK, env=UNSTEADY)
    environment = make(taskset="small")
    async with place("hello") as there:
        with pytest.raises(ConnectionError, match="not yet"):
            await environment.run(environment.example(0), there.session()[1])
        await environment.aclose()  # says nothing of what was told
        assert (await environment.run(environment.example(0), there.session()[1])).reward == 1.0
    await environment.aclose()
    assert sys.modules["small"].EVENTS == ["start", "stop", "start", "stop"]


async def test_an_agent_with_a_client_of_its_own_is_not_recorded(
    write: Write, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another model said would be trained as if the policy had said it."""
    write("small", launch=ASK, env=DUEL)
    async with place("mine") as there, place("theirs") as elsewhere:
        (session, endpoint), (other, its) = there.session(), elsewhere.session()
        monkeypatch.setenv("RIVAL_KEY", its.api_key)
        client = {"type": "eval", "base_url": its.base_url, "api_key_var": "RIVAL_KEY"}
        environment = make(taskset="small", env={"rival": {"model": "tiny", "client": client}})
        assert (await environment.run(environment.example(0), endpoint)).reward == 1.0
        await environment.aclose()
        recorded = [[turn.message["content"] for turn in await one.close()] for one in (session, other)]
    assert recorded == [["mine"], ["theirs"]]


def test_the_pages_user_has_a_model_of_its_own(write: Write, make: Any) -> None:
    write("small")
    [line] = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.strip().startswith("others: `")]
    env = tomllib.loads(line.split("`")[1])["env"]
    assert make(taskset="small", harness="null", env={"id": "user-sim", **env}).name == "small"


async def test_a_program_that_never_asks_the_model_is_a_failed_rollout(write: Write, make: Any) -> None:
    write("small")
    environment = make(taskset="small")
    async with place("hello") as there:
        played = await stages(there, environment).play(RolloutJob(group=0, member=0, cache_salt="weights-0"))
    await environment.aclose()
    assert "an agent must ask the model it is given" in str(played.error)


def stages(there: Place, environment: Any) -> StagePlayer:
    class Host:
        model = "tiny"

        async def address(self) -> Any:
            return there.gateway, there.url

    host: Any = Host()
    schedule = Schedule([WeightedEnvironment(environment)], seed=0)
    anything: Any = None
    return StagePlayer({None: Stage(schedule, anything, AgentPlayer(host, SamplingParams()))})


def test_a_stream_without_end_and_one_that_ends_have_a_task_for_every_number(write: Write, make: Any) -> None:
    endless = "for number in itertools.count(): yield SmallTask(vf.TaskData(prompt=str(number)), self.config.task)"
    write("small", load=endless)
    environment = make(taskset="acme/Small@2")
    assert environment.name == "Small"
    assert environment.example(5).messages == ({"role": "user", "content": "5"},)
    assert environment.example(2).id != environment.example(5).id
    write("breaking", load="yield SmallTask(vf.TaskData(prompt='hi'), self.config.task)\nyield {}['row']")
    breaking = make(taskset="breaking")
    for _ in range(2):
        with pytest.raises(KeyError, match="row"):
            breaking.example(1)
    assert breaking.example(0).messages == ({"role": "user", "content": "hi"},)
    few = make(taskset="small", select={"skip": 2, "limit": 3})
    assert [few.example(index).messages[0]["content"] for index in (0, 2, 3, 7)] == ["2", "4", "2", "3"]
    assert few.example(0).id == environment.example(2).id.replace("Small", "small"), "a task's id is its own"


def test_a_task_says_how_its_conversation_opens(write: Write, make: Any) -> None:
    spoken = "[vf.SystemMessage(content='Be brief.'), vf.UserMessage(content='Hi')]"
    openings = f"({spoken}, None), (None, 'Be brief.'), (None, None)"
    load = f"return [SmallTask(vf.TaskData(prompt=one, system_prompt=two)) for one, two in ({openings})]"
    write("small", load=load)
    examples = [make(taskset="small").example(index).messages for index in range(3)]
    assert [[message["role"] for message in messages] for messages in examples] == [
        ["system", "user"],
        ["system"],
        ["user"],
    ]


@pytest.mark.heavy
def test_the_page_trains_on_exactly_what_was_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "model")
    for title, text in titled(PAGE).items():
        (tmp_path / title).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    small = ("model.path=model", "orchestrator.steps=2", "orchestrator.group_size=4", "orchestrator.groups_per_step=3")
    plain = ("sinks=[]", "run.report=false", "sampling.max_tokens=12", "orchestrator.max_async_level=0")
    exact = ("trainer.dtype=float32", "trainer.threads=1", "engine.options.dtype=float32", "engine.options.threads=1")
    run_everything(load_config(RLConfig, Path("run.toml"), [*small, *plain, *exact]))
    folder = RunFolder(tmp_path / "runs" / "hunt")
    rows = read_metrics(folder.metrics)
    assert [(row["breaks"], row["samples_per_rollout"], row["rollouts/errors"]) for row in rows] == [
        (0.0, 1.0, 0.0)
    ] * 2
    assert max(row.get("max_logprob_diff", 0.0) for row in rows) < 1e-3
    records = [json.loads(line) for step in range(2) for line in folder.rollout_path(step).read_text().splitlines()]
    assert len(records) == 24
    for record in records:
        said = [str(message["content"]) for message in record["messages"] if message["role"] == "assistant"]
        secret = record["example_id"].removeprefix("number-hunt/hunt-")
        assert record["reward"] == record["metrics"]["rewards/found"] == float(secret in said[-1])
        assert record["metrics"]["guesses"] == len(said)
    sys.modules.pop("number_hunt", None)
