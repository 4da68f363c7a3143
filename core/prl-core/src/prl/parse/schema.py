"""Values that a format writes without quotes: their types follow the tool's JSON schema."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
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
_UNIONS = ("anyOf", "oneOf", "allOf")
_ALIASES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
    "tuple": "array",
}
"""Other names of the kinds, which tool lists written by hand use."""
_WORDS = {"true": True, "false": False}
_NULL_WORDS = ("null", "None")
_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def parameter_schema(tools: Sequence[ToolSpec] | None, function: str, parameter: str) -> Mapping[str, Any] | None:
    """Return the schema of a tool's parameter, or None where the tool or the parameter is not declared.

    References in it and in its unions are resolved. Parameters that only the members of a union declare are found too.
    """
    for tool in tools or ():
        spec = tool.get("function", tool) if isinstance(tool, _MAPPING) else None
        if isinstance(spec, _MAPPING) and spec.get("name") == function:
            root = spec.get("parameters")
            found = [_resolved(schema, root, set()) for schema in _declarations(root, parameter, root, set())]
            return {"anyOf": found} if len(found) > 1 else next(iter(found), None)
    return None


def _declarations(schema: Any, parameter: str, root: Any, seen: set[str]) -> Iterator[Mapping[str, Any]]:
    """Yield what an object's schema declares for one of its properties, itself or in the members of a union."""
    schema = _target(schema, root, seen)
    if not isinstance(schema, _MAPPING):
        return
    properties = schema.get("properties")
    declared = properties.get(parameter) if isinstance(properties, _MAPPING) else None
    if isinstance(declared, _MAPPING):
        yield declared
        return
    inherited = [found for member in _members(schema) for found in _declarations(member, parameter, root, seen)]
    others = schema.get("additionalProperties")
    if not inherited and isinstance(others, _MAPPING):
        inherited = [others]
    yield from inherited


def _members(schema: Mapping[str, Any]) -> Iterator[Any]:
    for union in _UNIONS:
        members = schema.get(union)
        if isinstance(members, Sequence) and not isinstance(members, str):
            yield from members


def _resolved(schema: Any, root: Any, seen: set[str]) -> Mapping[str, Any]:
    """Return a schema without references, in itself and in its unions; each is followed once."""
    schema = _target(schema, root, seen)
    if not isinstance(schema, _MAPPING):
        return {}
    members = list(_members(schema))
    if not members:
        return schema
    plain = {key: value for key, value in schema.items() if key not in _UNIONS}
    return {**plain, "anyOf": [_resolved(member, root, seen) for member in members]}


def _target(schema: Any, root: Any, seen: set[str]) -> Any:
    """Follow a schema's reference (`#/$defs/Name`) within its document; keys beside the reference stay."""
    while isinstance(schema, _MAPPING) and isinstance(schema.get("$ref"), str):
        reference = schema["$ref"]
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        is_path = reference == "#" or reference.startswith("#/")
        target = root if is_path and reference not in seen else None
        seen.add(reference)
        for step in reference.split("/")[1:]:
            target = target.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(target, _MAPPING) else None
        schema = {**target, **beside} if isinstance(target, _MAPPING) else beside
    return schema


def coerce_text(text: str, schema: Mapping[str, Any] | None) -> Any:
    """Give unquoted text its declared type.

    A declared string stays the text it is. Otherwise the text must be one whole JSON value of a declared kind;
    booleans are read in any case and null also in Python's spelling, since templates print them so, and numbers, where
    no string is declared, also with leading zeros or a plus sign. Text that fits no declared kind stays text: nothing
    is lost, and the environment can judge it. Without a schema, a JSON value is taken where the text is one.
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
        return text if "string" in kinds else _plain_number(word, kinds, text)
    return value if any(_fits(value, kind) for kind in kinds) else _widen(value, kinds, word, text)


def _plain_number(word: str, kinds: frozenset[str], text: str) -> Any:
    """Read a number that is none in JSON (`007`, `+5`, `.5`); else keep the text."""
    if kinds & {"integer", "number"} and _INTEGER.fullmatch(word):
        return int(word)
    if "number" in kinds and _NUMBER.fullmatch(word) and math.isfinite(float(word)):
        return float(word)
    return text


def declared_kinds(schema: Mapping[str, Any] | None, depth: int = 0) -> frozenset[str]:
    """Return the JSON kinds a schema allows ("string", "integer", ...), an empty set where it says nothing."""
    if not isinstance(schema, _MAPPING) or depth > 8:
        return frozenset()
    kinds: set[str] = set()
    declared = schema.get("type")
    if isinstance(declared, str):
        kinds.add(_ALIASES.get(declared, declared))
    elif isinstance(declared, Sequence):
        kinds.update(_ALIASES.get(kind, kind) for kind in declared if isinstance(kind, str))
    if schema.get("nullable") is True and kinds:
        kinds.add("null")
    for member in _members(schema):
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


def _widen(value: Any, kinds: frozenset[str], word: str, text: str) -> Any:
    """Accept an integer written as a decimal, to the last digit; else keep the text."""
    if "integer" in kinds and isinstance(value, float):
        exact = Decimal(word)
        return int(exact) if exact == exact.to_integral_value() else text
    return text


def _json_or_text(text: str) -> Any:
    try:
        value = load_value(text)
    except CallSyntaxError:
        return text
    return text if isinstance(value, str) else value
