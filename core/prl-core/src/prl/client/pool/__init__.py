"""Several engines behind one client: fixed addresses, or those that a name resolves to while the run goes on."""

from __future__ import annotations

from .connect import Connect, HttpConnect
from .discovery import Discovery, DnsDiscovery, FixedAddresses
from .member import Lane, Member, MemberStatus
from .pool import EnginePool
from .roster import PoolSettings
from .session import PoolSession

__all__ = [
    "Connect",
    "Discovery",
    "DnsDiscovery",
    "EnginePool",
    "FixedAddresses",
    "HttpConnect",
    "Lane",
    "Member",
    "MemberStatus",
    "PoolSession",
    "PoolSettings",
]
