"""Play one rollout: a chat session with the engine on one side, an episode of an environment on the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from prl.contracts import ChatSession, ClientMode, Environment, Episode, Example, RolloutJob
from prl.types import Message, PromptTooLongError, Rollout, SamplingParams, ToolSpec, Turn

from .answers import check_step, in_time
from .schedule import Schedule


@dataclass(slots=True, kw_only=True)
class LiveRollout:
    """A rollout while it is played; what was sampled stays readable when the play fails half-way."""

    trajectory_id: str
    group_id: str
    environment: str
    example_id: str
    seed: int
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    turn_messages: list[int] = field(default_factory=list)
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    stop_reason: str = "max_turns"
    is_truncated: bool = False
    output: str = ""
    tools: tuple[ToolSpec, ...] = ()

    @property
    def where(self) -> str:
        """What is played, for errors."""
        return f"environment {self.environment!r}, example {self.example_id!r}, turn {len(self.turns)}"

    def finished(self, error: BaseException | None = None) -> Rollout:
        """Return the frozen rollout; with `error` it keeps its turns and says what broke."""
        return Rollout(
            trajectory_id=self.trajectory_id,
            turns=tuple(self.turns),
            reward=self.reward,
            environment=self.environment,
            example_id=self.example_id,
            group_id=self.group_id,
            stop_reason=self.stop_reason if error is None else "error",
            is_truncated=self.is_truncated,
            error=None if error is None else f"{type(error).__name__}: {error}",
            metrics=dict(self.metrics),
            messages=tuple(self.messages),
            turn_messages=tuple(self.turn_messages),
            output=self.output,
            tools=self.tools,
        )


def begin_rollout(job: RolloutJob, schedule: Schedule) -> LiveRollout:
    """Return the rollout of a job before its first turn: the same names and seed wherever it is played.

    The example goes by its number until it was asked for.
    """
    environment = schedule.environment(job.group)
    group = f"group-{job.group:06d}" if job.evaluation is None else f"eval-{job.evaluation}-{job.group:06d}"
    return LiveRollout(
        trajectory_id=f"{group}/{job.member:03d}",
        group_id=group,
        environment=environment.name,
        example_id=f"{environment.name}/{job.group}",
        seed=schedule.rollout_seed(job.group, job.member),
    )


class RolloutPlayer:
    """Plays rollouts of any environment through one client mode; `prepare` makes messages ready to be sent."""

    def __init__(
        self,
        mode: ClientMode,
        *,
        model: str,
        sampling: SamplingParams,
        max_turns: int | None = None,
        continue_truncated: bool = False,
        prepare: Callable[[Sequence[Message]], Awaitable[Sequence[Message]]] | None = None,
        environment_seconds: float | None = None,
    ) -> None:
        self.mode = mode
        self.model = model
        self.sampling = sampling
        self.max_turns = max_turns
        self.continue_truncated = continue_truncated
        self.prepare = prepare
        self.environment_seconds = environment_seconds

    async def play(self, live: LiveRollout, environment: Environment, example: Example, cache_salt: str) -> None:
        """Fill `live` with turns until the episode ends. The salt stays the same for the whole rollout."""
        session = self.mode.session(model=self.model, tools=environment.tools, cache_salt=cache_salt, seed=live.seed)
        episode = environment.start(example)
        fresh: Sequence[Message] = example.messages
        limit = environment.max_turns if self.max_turns is None else min(self.max_turns, environment.max_turns)
        for _ in range(limit):
            turn = await self._sample(session, live, fresh)
            if turn is None:
                return
            reply = await self._judge(episode, live, turn)
            if reply is None:
                return
            fresh = reply

    async def _sample(self, session: ChatSession, live: LiveRollout, fresh: Sequence[Message]) -> Turn | None:
        """Sample one turn; None where the prompt no longer fits: the earlier turns stay trainable.

        A task whose first prompt does not fit has nothing to train on and no reward: its error is raised.
        """
        if self.prepare is not None:
            fresh = await self.prepare(fresh)
        try:
            turn = await session.turn(fresh, self.sampling)
        except PromptTooLongError:
            if not live.turns:
                raise
            live.stop_reason, live.is_truncated = "prompt_too_long", True
            return None
        live.messages.extend([*fresh, turn.message])
        live.turn_messages.append(len(live.messages) - 1)
        live.turns.append(turn)
        return turn

    async def _judge(self, episode: Episode, live: LiveRollout, turn: Turn) -> Sequence[Message] | None:
        """Let the environment answer; return its messages, or None where the rollout ends."""
        answer = await in_time(episode.step(turn.message, turn.parsed), self.environment_seconds, live.where)
        result = check_step(answer, live.where)
        live.reward = result.reward
        live.metrics.update(result.metrics)
        cut = turn.finish_reason == "length"
        live.is_truncated = live.is_truncated or cut
        if result.done:
            live.stop_reason = "done"
            return None
        if cut and not self.continue_truncated:
            live.stop_reason = "length"
            return None
        return result.messages
