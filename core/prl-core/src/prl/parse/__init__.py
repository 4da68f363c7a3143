"""Reading completions: lexer, state machine, call regions, and helpers for codecs."""

from .grammar import Grammar, Mark, ReasoningState
from .json_calls import CallSyntaxError, is_inside_string, load_object
from .schema import coerce_text, parameter_schema
from .stream import CompletionParser

__all__ = [
    "CallSyntaxError",
    "CompletionParser",
    "Grammar",
    "Mark",
    "ReasoningState",
    "coerce_text",
    "is_inside_string",
    "load_object",
    "parameter_schema",
]
