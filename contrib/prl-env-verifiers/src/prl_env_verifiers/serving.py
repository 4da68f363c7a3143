"""What an environment of verifiers holds while it is played: its interception and its tasksets' shared tools."""

from __future__ import annotations

import asyncio
from typing import Any

from verifiers.v1.interception import Interception

from prl.types import ConfigError

from .upstream import EndpointInterception


class Serving:
    """Up from the first rollout until it is closed.

    One task of its own enters and leaves: tools' connections must end in the task that began them, and a rollout that
    is cancelled while all wait takes nothing down.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._ready = asyncio.Event()
        self._end = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def up(self) -> None:
        """Wait until it serves; raise what keeps it from that. The next call tries anew."""
        if self._task is None or self._task.done():
            self._ready, self._end = asyncio.Event(), asyncio.Event()
            self._task = asyncio.create_task(self._serve(self._ready, self._end))
        if self._ready.is_set():
            return
        task, ready = self._task, asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({ready, task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if task.done():
            task.result()

    async def close(self) -> None:
        """End what serves; raise what fails at that. What kept it from serving was told by `up`."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            self._end.set()
            await task

    async def _serve(self, ready: asyncio.Event, end: asyncio.Event) -> None:
        async with self._env.serving():
            # The only place where verifiers says who hands out slots; it forgets it when it stops serving.
            inner = getattr(self._env, "_interception", None)
            if not isinstance(inner, Interception):
                raise ConfigError(
                    "this version of verifiers keeps its interception elsewhere",
                    where="prl_env_verifiers.serving",
                    next_step="install a version that prl-env-verifiers allows: verifiers>=0.4,<0.5",
                )
            self._env._interception = EndpointInterception(inner)
            ready.set()
            await end.wait()
