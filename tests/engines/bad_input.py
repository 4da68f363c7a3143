"""Bad bodies for a route, made from its OpenAPI schema, and the check of what the route answers."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

TYPED = frozenset({400, 404, 409, 413, 415, 422})
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
INTEGERS = st.sampled_from([0, -1, 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**70, 10**400])
NUMBERS = INTEGERS | st.sampled_from([float("nan"), float("inf"), -0.0, 1e-320, 1e308, -1.5])
STRINGS = st.sampled_from(["", "\x00", "\ud800", "\U0010ffff", "<|im_end|>", "a" * 3000, "../..", "null"])
SPOILED = st.sampled_from(
    [b"", b"{", b"null", b"[]", b"[1, 2]", b'"x"', b"\xff\xfe", b"\x00", b"[" * 5000, b'{"a":' * 3000, b"0" * 5000]
)
BY_TYPE = {
    "integer": INTEGERS,
    "number": NUMBERS,
    "string": STRINGS,
    "boolean": st.booleans(),
    "null": st.none(),
}


@dataclass(frozen=True, kw_only=True)
class Route:
    """One POST route of a server, its OpenAPI document, and a body that it accepts."""

    url: str
    path: str
    document: dict[str, Any]
    valid: dict[str, Any]

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the body."""
        body = self.document["paths"][self.path]["post"]["requestBody"]
        return self.resolved(body["content"]["application/json"]["schema"])

    def resolved(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return what a reference points to."""
        while "$ref" in schema:
            place: Any = self.document
            for key in schema["$ref"].removeprefix("#/").split("/"):
                place = place[key]
            schema = place
        return schema


def values(route: Route, schema: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Return values of about the schema's type: at its bounds, and beyond them."""
    schema = route.resolved(schema)
    if depth > 4:
        return TREES
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return st.one_of([values(route, option, depth + 1) for option in options])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("type") == "array":
        return st.lists(values(route, schema.get("items", {}), depth + 1), max_size=3)
    if schema.get("type") == "object" and (fields := schema.get("properties")):
        return st.fixed_dictionaries(
            {}, optional={name: values(route, field, depth + 1) for name, field in list(fields.items())[:12]}
        )
    return BY_TYPE.get(str(schema.get("type")), TREES)


def messages() -> st.SearchStrategy[Any]:
    """Return chat messages that are nearly right: what clients and attackers really send."""
    text = st.sampled_from(["hi", "a\nb", ""]) | STRINGS
    part = st.fixed_dictionaries({}, optional={"type": st.sampled_from(["text", "image_url"]) | TREES, "text": text})
    call = st.fixed_dictionaries(
        {},
        optional={
            "id": STRINGS | st.none(),
            "type": st.just("function"),
            "function": TREES
            | st.fixed_dictionaries({}, optional={"name": STRINGS | TREES, "arguments": STRINGS | TREES}),
        },
    )
    message = st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["system", "user", "assistant", "tool", "developer", ""]) | TREES,
            "content": text | text | st.lists(part | TREES, max_size=3) | TREES,
            "tool_calls": st.lists(call | TREES, max_size=2) | TREES,
            "reasoning_content": STRINGS | TREES,
            "tool_call_id": STRINGS,
        },
    )
    return st.lists(message, max_size=4)


def bodies(route: Route) -> st.SearchStrategy[bytes]:
    """Return bodies: the valid one with fields replaced, added or left out, and bytes that are no JSON object."""
    fields = route.schema.get("properties", {})
    typed = {name: values(route, field) for name, field in fields.items()}
    if "messages" in fields:
        typed["messages"] = messages()
    if "n" in fields:  # a thousand completions are no bad input, only slow
        typed["n"] = st.sampled_from([0, -1, 2, 2**31, 2**70, None])

    @st.composite
    def of_the_right_types(draw: st.DrawFn) -> bytes:
        """Gets past the first check as often as not: what lies behind it must be as careful."""
        name = draw(st.sampled_from([*sorted(typed), *["messages"] * 8 * ("messages" in typed)]))
        return json.dumps({**route.valid, name: draw(typed[name])}).encode()

    @st.composite
    def of_any_types(draw: st.DrawFn) -> bytes:
        body = dict(route.valid)
        for name in draw(st.lists(st.sampled_from(sorted(typed)), max_size=3, unique=True)):
            body[name] = draw(typed[name] | TREES)
        for name in draw(st.lists(st.sampled_from(sorted(route.valid)), max_size=1)):
            body.pop(name, None)
        if draw(st.booleans()):
            body[draw(st.text(max_size=6))] = draw(TREES)
        return json.dumps(body).encode()

    return of_the_right_types() | of_any_types() | SPOILED | st.binary(max_size=40)


def post(route: Route, body: bytes, seconds: float) -> tuple[int, bytes]:
    """Send one body; TimeoutError where no answer comes."""
    parts = urlsplit(route.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=seconds)
    try:
        connection.request("POST", route.path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def check_route(route: Route, *, examples: int, seconds: float) -> None:
    """Raise `AssertionError` for a bad body that gets anything but an answer or a typed 4xx in time."""

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(bodies(route))
    def check(body: bytes) -> None:
        status, raw = post(route, body, seconds)
        shown = f"{route.path} answered {status} {raw[:300]!r} to {body[:500]!r}"
        if status == 200:
            return
        assert status in TYPED, shown
        error = json.loads(raw)["error"]
        assert error["code"], shown
        assert error["message"], shown
        assert error["next_step"], shown

    check()
