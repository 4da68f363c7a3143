"""Who may see what: each key, and each name under a key, is a space that no other can read or extend."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping

from .answer import Completion
from .body import ChatRequest
from .book import Book, Match
from .faults import GatewayFault, unauthorized
from .retries import Asked, Retries
from .sampler import Sampler
from .session import GatewaySession
from .settings import SEPARATOR

SESSION_HEADER = "X-PRL-Session"
LONGEST_NAME = 256

NewSession = Callable[["Space"], GatewaySession]


class Space:
    """One place of conversations.

    A named one is one session: all that is asked there is one rollout. An unnamed one holds a session for each
    conversation: a request that goes on from no answer given before begins a new one.
    """

    def __init__(self, key: bytes, name: str, sampler: Sampler, new_session: NewSession, *, is_single: bool) -> None:
        self.key = key
        self.name = name
        self.book = Book()
        self.retries = Retries(_note_delivered)
        self.sessions: list[GatewaySession] = []
        self._sampler = sampler
        self._new_session = new_session
        self._is_single = is_single

    async def complete(self, request: ChatRequest, asked: Asked) -> Completion:
        """Answer a request in the session that it belongs to."""
        request = self._sampler.understood(request)
        match = self.book.find(request)
        session = self._session_of(match)
        try:
            nodes = await session.complete(request, match, asked)
        finally:
            session.drop_if_unused()
        return Completion.of(request, nodes, self._sampler.decode)

    def _session_of(self, match: Match) -> GatewaySession:
        if match.node is not None:
            return match.node.session
        if self._is_single and self.sessions:
            return self.sessions[0]
        return self._new_session(self)


def _note_delivered(asked: Asked) -> None:
    asked.task.result().nodes[0].session.delivered(asked)


class Spaces:
    """All spaces by the key and the name that open them. Keys are looked up and compared by their digests only."""

    def __init__(self, keys: Iterable[str], make: Callable[[bytes, str], Space]) -> None:
        self._shared = {key_digest(key) for key in keys}
        self._make = make
        self._named: dict[tuple[bytes, str], Space] = {}
        self._own: dict[bytes, Space] = {}

    def check(self, headers: Mapping[str, str]) -> tuple[bytes, str]:
        """Return a request's key (its digest) and the name after it; raise `GatewayFault` (401) for a wrong key."""
        token = bearer_token(headers)
        own = key_digest(token)
        if own in self._own:
            return own, ""
        key, _, name = token.partition(SEPARATOR)
        digest = key_digest(key)
        if not any(hmac.compare_digest(digest, known) for known in self._shared):
            raise unauthorized()
        return digest, name

    def find(self, headers: Mapping[str, str]) -> Space:
        """Return the space that a request's key and name open; a name of its own key says nothing."""
        key, suffix = self.check(headers)
        own = self._own.get(key)
        if own is not None:
            return own
        return self.named(key, _checked_name(headers.get(SESSION_HEADER) or suffix))

    def named(self, key: bytes, name: str) -> Space:
        """Return the space of a shared key and a name."""
        space = self._named.get((key, name))
        if space is None:
            space = self._named[key, name] = self._make(key, name)
        return space

    def open(self, space: Space) -> None:
        """Let a new key open a space of its own."""
        self._own[space.key] = space

    def forget(self, space: Space, session: GatewaySession) -> None:
        """Drop a session, and with it a key of its own."""
        space.sessions.remove(session)
        space.retries.forget(lambda completion: completion.nodes[0].session is session)
        self._own.pop(space.key, None)
        self.tidy(space)

    def tidy(self, space: Space) -> None:
        """Drop a named space that holds nothing, so that requests which fail leave nothing behind."""
        place = (space.key, space.name)
        if not space.sessions and not space.retries.is_busy and self._named.get(place) is space:
            del self._named[place]  # and not the one that came after it


def bearer_token(headers: Mapping[str, str]) -> str:
    """Return the token of `Authorization: Bearer`; raise `GatewayFault` (401) where there is none."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise unauthorized()
    return token.strip()


def is_key(token: str, key: str) -> bool:
    """Compare a token with a key in a time that says nothing of the key."""
    return hmac.compare_digest(key_digest(token), key_digest(key))


def key_digest(key: str) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _checked_name(name: str) -> str:
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise GatewayFault(
            f"the session's name is longer than {LONGEST_NAME} characters, or not printable",
            param=SESSION_HEADER,
            next_step="use a short name",
        )
    return name
