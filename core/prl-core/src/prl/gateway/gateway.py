"""`Gateway`: an OpenAI-compatible address in front of an engine, which records exact tokens."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from prl.contracts import EngineClient, Renderer
from prl.types import ConfigError, PrlError, SamplingParams

from .export import RolloutFile, rollout_record, summary
from .faults import GatewayFault, unauthorized
from .http import Routes, import_web
from .journal import FORMAT, Head, Journal, SessionFile
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
        self._journal = Journal(self.settings.out, model=model, renderer=renderer.name) if self.settings.out else None
        self._unwritten: list[tuple[dict[str, Any], SessionFile | None]] = []
        self._writing = asyncio.Lock()
        self._runner: Any = None
        self._reaper: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[Any]] = set()
        self.restored = 0

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Take up open sessions, listen; return the base URL, which ends in /v1.

        Port 0 takes a free one. Raises `ConfigError` for a taken one, and for open sessions that cannot go on.
        """
        web = import_web()
        self._restore()
        runner = web.AppRunner(
            Routes(self).application(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=GRACE,
            keepalive_timeout=self.settings.read_seconds,
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

    async def close(self, *, keep_open: bool = False) -> None:
        """End all sessions, write what they recorded, stop listening. The engine's client stays open.

        With `keep_open` and an output, open sessions are not ended: the next gateway on the output goes on with them.
        Raises `ConfigError` where rollouts could not be written.
        """
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
            self._reaper = None
        if self._runner is not None:
            for site in list(self._runner.sites):
                await site.stop()
        if keep_open and self._journal is not None:
            await asyncio.gather(*(session.leave() for session in self._sessions.values()))
        else:
            await self.end_all()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await asyncio.gather(*self._ending, return_exceptions=True)
        try:
            await self._write([])
        finally:
            if self._journal is not None:
                self._journal.close()
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
        space = self._own_space(key_digest(key))
        return self._add(space, api_key=key, own=Sampling(forced=forced, seed=seed, cache_salt=cache_salt))

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
        records = await self._end([self._session(session_id)])
        if not records:  # someone else ended it at the same moment
            raise _no_session(session_id)
        return records[0]

    async def end_all(self) -> list[dict[str, Any]]:
        """End every session as `end` does."""
        return await self._end(list(self._sessions.values()))

    def _session(self, session_id: str) -> GatewaySession:
        session = self._sessions.get(session_id)
        if session is None:
            raise _no_session(session_id)
        return session

    def _space(self, key: bytes, name: str) -> Space:
        return Space(key, name, self._sampler, self._add, is_single=bool(name))

    def _own_space(self, key: bytes) -> Space:
        return Space(key, "", self._sampler, self._add, is_single=True)

    def _add(self, space: Space, *, own: Sampling | None = None, api_key: str = "") -> GatewaySession:
        if len(self._sessions) >= self.settings.max_sessions:
            raise GatewayFault(
                f"{len(self._sessions)} sessions are open, which is the limit",
                status=429,
                fault="too_many_sessions",
                next_step="end sessions (DELETE /v1/rollouts/ID), or raise max_sessions",
            )
        head = Head(
            format=FORMAT,
            id=uuid.uuid4().hex,
            key=space.key,
            name=space.name,
            started=time.time(),
            model=self.model,
            renderer=self._sampler.renderer.name,
            own=own,
        )
        return self._open(space, head, self._journal.file(head) if self._journal else None, api_key)

    def _open(self, space: Space, head: Head, file: SessionFile | None, api_key: str = "") -> GatewaySession:
        session = GatewaySession(
            self._engine,
            self._sampler,
            space.book,
            head,
            file=file,
            api_key=api_key,
            sampling=head.own or Sampling(forced=self.settings.sampling),
            on_close=partial(self._forget, space),
        )
        self._sessions[session.id] = session
        space.sessions.append(session)
        if head.own is not None:
            self.spaces.open(space)
        return session

    def _restore(self) -> None:
        """Take up the sessions that an earlier process left open, but for one that it had just written."""
        if self._journal is None or self._file is None:
            return
        written = self._file.last_id()
        for file, lines in self._journal.read():
            head = file.head
            if head.id == written:
                file.remove()
                continue
            space = self.spaces.named(head.key, head.name) if head.own is None else self._own_space(head.key)
            self._open(space, head, file).restore(lines, space.retries)
        self.restored = len(self._sessions)

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
            records.append((await self._record(session), session.file))
        await self._write([one for one in records if one[0]["turns"]])
        return [record for record, _ in records]

    async def _write(self, records: list[tuple[dict[str, Any], SessionFile | None]]) -> None:
        """Append records, and those that could not be written before; keep what cannot be written now.

        A session's file is removed before the next record is appended: after a crash, only the last one of the output
        can have its file left.
        """
        if self._file is None:
            return
        self._unwritten += records
        async with self._writing:
            while self._unwritten:
                record, kept = self._unwritten[0]
                await asyncio.to_thread(self._file.append, record)
                del self._unwritten[0]
                if kept is not None:
                    await asyncio.to_thread(kept.remove)

    async def _reap(self) -> None:
        """End sessions that nobody uses any more.

        Without an output they stay, since ending them would lose them; opened ones are ended by who opened them.
        """
        idle = self.settings.idle_seconds
        while self._file is not None:
            await asyncio.sleep(min(LONGEST_NAP, idle / 4))
            try:
                for session in list(self._sessions.values()):  # one by one: the next may be used again meanwhile
                    if session.is_idle(idle) and not session.api_key:
                        await self._end([session])
            except PrlError as error:
                log.error("%s", error)


def _no_session(session_id: str) -> GatewayFault:
    return GatewayFault(
        f"there is no open session {session_id!r}",
        status=404,
        fault="session_not_found",
        next_step="GET /v1/rollouts lists those that are open",
    )


def _printed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
