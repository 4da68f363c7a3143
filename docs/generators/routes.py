"""docs/reference/routes.md: the HTTP routes of an engine, from the OpenAPI document of the local one."""

from __future__ import annotations

import json
from typing import Any

from generators.markdown import code, escaped, table
from prl.plugin.loader import import_value

APP = "prl_engine_local.server:create_app"
ENGINE = "prl_engine_local.engine:LocalEngine"
OPTIONS = "prl_engine_local.options:LocalEngineOptions"
_INTRO = """# Routes

What an engine serves over HTTP. This page is written from the OpenAPI document of `prl-engine-local`; a running engine
gives its own at `/openapi.json`. `prl-engine-vllm` serves the same routes with the same errors; the bodies of its chat
routes are vLLM's.

A body is JSON. An unknown field, a field of a wrong type or out of range is refused with 422 and named; nothing is
ignored or filled in.

"""


def page() -> str:
    """Return the page."""
    options = import_value(OPTIONS)(model="MODEL")
    document = import_value(APP)(import_value(ENGINE)(options)).openapi()
    text = _INTRO
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            text += _route(document, f"{method.upper()} {path}", route)
    error = _resolved(document, {"$ref": "#/components/schemas/ErrorDetail"})
    return text + f"## Errors\n\n{escaped(_prose(error))} It stands under `error`.\n\n{_fields(document, error)}\n"


def _route(document: dict[str, Any], name: str, route: dict[str, Any]) -> str:
    text = f"## {name}\n\n{escaped(route.get('description') or route.get('summary', ''))}\n\n"
    if "requestBody" in route:
        text += f"Body:\n\n{_fields(document, _schema(document, route['requestBody']))}\n"
    text += f"Answer:\n\n{_fields(document, _schema(document, route['responses']['200']))}\n"
    others = [(code(status), one["description"]) for status, one in route["responses"].items() if status != "200"]
    return text + table(("status", "when"), others) + "\n"


def _schema(document: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    return _resolved(document, part["content"]["application/json"]["schema"])


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _fields(document: dict[str, Any], schema: dict[str, Any], prefix: str = "") -> str:
    return table(("field", "type", "default", "meaning"), _rows(document, schema, prefix))


def _rows(document: dict[str, Any], schema: dict[str, Any], prefix: str) -> list[tuple[str, str, str, str]]:
    """Return a row a field; the fields of an object inside a list follow it."""
    rows = []
    required = set(schema.get("required", ()))
    for name, field in schema.get("properties", {}).items():
        given = field.get("default")
        default = "required" if name in required else "absent" if given is None else code(json.dumps(given))
        rows.append((code(prefix + name), code(_type(document, field)), default, escaped(field.get("description", ""))))
        item = _resolved(document, field.get("items", {}))
        if "properties" in item:
            rows += _rows(document, item, f"{prefix}{name}[].")
    return rows


def _type(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """Return a JSON type with its bounds, as one writes it."""
    if "$ref" in schema:
        return "object"
    if options := schema.get("anyOf"):
        return " | ".join(_type(document, option) for option in options)
    if schema.get("type") == "array":
        return f"list[{_type(document, schema.get('items', {}))}]"
    signs = (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))
    bounds = [f"{sign} {schema[name]:g}" for name, sign in signs if name in schema and abs(schema[name]) < 2**53]
    return " ".join([str(schema.get("type", "any")), *bounds])


def _prose(schema: dict[str, Any]) -> str:
    return " ".join(str(schema.get("description", "")).split())
