"""Values that a format writes without quotes: their types follow the tool's JSON schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prl.parse.json_calls import CallSyntaxError, load_value
from prl.types import ToolSpec

_MATCHES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_MAPPING = (dict, Mapping)  # `dict` first: asking an abstract class alone takes several times longer
_WORDS = {"true": True, "false": False}
_NULL_WORDS = ("null", "None")


def parameter_schema(tools: Sequence[ToolSpec] | None, function: str, parameter: str) -> Mapping[str, Any] | None:
    """Return the schema of a tool's parameter, or None where the tool or the parameter is not declared."""
    for tool in tools or ():
        spec = tool.get("function", tool) if isinstance(tool, _MAPPING) else None
        if isinstance(spec, _MAPPING) and spec.get("name") == function:
            parameters = spec.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, _MAPPING) else None
            schema = properties.get(parameter) if isinstance(properties, _MAPPING) else None
            return schema if isinstance(schema, _MAPPING) else None
    return None


def coerce_text(text: str, schema: Mapping[str, Any] | None) -> Any:
    """Give unquoted text its declared type.

    A declared string stays the text it is. Otherwise the text must be one whole JSON value of a declared kind;
    booleans are read in any case and null also in Python's spelling, since templates print them so. Text that fits no
    declared kind stays text: nothing is lost, and the environment can judge it. Without a schema, a JSON value is
    taken where the text is one.
    """
    kinds = declared_kinds(schema)
    if not kinds:
        return _json_or_text(text)
    if kinds == {"string"}:
        return text
    word = text.strip()
    if "null" in kinds and word in _NULL_WORDS:
        return None
    if "boolean" in kinds and word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        value = load_value(word)
    except CallSyntaxError:
        return text
    return value if any(_fits(value, kind) for kind in kinds) else _widen(value, kinds, text)


def declared_kinds(schema: Mapping[str, Any] | None, depth: int = 0) -> frozenset[str]:
    """Return the JSON kinds a schema allows ("string", "integer", ...), an empty set where it says nothing."""
    if not isinstance(schema, _MAPPING) or depth > 8:
        return frozenset()
    kinds: set[str] = set()
    declared = schema.get("type")
    if isinstance(declared, str):
        kinds.add(declared)
    elif isinstance(declared, Sequence):
        kinds.update(kind for kind in declared if isinstance(kind, str))
    if schema.get("nullable") is True and kinds:
        kinds.add("null")
    for union in ("anyOf", "oneOf", "allOf"):
        members = schema.get(union)
        if isinstance(members, Sequence) and not isinstance(members, str):
            for member in members:
                kinds |= declared_kinds(member, depth + 1)
    if not kinds:
        values = schema.get("enum")
        if not isinstance(values, list) or not values:
            values = [schema["const"]] if "const" in schema else []
        kinds.update(_kind_of(value) for value in values)
    return frozenset(kinds)


def _kind_of(value: Any) -> str:
    if isinstance(value, str):
        return "string"
    return next(kind for kind in ("boolean", *_MATCHES, "string") if kind == "string" or _fits(value, kind))


def _fits(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _MATCHES.get(kind, ()))


def _widen(value: Any, kinds: frozenset[str], text: str) -> Any:
    """Accept an integer written as a decimal; else keep the text."""
    if "integer" in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    return text


def _json_or_text(text: str) -> Any:
    try:
        value = load_value(text)
    except CallSyntaxError:
        return text
    return text if isinstance(value, str) else value
