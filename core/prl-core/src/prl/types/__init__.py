"""Frozen data that crosses rooms and processes."""

from .errors import (
    AlignmentError,
    ConfigError,
    EngineError,
    EngineUnavailableError,
    EngineUnreachableError,
    MalformedRequestError,
    MalformedResponseError,
    MaskUnavailableError,
    PluginError,
    PrlError,
    PromptTooLongError,
    RenderError,
    RequestAbortedError,
    TokenizerError,
    close_names,
)
from .generate import EncodedIds, GenerateChoice, GenerateRequest, GenerateResponse, SamplingParams
from .messages import FunctionCall, Message, ToolCall, ToolSpec
from .parsed import InvalidToolCall, ParseDelta, ParsedResponse, ParsedToolCall, arguments_json
from .rendered import NO_MESSAGE, Kind, RenderedTokens, Span
from .rollout import Break, BreakCause, Rollout, Turn
from .sample import MicroBatch, TrainingSample

__all__ = [
    "NO_MESSAGE",
    "AlignmentError",
    "Break",
    "BreakCause",
    "ConfigError",
    "EncodedIds",
    "EngineError",
    "EngineUnavailableError",
    "EngineUnreachableError",
    "FunctionCall",
    "GenerateChoice",
    "GenerateRequest",
    "GenerateResponse",
    "InvalidToolCall",
    "Kind",
    "MalformedRequestError",
    "MalformedResponseError",
    "MaskUnavailableError",
    "Message",
    "MicroBatch",
    "ParseDelta",
    "ParsedResponse",
    "ParsedToolCall",
    "PluginError",
    "PrlError",
    "PromptTooLongError",
    "RenderError",
    "RenderedTokens",
    "RequestAbortedError",
    "Rollout",
    "SamplingParams",
    "Span",
    "TokenizerError",
    "ToolCall",
    "ToolSpec",
    "TrainingSample",
    "Turn",
    "arguments_json",
    "close_names",
]
