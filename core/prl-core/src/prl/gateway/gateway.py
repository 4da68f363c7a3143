"""`Gateway`: an OpenAI-compatible address in front of an engine, which records exact tokens."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from prl.contracts import EngineClient, Renderer
from prl.types import ConfigError, PrlError, SamplingParams

from .export import RolloutFile, rollout_record, summary
from .faults import GatewayFault, unauthorized
from .http import Routes, import_web
from .sampler import Sampler, Sampling
from .sampling import forced_fields
from .session import GatewaySession
from .settings import GatewaySettings
from .spaces import Space, Spaces, bearer_token, is_key, key_digest

log = logging.getLogger(__name__)

LONGEST_NAP = 30.0
GRACE = 1.0  # seconds that open connections get when the gateway closes


class Gateway:
    """Serves any agent that knows an OpenAI base URL, and records its turns as they were sampled.

    Each key made by `open_session` is one rollout. Under `settings.api_keys`, each name that a client gives (the header
    `X-PRL-Session`, or `KEY:NAME` as its key) is one; without a name each conversation is one.
    """

    def __init__(
        self, engine: EngineClient, renderer: Renderer, *, model: str, settings: GatewaySettings | None = None
    ) -> None:
        self.settings = settings or GatewaySettings()
        self.model = model
        self.spaces = Spaces(self.settings.api_keys, self._space)
        self._engine = engine
        self._sampler = Sampler(renderer, model=model, thread_above=self.settings.thread_above)
        self._sessions: dict[str, GatewaySession] = {}
        self._file = RolloutFile(self.settings.out) if self.settings.out else None
        self._unwritten: list[dict[str, Any]] = []
        self._writing = asyncio.Lock()
        self._runner: Any = None
        self._reaper: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[Any]] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen; return the base URL, which ends in /v1. Port 0 takes a free one; a taken one is a `ConfigError`."""
        web = import_web()
        runner = web.AppRunner(
            Routes(self).application(), access_log=None, handler_cancellation=True, shutdown_timeout=GRACE
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(
                f"the gateway cannot listen: {error.strerror or error}",
                where=f"{host}:{port}",
                next_step="give a free port, or 0 for any",
            ) from error
        self._runner = runner
        self._reaper = asyncio.create_task(self._reap())
        return f"http://{_printed(host)}:{runner.addresses[0][1]}/v1"

    async def close(self) -> None:
        """End all sessions, write what they recorded, stop listening. The engine's client stays open.

        Raises `ConfigError` where rollouts could not be written.
        """
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
            self._reaper = None
        if self._runner is not None:
            for site in list(self._runner.sites):
                await site.stop()
        await self.end_all()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await asyncio.gather(*self._ending, return_exceptions=True)
        try:
            await self._write([])
        finally:
            if self._file is not None:
                self._file.close()

    def open_session(
        self, *, sampling: SamplingParams | None = None, seed: int | None = None, cache_salt: str | None = None
    ) -> GatewaySession:
        """Make a key of its own for one rollout; all that is asked with it is recorded in the session.

        `sampling` beats what the agent asks for: its temperature, top_p, top_k and min_tokens, its seed and stop ids
        where they are set, and `max_tokens` as a limit. `seed` gives every turn its own seed, whatever the agent asks.
        """
        key = f"prl-{secrets.token_urlsafe(32)}"
        forced = {**self.settings.sampling, **forced_fields(sampling)}
        space = Space(key_digest(key), "", self._sampler, self._new_session, is_single=True)
        session = self._add(space, api_key=key, sampling=Sampling(forced=forced, seed=seed, cache_salt=cache_salt))
        space.sessions.append(session)
        self.spaces.open(space)
        return session

    async def health(self) -> bool:
        """Whether the engine answers."""
        return await self._engine.health()

    async def card(self) -> dict[str, Any]:
        """Return the model's card, with the engine's context where it says."""
        cards = {str(card["id"]): card for card in await self._engine.models()}
        length = cards.get(self.model, {}).get("max_model_len")
        card = {"id": self.model, "object": "model", "created": 0, "owned_by": "prl"}
        return card if length is None else {**card, "max_model_len": length}

    def check_model(self, model: str) -> None:
        """Raise `GatewayFault` (404) for another model than the one that is served."""
        if model != self.model:
            raise GatewayFault(
                f"the model {model!r} is not served here",
                status=404,
                fault="model_not_found",
                param="model",
                next_step=f"ask for {self.model!r}",
            )

    def check_operator(self, headers: Mapping[str, str]) -> None:
        """Raise `GatewayFault` (401) unless the key is the operator's."""
        key = self.settings.operator_key
        if key is None or not is_key(bearer_token(headers), key):
            raise unauthorized()

    def summaries(self) -> list[dict[str, Any]]:
        """Return a line for every open session."""
        return [summary(session) for session in self._sessions.values()]

    async def export(self, session_id: str) -> dict[str, Any]:
        """Return the record of an open session."""
        return await self._record(self._session(session_id))

    async def end(self, session_id: str) -> dict[str, Any]:
        """End a session, append it to the output, return its record."""
        [record] = await self._end([self._session(session_id)])
        return record

    async def end_all(self) -> list[dict[str, Any]]:
        """End every session as `end` does."""
        return await self._end(list(self._sessions.values()))

    def _session(self, session_id: str) -> GatewaySession:
        session = self._sessions.get(session_id)
        if session is None:
            raise GatewayFault(
                f"there is no open session {session_id!r}",
                status=404,
                fault="session_not_found",
                next_step="GET /v1/rollouts lists those that are open",
            )
        return session

    def _space(self, key: bytes, name: str) -> Space:
        return Space(key, name, self._sampler, self._new_session, is_single=bool(name))

    def _new_session(self, space: Space) -> GatewaySession:
        return self._add(space, sampling=Sampling(forced=self.settings.sampling))

    def _add(self, space: Space, *, sampling: Sampling, api_key: str = "") -> GatewaySession:
        if len(self._sessions) >= self.settings.max_sessions:
            raise GatewayFault(
                f"{len(self._sessions)} sessions are open, which is the limit",
                status=429,
                fault="too_many_sessions",
                next_step="end sessions (DELETE /v1/rollouts/ID), or raise max_sessions",
            )
        session = GatewaySession(
            self._engine,
            self._sampler,
            space.book,
            name=space.name,
            api_key=api_key,
            sampling=sampling,
            on_close=partial(self._forget, space),
        )
        self._sessions[session.id] = session
        return session

    def _forget(self, space: Space, session: GatewaySession) -> None:
        self._sessions.pop(session.id, None)
        self.spaces.forget(space, session)

    async def _record(self, session: GatewaySession) -> dict[str, Any]:
        sampler = self._sampler
        return await asyncio.to_thread(
            rollout_record, session, model=self.model, renderer=sampler.renderer.name, decode=sampler.decode
        )

    async def _end(self, sessions: Iterable[GatewaySession]) -> list[dict[str, Any]]:
        """End sessions and write them, also where who asked for it goes away meanwhile: what is closed must be kept."""
        task = asyncio.create_task(self._finish(list(sessions)))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return await asyncio.shield(task)

    async def _finish(self, sessions: Iterable[GatewaySession]) -> list[dict[str, Any]]:
        records = []
        for session in sessions:
            if session.is_closed:  # meanwhile, by someone else, who has its record
                continue
            await session.close()
            records.append(await self._record(session))
        await self._write([record for record in records if record["turns"]])
        return records

    async def _write(self, records: list[dict[str, Any]]) -> None:
        """Append records, and those that could not be written before; keep what cannot be written now."""
        if self._file is None:
            return
        self._unwritten += records
        async with self._writing:
            while self._unwritten:
                await asyncio.to_thread(self._file.append, self._unwritten[0])
                del self._unwritten[0]

    async def _reap(self) -> None:
        """End sessions that nobody uses any more.

        Without an output they stay, since ending them would lose them; opened ones are ended by who opened them.
        """
        idle = self.settings.idle_seconds
        while self._file is not None:
            await asyncio.sleep(min(LONGEST_NAP, idle / 4))
            try:
                await self._end([one for one in list(self._sessions.values()) if one.is_idle(idle) and not one.api_key])
            except PrlError as error:
                log.error("%s", error)


def _printed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
