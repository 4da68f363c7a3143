"""`command-agent`: any program that speaks the OpenAI API, on tasks from a file."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from prl.contracts import AgentEndpoint, AgentResult, Example

from .command_run import Ended, run_command
from .command_tasks import CommandTask, read_reward, read_tasks

PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "VIRTUAL_ENV")
"""Variables of this process that commands see; others may hold secrets, which are none of an agent's business."""
REWARD = "reward.json"


class CommandAgentOptions(BaseModel):
    """The agent's command, its tasks and its limits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: tuple[str, ...] = Field(
        min_length=1,
        description="the agent, run once for each task in a fresh folder, with OPENAI_BASE_URL, OPENAI_API_KEY, "
        "OPENAI_MODEL and PRL_TASK set; words that name an existing file with a slash are made absolute",
    )
    tasks: Path = Field(description="a JSONL file: prompt, check, and optionally id, files and data")
    seconds: Annotated[float, Field(gt=0)] = Field(default=600.0, description="how long the agent may take")
    check_seconds: Annotated[float, Field(gt=0)] = Field(default=120.0, description="how long a check may take")
    output_bytes: PositiveInt = Field(default=20_000, description="how much of the end of its output is kept")
    environment: dict[str, str] = Field(default_factory=dict, description="further variables of the agent")
    pass_on: tuple[str, ...] = Field(default=(), description="variables of this process that the agent sees, by name")


class CommandAgent:
    """Runs a command for each task and judges what it left."""

    name = "command-agent"

    def __init__(self, options: CommandAgentOptions, tasks: list[CommandTask]) -> None:
        self.options = options
        self.tasks = tasks
        self._command = [_absolute(word) for word in options.command]
        self._checks = [[_absolute(word) for word in task.check] for task in tasks]

    def example(self, index: int) -> Example:
        """Return task `index`, counted round and round."""
        number = index % len(self.tasks)
        task = self.tasks[number]
        name = task.id or str(number)
        return Example(
            id=f"command-agent/{name}", messages=({"role": "user", "content": task.prompt},), data={"task": number}
        )

    async def run(self, example: Example, endpoint: AgentEndpoint) -> AgentResult:
        """Run the agent in a fresh folder, then the check; what the agent left running is killed before."""
        number = int(example.data["task"])
        folder = Path(await asyncio.to_thread(self._lay_out, self.tasks[number]))
        try:
            agent = await self._agent(self.tasks[number], folder, endpoint)
            return await self._judge(number, folder, agent)
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))

    def _lay_out(self, task: CommandTask) -> str:
        folder = tempfile.mkdtemp(prefix="prl-task-")
        for name in ("work", "home"):
            (Path(folder) / name).mkdir()
        for name, text in task.files.items():
            path = Path(folder) / "work" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return folder

    async def _agent(self, task: CommandTask, folder: Path, endpoint: AgentEndpoint) -> Ended:
        options = self.options
        passed = {name: os.environ[name] for name in options.pass_on if name in os.environ}
        told = {
            "OPENAI_BASE_URL": endpoint.base_url,
            "OPENAI_API_KEY": endpoint.api_key,
            "OPENAI_MODEL": endpoint.model,
            "PRL_TASK": json.dumps({"id": task.id, "prompt": task.prompt, "data": task.data}),
        }
        environment = _basic(folder) | passed | options.environment | told
        return await run_command(
            self._command, folder / "work", environment, seconds=options.seconds, keep=options.output_bytes
        )

    async def _judge(self, number: int, folder: Path, agent: Ended) -> AgentResult:
        work = folder / "work"
        _remove(work / REWARD)  # what the agent says of itself does not count
        limits = {"seconds": self.options.check_seconds, "keep": self.options.output_bytes}
        check = await run_command(self._checks[number], work, _basic(folder), **limits)  # type: ignore[arg-type]
        reward, metrics = read_reward(work / REWARD, check.status == 0)
        ends = {
            "agent_timed_out": float(agent.status is None),
            "agent_failed": float(agent.status != 0),
            "check_timed_out": float(check.status is None),
        }
        return AgentResult(reward=reward, metrics=metrics | ends, output=agent.output)


def _basic(folder: Path) -> dict[str, str]:
    """Return the variables that every command of a task sees; its home is as fresh as its folder."""
    here: Mapping[str, str] = os.environ
    return {name: here[name] for name in PASSED_ON if name in here} | {"HOME": str(folder / "home")}


def _remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _absolute(word: str) -> str:
    """Return the absolute path of an existing file that is named with a slash; other words as they are."""
    return os.path.abspath(word) if "/" in word and os.path.isfile(word) else word  # False for what is no path at all


def create(options: CommandAgentOptions) -> CommandAgent:
    """Create the environment; raise `ConfigError` where its tasks cannot be read."""
    return CommandAgent(options, read_tasks(options.tasks))
