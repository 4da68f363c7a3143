"""Function tools as TypeScript declarations, as the vendor's encoder (openai-harmony) writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from prl.render import write_json
from prl.types import RenderError, ToolSpec

_NAMES = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}
_ABSENT = object()


def function_of(tool: ToolSpec, number: int) -> Mapping[str, Any]:
    """Return the function of a tool in OpenAI form, or of a bare one; raise `RenderError` if it has none."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise bad_tool(number, "has no function with a name")
    return function


def bad_tool(number: int, problem: str) -> RenderError:
    """Return a `RenderError` for the caller's tool `number`."""
    return RenderError(
        f"tool {number} {problem}",
        where=f"tools[{number}]",
        next_step="give each tool as {'type': 'function', 'function': {'name': ..., 'description': ...}}",
    )


def declare_functions(tools: Sequence[ToolSpec]) -> str:
    """Return the namespace `functions` with one type for each tool."""
    lines = ["## functions", "", "namespace functions {", ""]
    for number, tool in enumerate(tools):
        function = function_of(tool, number)
        lines += [f"// {line}" for line in _lines(_text(function.get("description")) or "")]
        parameters = function.get("parameters")
        taken = "()" if parameters is None else f"(_: {declare_type(parameters, '')})"
        lines += [f"type {function['name']} = {taken} => any;", ""]
    return "\n".join([*lines, "} // namespace functions"])


def declare_type(schema: Any, indent: str) -> str:
    """Return the type that a JSON schema describes."""
    variants = _get(schema, "oneOf")
    if isinstance(variants, list):
        return "".join(f"\n{indent} | {_variant(variant, indent)}{_remarks(variant)}" for variant in variants)
    kind = _get(schema, "type")
    if isinstance(kind, list):
        kinds = ["number" if one == "integer" else one for one in kind if isinstance(one, str)]
        return " | ".join(kinds) if kinds else "any"
    if kind == "object":
        return _object(schema, indent)
    if kind == "array":
        items = _get(schema, "items")
        return "Array<any>" if items is _ABSENT else f"{declare_type(items, indent)}[]"
    if kind == "string":
        values = _get(schema, "enum")
        words = [f'"{value}"' for value in values if isinstance(value, str)] if isinstance(values, list) else []
        return " | ".join(words) or "string"
    return _NAMES.get(kind, "any") if isinstance(kind, str) else "any"


def _object(schema: Any, indent: str) -> str:
    description = _text(_get(schema, "description"))
    head = "" if description is None else f"{indent}// {description}\n"
    properties, required = _get(schema, "properties"), _get(schema, "required")
    named = properties.items() if isinstance(properties, Mapping) else ()
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    body = "".join(_property(f"{key}{'' if key in needed else '?'}", value, indent) for key, value in named)
    return f"{head}{{\n{body}{indent}}}"


def _property(name: str, schema: Any, indent: str) -> str:
    """Return one property: title, description and examples above it, its default behind it."""
    remarks = []
    title, examples = _text(_get(schema, "title")), _get(schema, "examples")
    has_union = _get(schema, "oneOf") is not _ABSENT
    description = _text(_get(schema, "description"))
    if title is not None:
        remarks += [title, None]
    if description is not None and not has_union:
        remarks.append(description)
    if isinstance(examples, list) and examples:
        remarks += ["Examples:", *(f'- "{example}"' for example in examples if isinstance(example, str))]
    above = "".join(f"{indent}//\n" if remark is None else f"{indent}// {remark}\n" for remark in remarks)
    if isinstance(_get(schema, "oneOf"), list):
        return above + _union_property(name, schema, description, indent)
    default = "" if has_union else _default(schema, quote_enum=False)
    return f"{above}{indent}{name}: {_nullable(schema, indent + '    ')},{default and ' // ' + default}\n"


def _union_property(name: str, schema: Any, description: str | None, indent: str) -> str:
    """Return a property of several variants, one a line; a description that the first one repeats is not written."""
    variants = schema["oneOf"]
    above = description is not None and not (variants and _text(_get(variants[0], "description")) == description)
    out = f"{indent}// {description}\n" if above else ""
    default = _default(schema, quote_enum=False)
    out += f"{indent}// {default}\n" if default else ""
    out += f"{indent}{name}:\n"
    for number, variant in enumerate(variants):
        own = None if above and number == 0 else _text(_get(variant, "description"))
        notes = [own] if own is not None and own != description else []
        default = _default(variant, quote_enum=False)
        notes += [default] if default else []
        out += f"{indent} | {_variant(variant, indent)}{' // ' + ' '.join(notes) if notes else ''}\n"
    return f"{out}{indent},\n"


def _variant(schema: Any, indent: str) -> str:
    return _nullable(schema, indent + "   ")


def _remarks(variant: Any) -> str:
    """Return the remark behind a variant that is no property's own."""
    description, default = _text(_get(variant, "description")), _default(variant, quote_enum=True)
    notes = [note for note in (description, default or None) if note is not None]
    return f" // {' '.join(notes)}" if notes else ""


def _nullable(schema: Any, indent: str) -> str:
    declared = declare_type(schema, indent)
    return f"{declared} | null" if _get(schema, "nullable") is True and "null" not in declared else declared


def _default(schema: Any, *, quote_enum: bool) -> str:
    """Return `default: VALUE`, "" where there is none; an enum's text stands bare beside a property."""
    value = _get(schema, "default")
    if value is _ABSENT:
        return ""
    bare = bool(_get(schema, "enum")) and isinstance(_get(schema, "enum"), list)
    if isinstance(value, str) and not (bare and quote_enum):
        return f"default: {value}" if bare else f'default: "{value}"'
    return f"default: {dump_compact(value)}"


def dump_compact(value: Any) -> str:
    """Write JSON without spaces, numbers as the encoder does."""
    return write_json(value, _number, comma=",", colon=":")


def _number(value: float) -> str:
    """Write integers that fit into 64 bits as they are, other numbers as floats, none of them in Python's form."""
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return str(value)
    value = float(value)
    if not math.isfinite(value):
        return "null"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    minus = "-" if sign else ""
    if not value:
        return f"{minus}0.0"
    if -5 < len(digits) + exponent <= 16:
        return minus + _plain("".join(map(str, digits)), exponent)
    mantissa = str(digits[0]) + ("." + "".join(map(str, digits[1:])) if len(digits) > 1 else "")
    return f"{minus}{mantissa}e{len(digits) + exponent - 1}"


def _plain(digits: str, exponent: int) -> str:
    point = len(digits) + exponent
    if exponent >= 0:
        return f"{digits}{'0' * exponent}.0"
    return f"{digits[:point]}.{digits[point:]}" if point > 0 else f"0.{'0' * -point}{digits}"


def _lines(text: str) -> list[str]:
    """Split into lines; a last line feed begins no line, and a carriage return before one goes with it."""
    lines = text.split("\n")
    ends = lines if lines[-1] else lines[:-1]
    return [line.removesuffix("\r") for line in ends]


def _get(schema: Any, key: str) -> Any:
    return schema.get(key, _ABSENT) if isinstance(schema, Mapping) else _ABSENT


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
