"""What prl learns from a finished episode: the reward, the metrics, or why there is none."""

from __future__ import annotations

from typing import Any

from prl.contracts import AgentResult
from prl.types import PrlError


class EpisodeError(PrlError):
    """An episode of verifiers failed, or cannot be trained on."""

    code = "verifiers"


def judged(episode: Any, agent: str, where: str) -> AgentResult:
    """Return how verifiers judged the one trace of `agent`; raise `EpisodeError` where it is no whole one."""
    _check_whole(episode, where)
    traces = [trace for trace in episode.traces if trace.agent.name == agent]
    if len(traces) != 1:
        raise EpisodeError(
            f"the episode ran agent {agent!r} {len(traces)} times, and each run has a reward of its own",
            where=where,
            next_step="choose an env (options.env.id) that runs it once; prl plays groups itself (group_size)",
        )
    [trace] = traces
    return AgentResult(reward=_reward(trace, where), metrics=_metrics(trace), output=_ended(trace))


def _check_whole(episode: Any, where: str) -> None:
    if episode.ok:
        return
    errors = [error for owner in (*episode.traces, episode) for error in owner.errors]
    if not errors:
        raise EpisodeError("the episode did not complete", where=where, next_step="see verifiers' log")
    raise EpisodeError(
        "; ".join(dict.fromkeys(f"{error.type}: {error.message}" for error in errors)),
        where=where,
        next_step="see which part failed: ProviderError is the model's address, HarnessError the agent's program, "
        "TaskError the taskset",
    )


def _reward(trace: Any, where: str) -> float:
    absent = sorted(name for name, reward in trace.rewards.items() if reward is None)
    if absent or not trace.rewards:
        what = f"the reward {absent[0]!r} was not computed" if absent else "the task has no reward"
        raise EpisodeError(
            f"{what} (the rollout ended by {trace.stop_condition!r})",
            where=where,
            next_step="give the task a method with @verifiers.v1.reward"
            if not absent
            else "raise the timeout of scoring (options.env.<agent>.timeout.scoring), or see why it takes so long",
        )
    return float(trace.reward)


def _metrics(trace: Any) -> dict[str, float]:
    """Return the task's metrics by name, each reward's score, and whether time ran out."""
    metrics = {name: float(value) for name, value in trace.metrics.items() if value is not None}
    scores = {f"rewards/{name}": float(reward.score) for name, reward in trace.rewards.items()}
    return {**metrics, **scores, "timed_out": float(trace.is_timeout)}


def _ended(trace: Any) -> str:
    return f"ended by {trace.stop_condition}"
