"""Where re-tokenising breaks trajectories of any system, why, and what it costs in each client mode."""

from .audit import RECORDED, Audited, audit
from .breaks import AuditedBreak, Joined
from .modes import MODES, Sides
from .server import RendererServer, Server, TemplateServer
from .totals import ModeTotals, Totals

__all__ = [
    "MODES",
    "RECORDED",
    "Audited",
    "AuditedBreak",
    "Joined",
    "ModeTotals",
    "RendererServer",
    "Server",
    "Sides",
    "TemplateServer",
    "Totals",
    "audit",
]
