"""What a plugin implements, one contract a file."""

from .attention import AttentionKernel
from .client import ChatSession, ClientMode, EngineClient, RoutedEngine, TokenChatClient
from .engine import Engine
from .environment import (
    AgentEndpoint,
    AgentEnvironment,
    AgentResult,
    Demonstrator,
    Environment,
    Episode,
    Example,
    StepResult,
)
from .executor import RolloutExecutor, RolloutJob, RolloutWorker, WorkerSpec
from .filter import RolloutFilter
from .parser import CallView, PieceWriter, ReadCall, ReasoningCodec, ToolCodec
from .renderer import Renderer, StreamParser
from .sink import Sink

__all__ = [
    "AgentEndpoint",
    "AgentEnvironment",
    "AgentResult",
    "AttentionKernel",
    "CallView",
    "ChatSession",
    "ClientMode",
    "Demonstrator",
    "Engine",
    "EngineClient",
    "Environment",
    "Episode",
    "Example",
    "PieceWriter",
    "ReadCall",
    "ReasoningCodec",
    "Renderer",
    "RolloutExecutor",
    "RolloutFilter",
    "RolloutJob",
    "RolloutWorker",
    "RoutedEngine",
    "Sink",
    "StepResult",
    "StreamParser",
    "TokenChatClient",
    "ToolCodec",
    "WorkerSpec",
]
