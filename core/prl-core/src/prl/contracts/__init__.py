"""What a plugin implements, one contract a file."""

from .attention import AttentionKernel
from .client import ChatSession, ClientMode, EngineClient, RoutedEngine, TokenChatClient
from .engine import Engine
from .environment import Demonstrator, Environment, Episode, Example, StepResult
from .parser import CallView, PieceWriter, ReadCall, ReasoningCodec, ToolCodec
from .renderer import Renderer, StreamParser
from .sink import Sink

__all__ = [
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
    "RoutedEngine",
    "Sink",
    "StepResult",
    "StreamParser",
    "TokenChatClient",
    "ToolCodec",
]
