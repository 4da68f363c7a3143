"""Rendering: conversations to pieces, pieces to runs, runs to tokens with spans; the bridge between turns."""

from .conversation import Conversation, MessageView, Part, SampledTurn, bad_message, dump_json, mapping_arguments
from .format import ChatFormat
from .json_text import write_json
from .options import RendererOptions
from .proof import proven_bridge
from .renderer import ChatRenderer
from .writer import Writer

__all__ = [
    "ChatFormat",
    "ChatRenderer",
    "Conversation",
    "MessageView",
    "Part",
    "RendererOptions",
    "SampledTurn",
    "Writer",
    "bad_message",
    "dump_json",
    "mapping_arguments",
    "proven_bridge",
    "write_json",
]
