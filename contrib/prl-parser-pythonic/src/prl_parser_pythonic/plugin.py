"""What this distribution offers. Imports nothing of it."""

from __future__ import annotations

from prl.plugin import ToolParserEntry, hookimpl


@hookimpl
def prl_tool_parsers() -> list[ToolParserEntry]:
    """Offer the list of Python calls."""
    return [
        ToolParserEntry(
            name="pythonic",
            target="prl_parser_pythonic.tools:create",
            options="prl_parser_pythonic.options:PythonicOptions",
            summary="A list of Python calls: [f(a=1), g(b='x')] (Llama 3.2, Llama 4)",
        )
    ]
