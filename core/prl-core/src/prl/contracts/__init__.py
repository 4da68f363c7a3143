"""What a plugin implements, one contract a file."""

from .attention import FEATURES, AttentionKernel, AttentionPasses, Scoring, Varlen
from .client import ChatSession, ClientMode, EngineClient, RoutedEngine, TokenChatClient, WeightReceiver, WeightRouter
from .engine import Engine
from .environment import (
    AgentEndpoint,
    AgentEnvironment,
    AgentResult,
    ClosableEnvironment,
    Demonstrator,
    Environment,
    Episode,
    Example,
    StepResult,
)
from .executor import RolloutExecutor, RolloutJob, RolloutWorker, WorkerSpec
from .filter import ExampleHistory, RolloutFilter
from .loss import Loss, LossInputs, LossResult, LossUnit
from .parser import CallView, PieceWriter, ReadCall, ReasoningCodec, ToolCodec
from .renderer import Renderer, StreamParser
from .sink import Sink

__all__ = [
    "FEATURES",
    "AgentEndpoint",
    "AgentEnvironment",
    "AgentResult",
    "AttentionKernel",
    "AttentionPasses",
    "CallView",
    "ChatSession",
    "ClientMode",
    "ClosableEnvironment",
    "Demonstrator",
    "Engine",
    "EngineClient",
    "Environment",
    "Episode",
    "Example",
    "ExampleHistory",
    "Loss",
    "LossInputs",
    "LossResult",
    "LossUnit",
    "PieceWriter",
    "ReadCall",
    "ReasoningCodec",
    "Renderer",
    "RolloutExecutor",
    "RolloutFilter",
    "RolloutJob",
    "RolloutWorker",
    "RoutedEngine",
    "Scoring",
    "Sink",
    "StepResult",
    "StreamParser",
    "TokenChatClient",
    "ToolCodec",
    "Varlen",
    "WeightReceiver",
    "WeightRouter",
    "WorkerSpec",
]
