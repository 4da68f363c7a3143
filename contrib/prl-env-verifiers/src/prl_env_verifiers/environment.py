"""The environment `verifiers`: a taskset's tasks, worked on by a harness, judged by the taskset."""

from __future__ import annotations

from typing import Any

from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.select import SelectConfig

from prl.contracts import AgentEndpoint, AgentResult, Example
from prl.types import ConfigError

from .judged import judged
from .options import VerifiersOptions
from .serving import Serving
from .settings import WHERE, foreign, make_env, short_name
from .tasks import Tasks, example_of
from .upstream import EndpointConfig


class VerifiersEnvironment:
    """Plays episodes of verifiers in this process; its harness asks verifiers' server, which asks prl's gateway."""

    def __init__(self, name: str, env: Any, agent: str, tasks: Tasks) -> None:
        self.name = name
        self._env = env
        self._agent = agent
        self._tasks = tasks
        self._serving = Serving(env)

    def example(self, index: int) -> Example:
        """Return task `index` of the taskset, counted round and round where it ends."""
        return example_of(self.name, index, self._tasks[index])

    async def run(self, example: Example, endpoint: AgentEndpoint) -> AgentResult:
        """Play one episode; cancelling it ends the harness and what it runs in."""
        await self._serving.up()
        task = self._tasks[int(example.data["task"])]
        context = ModelContext(model=endpoint.model, client=EndpointConfig.of(endpoint))
        episode = await self._env.run_episode(task, context)
        return judged(episode, self._agent, where=f"environment {self.name!r}, task {example.id}")

    async def aclose(self) -> None:
        """End verifiers' servers, where a rollout started them."""
        await self._serving.close()


def create(options: VerifiersOptions) -> VerifiersEnvironment:
    """Create the environment; raise `ConfigError` where verifiers or the taskset refuses the options."""
    env, agent = make_env(options)
    taskset = str(options.taskset["id"])
    with foreign(f"the tasks of {taskset!r} cannot be read", f"{WHERE}: taskset, select"):
        tasks = Tasks(env.taskset.select(SelectConfig.model_validate(options.select)))
        _check_some(tasks)
    return VerifiersEnvironment(short_name(taskset), env, agent, tasks)


def _check_some(tasks: Tasks) -> None:
    try:
        tasks[0]
    except IndexError as error:
        raise ConfigError(
            "no task is selected", where=f"{WHERE}: taskset, select", next_step="select fewer away, or repair load()"
        ) from error
