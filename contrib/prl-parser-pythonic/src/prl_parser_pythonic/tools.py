"""The list of Python calls, written and read.

The format is that of Llama 3.2's and Llama 4's prompts for zero-shot function calling: one list, a call for each
element, keyword arguments only.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from prl.contracts import CallView, PieceWriter, ReadCall
from prl.types import ToolSpec
from prl_parser_pythonic.literals import NotALiteralError, read_literal, write_literal
from prl_parser_pythonic.options import PythonicOptions
from prl_parser_pythonic.scan import is_open, split_calls

_CALL = re.compile(r"\s*([^\W\d][\w.-]*)\s*\((.*)\)\s*", re.DOTALL)
_LOOKS_LIKE_A_CALL = re.compile(r"\s*[^\W\d][\w.-]*\(")
_LONGEST = 200_000
_FILE = "<pythonic call>"

# A model's text may hold escapes that Python warns about; the filter is for this text alone, and set once, since
# `catch_warnings` is not safe between threads.
warnings.filterwarnings("ignore", message="invalid (escape|decimal)", module=re.escape(_FILE))


class PythonicCalls:
    """`[name(key='text', other=3), ...]`; each element becomes one call."""

    open = "["
    close = "]"
    needs_close = True

    def write(self, out: PieceWriter, calls: Sequence[CallView], *, after_text: bool) -> None:
        """Write all calls of one turn as one list."""
        if not calls:
            return
        out.control(self.open)
        for n, call in enumerate(calls):
            if n:
                out.text(", ")
            out.value(call.name)
            out.text("(")
            out.value(_write_arguments(call.arguments))
            out.text(")")
        out.control(self.close)

    def read(self, region: str, tools: Sequence[ToolSpec] | None) -> list[ReadCall]:
        """Read every call of the list; one that is malformed comes back with its error."""
        if len(region) > _LONGEST:
            return [ReadCall(region, error=f"longer than {_LONGEST} characters")]
        return [_read_call(text, tools) for text in split_calls(region)] or [ReadCall(region, error="an empty list")]

    def is_inside_value(self, region: str) -> bool:
        """Whether a string or a bracket is open."""
        return is_open(region)

    def is_call(self, region: str) -> bool:
        """Whether the brackets hold calls: a name and a parenthesis. Others, as in `see [1]`, are text."""
        return _LOOKS_LIKE_A_CALL.match(region) is not None

    def trim_before(self, space: str) -> str:
        """Remove nothing: nothing is written before the list."""
        return space


def _write_arguments(arguments: dict[str, Any] | str) -> str:
    """Write keyword arguments; those whose names are no Python names go into one `**{...}` at the end."""
    if isinstance(arguments, str):
        return arguments
    plain = [f"{key}={write_literal(value)}" for key, value in arguments.items() if _is_keyword(key)]
    odd = {key: value for key, value in arguments.items() if not _is_keyword(key)}
    return ", ".join([*plain, f"**{write_literal(odd)}"] if odd else plain)


def _is_keyword(name: str) -> bool:
    """Whether Python takes a name as a keyword argument, and gives it back as it was written."""
    try:
        tree = ast.parse(f"f({name}=1)", mode="eval").body
    except (SyntaxError, ValueError):
        return False
    return isinstance(tree, ast.Call) and [keyword.arg for keyword in tree.keywords] == [name]


def _read_call(text: str, tools: Sequence[ToolSpec] | None) -> ReadCall:
    shape = _CALL.fullmatch(text)
    if shape is None:
        return ReadCall(text, error="expected name(key=value, ...)")
    name, inside = shape.groups()
    try:
        pairs = list(_arguments(_parse(inside), _parameters(tools, name)))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        return ReadCall(text, error=f"{type(error).__name__}: {error}")
    arguments = dict(pairs)
    if len(arguments) != len(pairs):
        return ReadCall(text, error="an argument is given twice")
    return ReadCall(text, name, arguments)


def _parse(inside: str) -> ast.Call:
    """Parse an argument list; the name stands outside, since tool names need not be Python names."""
    tree = ast.parse(f"f({inside}\n)", filename=_FILE, mode="eval").body
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise NotALiteralError("the parentheses do not hold one call's arguments")
    return tree


def _arguments(tree: ast.Call, parameters: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield names and values; positional arguments take the names that the tool's schema lists, in its order."""
    if len(tree.args) > len(parameters):
        raise NotALiteralError("an argument has no name, and no schema names it")
    for name, node in zip(parameters, tree.args, strict=False):
        yield name, read_literal(node)
    for keyword in tree.keywords:
        value = read_literal(keyword.value)
        if keyword.arg is not None:
            yield keyword.arg, value
        elif isinstance(value, dict):
            yield from value.items()
        else:
            raise NotALiteralError("** stands before something that is no dict")


def _parameters(tools: Sequence[ToolSpec] | None, name: str) -> list[str]:
    for tool in tools or ():
        function = tool.get("function", tool)
        if function.get("name") == name:
            return list((function.get("parameters") or {}).get("properties") or ())
    return []


def create(options: PythonicOptions) -> PythonicCalls:
    """Create the `pythonic` tool parser."""
    return PythonicCalls()
