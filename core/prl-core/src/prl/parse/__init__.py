"""Reading completions: lexer, state machine, call regions, and helpers for codecs."""

from .grammar import Grammar, Mark, ReasoningState
from .json_calls import CallSyntaxError, is_inside_string, load_arguments, load_object, load_value, read_named_call
from .lexer import Event, Lexer
from .reasoning import TaggedReasoning
from .schema import coerce_text, parameter_schema
from .stream import CompletionParser
from .xml_calls import TaggedCalls, is_inside_parameter, read_functions, write_function

__all__ = [
    "CallSyntaxError",
    "CompletionParser",
    "Event",
    "Grammar",
    "Lexer",
    "Mark",
    "ReasoningState",
    "TaggedCalls",
    "TaggedReasoning",
    "coerce_text",
    "is_inside_parameter",
    "is_inside_string",
    "load_arguments",
    "load_object",
    "load_value",
    "parameter_schema",
    "read_functions",
    "read_named_call",
    "write_function",
]
