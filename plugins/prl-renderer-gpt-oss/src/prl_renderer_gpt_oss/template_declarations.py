"""Function tools as TypeScript declarations, as the chat template writes them: other white space, other short cuts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prl.render import dump_json
from prl.types import ToolSpec
from prl_renderer_gpt_oss.declarations import bad_tool, function_of

_NAMES = {"number": "number", "integer": "number", "boolean": "boolean"}
_ITEMS = {"string": "string[]", "number": "number[]", "integer": "number[]", "boolean": "boolean[]"}
_LONGEST_ITEM = 50
_TYPE_INDENT, _DEFAULT_INDENT = " " * 16, " " * 20
"""White space of the template's own source that stands before a nested type and a variant's default."""


def declare_functions(tools: Sequence[ToolSpec]) -> str:
    """Return the namespace `functions` with one type for each tool; refuse what the template fails on."""
    out = "## functions\n\nnamespace functions {\n\n"
    for number, tool in enumerate(tools):
        function = function_of(tool, number)
        if not isinstance(function.get("description"), str):
            raise bad_tool(number, "has no description, which the chat template needs")
        parameters = function.get("parameters")
        properties = _get(parameters, "properties")
        out += f"// {function['description']}\ntype {function['name']} = "
        try:
            out += f"(_: {{\n{_properties(parameters, properties)}}}) => any;\n\n" if properties else "() => any;\n\n"
        except (TypeError, AttributeError) as err:
            raise bad_tool(number, f"has a schema on which the chat template fails ({err})") from err
    return out + "} // namespace functions"


def _properties(parameters: Any, properties: Mapping[str, Any]) -> str:
    out = ""
    required = _get(parameters, "required") or []
    for name, schema in properties.items():
        description = _get(schema, "description")
        out += f"// {_concatenated(description)}\n" if description else ""
        out += f"{name}{'' if name in required else '?'}: {_declare(schema)}"
        if "default" in _mapping(schema):
            default = schema["default"]
            bare = _get(schema, "enum") or _get(schema, "oneOf")
            comma = "" if not _get(schema, "enum") and _get(schema, "oneOf") else ", "
            out += f"{comma}// default: {_concatenated(default) if bare else dump_json(default)}"
        out += ",\n"
    return out


def _declare(schema: Any) -> str:
    """Return the type that a JSON schema describes."""
    kind = _get(schema, "type")
    if kind == "array":
        return _array(schema)
    if isinstance(kind, list | tuple) and kind:
        return " | ".join(map(str, kind))
    if _get(schema, "oneOf"):
        return _union(schema["oneOf"])
    if kind == "string":
        values = _get(schema, "enum")
        if values:
            return '"' + '" | "'.join(map(str, values)) + '"'
        return "string" + (" | null" if _get(schema, "nullable") else "")
    if kind == "object":
        return _object(schema)
    return _NAMES.get(kind, "any") if isinstance(kind, str) else "any"


def _array(schema: Any) -> str:
    items = _get(schema, "items")
    if not items:
        declared = "any[]"
    else:
        item_kind = _get(items, "type")
        declared = _ITEMS.get(item_kind, "") if isinstance(item_kind, str) else ""
        if not declared:
            inner = _declare(items)
            declared = "any[]" if inner == "object | object" or len(inner) > _LONGEST_ITEM else f"{inner}[]"
    return declared + (" | null" if _get(schema, "nullable") else "")


def _union(variants: Sequence[Any]) -> str:
    """Join variants. (The template means to write `any` where one is an object; its variable is lost in a loop.)"""
    out = ""
    for number, variant in enumerate(variants):
        out += _declare(variant)
        description = _get(variant, "description")
        out += f"// {_concatenated(description)}" if description else ""
        if "default" in _mapping(variant):
            out += f"{_DEFAULT_INDENT}// default: {dump_json(variant['default'])}"
        out += " | \n" if number < len(variants) - 1 else ""
    return out


def _object(schema: Any) -> str:
    properties = _get(schema, "properties")
    if not properties:
        return "object"
    required = _get(schema, "required") or []
    fields = [
        f"{name}{'' if name in required else '?'}: \n{_TYPE_INDENT}{_declare(inner)}"
        for name, inner in properties.items()
    ]
    return "{\n" + ", ".join(fields) + "}"


def _get(schema: Any, key: str) -> Any:
    return _mapping(schema).get(key)


def _mapping(schema: Any) -> Mapping[str, Any]:
    return schema if isinstance(schema, Mapping) else {}


def _concatenated(value: Any) -> str:
    """Return a text that the template concatenates; it fails on anything else."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value
