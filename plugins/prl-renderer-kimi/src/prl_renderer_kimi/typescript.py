"""Tools as TypeScript declarations, as Kimi K2.5 and later are given them.

The form is the vendor's: `tool_declaration_ts.py` in the model repositories. It reads a schema in two steps, and the
order of the first decides which references resolve: so does this.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

_log = logging.getLogger("prl.render")
_INDENT = "  "
_UNION = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}
_LIMITS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
_ENUM_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
}


class _Type(NamedTuple):
    """A schema that was read: how it is written at an indent, and the comment above it."""

    write: Callable[[str], str]
    description: Any = ""
    limits: Sequence[tuple[str, Any]] = ()

    def comment(self, indent: str) -> str:
        """Return the comment lines, each with its line feed."""
        lines = [_comment(self.description, indent)] if self.description else []
        if self.limits:
            lines.append(f"{indent}// " + ", ".join(f"{name}: {value}" for name, value in self.limits))
        return "".join(line + "\n" for line in lines)


class _Property(NamedTuple):
    name: str
    type: _Type
    optional: bool
    default: Any

    def write(self, indent: str) -> str:
        comment = self.type.comment(indent)
        if self.default is not None:
            is_number = isinstance(self.default, int | float)
            default = repr(self.default) if is_number else json.dumps(self.default, ensure_ascii=False)
            comment += f"{indent}// Default: {default}\n"
        return f"{comment}{indent}{self.name}{'?' if self.optional else ''}: {self.type.write(indent)}"


@dataclass
class _References:
    """The definitions seen so far in one function, and whether it refers to itself."""

    definitions: dict[str, Any] = field(default_factory=dict)
    to_itself: bool = False


@lru_cache(maxsize=256)
def declare_tools(sorted_tools: str) -> str:
    """Return the declarations of tools given as JSON with sorted keys.

    Where a schema cannot be declared, the vendor falls back to that JSON; so does this, with a warning.
    """
    try:
        functions = [
            _function(tool["function"])
            for tool in json.loads(sorted_tools)
            if tool.get("type") == "function" and tool.get("function")
        ]
    except (ValueError, TypeError, AttributeError, KeyError) as err:
        _log.warning("a tool cannot be declared in TypeScript (%s); like the vendor, the tools are given as JSON", err)
        return sorted_tools
    if not functions:
        return sorted_tools
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(functions) + "\n}\n"


def _function(function: Mapping[str, Any]) -> str:
    """Declare one function, behind the interfaces that it refers to."""
    references = _References()
    properties, parameters = _read_object(function.get("parameters") or {}, references)
    parts: list[str] = []
    argument = "parameters" if references.to_itself else parameters.write("")
    if references.to_itself:
        body = ",\n".join(each.write(_INDENT) for each in properties)
        parts.append("interface parameters {" + (f"\n{body}\n" if body else "") + "}")
    for name, schema in dict(references.definitions).items():
        written = _read(schema, references).write("")
        description = schema.get("description", "")
        parts.append((_comment(description) + "\n" if description else "") + f"interface {name} {written}")
    if function.get("description"):
        parts.append(_comment(function["description"]))
    return "\n".join([*parts, f"type {function.get('name', 'function')} = (_: {argument}) => any;"])


def _comment(text: str, indent: str = "") -> str:
    return "\n".join(f"{indent}// {line}" if line else "" for line in text.split("\n"))


def _read(schema: Any, references: _References) -> _Type:
    """Read one schema; what has no declaration raises."""
    if isinstance(schema, bool):
        return _named("any" if schema else "null")
    if "$ref" in schema:
        return _reference(schema, references)
    if "anyOf" in schema:
        members = [_read(member, references) for member in schema["anyOf"]]
        return _described(schema, lambda indent: " | ".join(member.write(indent) for member in members))
    if "enum" in schema:
        return _enum(schema)
    if "type" not in schema:
        if schema == {}:
            return _named("any")
        raise ValueError(f"a schema without a type: {schema}")
    kind = schema["type"]
    if isinstance(kind, list):
        union = " | ".join([_UNION[each] for each in kind])
        return _described(schema, lambda _: union)
    if kind == "object":
        return _read_object(schema, references)[1]
    if kind == "array":
        return _array(schema, references)
    return _described(schema, lambda _: "number" if kind == "integer" else kind, kind)


def _named(name: str) -> _Type:
    return _Type(lambda _: name)


def _described(schema: Mapping[str, Any], write: Callable[[str], str], kind: str = "") -> _Type:
    limits = [(name, schema[name]) for name in _LIMITS.get(kind, ()) if name in schema]
    return _Type(write, schema.get("description", ""), limits)


def _reference(schema: Mapping[str, Any], references: _References) -> _Type:
    target = schema["$ref"]
    if target == "#":
        references.to_itself = True
        return _described(schema, lambda _: "parameters")
    name = target.split("/")[-1]
    if not target.startswith("#/$defs/") or name not in references.definitions:
        raise ValueError(f"a reference to {target!r}")
    return _described(schema, lambda _: name)


def _enum(schema: Mapping[str, Any]) -> _Type:
    """Read an enumeration; values must have the declared type, or be null."""
    values = schema["enum"]
    kind = schema.get("type")
    if isinstance(kind, list):
        if len(kind) not in (1, 2) or (len(kind) == 2 and "null" not in kind):
            raise ValueError(f"an enumeration of types {kind}")
        kind = kind[0] if len(kind) == 1 or kind[0] != "null" else kind[1]
    allowed = _ENUM_KINDS.get(kind) if isinstance(kind, str) else None
    for value in values:
        if value is not None and allowed is not None and not isinstance(value, allowed):
            raise ValueError(f"an enumeration of {kind} with the value {value!r}")
    written = " | ".join([f'"{value}"' if isinstance(value, str) else str(value) for value in values])
    return _described(schema, lambda _: written)


def _array(schema: Mapping[str, Any], references: _References) -> _Type:
    item = _read(schema["items"], references) if schema.get("items") else _named("any")

    def write(indent: str) -> str:
        inner = indent + _INDENT
        comment = item.comment(inner)
        if not comment:
            return f"Array<{item.write(indent)}>"
        return f"Array<\n{comment}{inner}{item.write(inner)}\n{indent}>"

    return _described(schema, write, "array")


def _read_object(schema: Mapping[str, Any], references: _References) -> tuple[list[_Property], _Type]:
    """Read an object: its properties in order, and itself with the required ones first."""
    references.definitions.update(schema.get("$defs") or {})
    others = schema.get("additionalProperties")
    others_type = _read(others, references) if isinstance(others, dict) else _named("any" if others else "never")
    required = set(schema.get("required", ())) if "properties" in schema else set()
    properties = [
        _Property(
            name, _read(each, references), name not in required, each.get("default") if isinstance(each, dict) else None
        )
        for name, each in schema.get("properties", {}).items()
    ]

    def write(indent: str) -> str:
        inner = indent + _INDENT
        lines = [each.write(inner) for each in sorted(properties, key=lambda each: (each.optional, each.name))]
        if others is not None and not isinstance(others, dict | bool):
            raise ValueError(f"additionalProperties of {others!r}")
        if others is not None:
            lines.append(f"{inner}[k: string]: {others_type.write(inner)}")
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"

    return properties, _described(schema, write)
