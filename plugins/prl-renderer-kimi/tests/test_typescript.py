"""Tool declarations equal those of the vendor's encoder, and fall back to JSON where it does."""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import pytest
from fixtures.kimi_vendor import sort_deeply, vendor_declaration

from prl_renderer_kimi.typescript import declare_tools

TEXTS = ("", "One line.", "Two\nlines", "a\n\nb", "größe – 料理", 'say "hi" // no', "*/ }")
KEYS = ("city", "n", "größe", "opt-in", "x y", "タグ", "a", "Z")
SCALARS = (None, True, False, 0, -1, 2.5, 1e22, "", "x", 'q"q', [1, "a"], {"b": 1, "a": None})
REFERENCES = ("#", "#/$defs/Node", "#/$defs/Other", "#/$defs/Missing", "other.json")


def declared(*tools: Any) -> str:
    return declare_tools(json.dumps(sort_deeply(list(tools)), separators=(",", ":"), ensure_ascii=False))


def function(name: str, parameters: Any = None, description: Any = None) -> dict[str, Any]:
    spec = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in spec.items() if value is not None}}


class Schemas:
    """Writes random schemas; at `fault` per place, one that the encoder refuses."""

    def __init__(self, seed: int, fault: float) -> None:
        self.rng = random.Random(seed)
        self.fault = fault

    def tools(self) -> list[Any]:
        return [self.tool() for _ in range(self.rng.randint(1, 3))]

    def tool(self) -> Any:
        if self.rng.random() < 0.05:
            return self.rng.choice(({"type": "_plugin", "function": {"name": "p"}}, {"type": "function"}))
        parameters = self.object(0)
        if self.rng.random() < 0.4:
            parameters["$defs"] = {name: self.schema(1) for name in self.rng.sample(("Node", "Other"), 2)}
        given = self.rng.choice((parameters, parameters, parameters, {}, None))
        return function(self.rng.choice(("f", "math.add", "naïve-name")), given, self.rng.choice((*TEXTS, None)))

    def object(self, depth: int) -> dict[str, Any]:
        names = self.rng.sample(KEYS, self.rng.randrange(5 - depth))
        schema: dict[str, Any] = {"type": "object", "properties": {name: self.schema(depth + 1) for name in names}}
        if names and self.rng.random() < 0.7:
            schema["required"] = self.rng.sample(names, self.rng.randrange(len(names) + 1))
        if self.rng.random() < 0.3:
            schema["additionalProperties"] = self.rng.choice((True, False, {"type": "string"}, {}, {"$ref": "#"}))
        if self.rng.random() < 0.1:
            del schema["properties"]
        return schema

    def schema(self, depth: int) -> Any:
        if self.rng.random() < self.fault:
            return self.rng.choice(({"title": "t"}, {"enum": ["a"], "type": "integer"}, {"type": ["blob"]}, 7, [1]))
        draw = self.rng.randrange(9 if depth < 3 else 7)
        if draw == 0:
            return self.rng.choice((True, False, {}))
        schema: dict[str, Any] = {"type": self.rng.choice(("string", "integer", "number", "boolean", "null", "odd"))}
        if draw == 1:
            schema = {"enum": self.rng.sample(("a", 'b"', "", 1, 2.5, None, True), 3)}
        elif draw == 2:
            schema = {"type": self.rng.choice((["string", "null"], ["array", "object", "integer"], ["boolean"]))}
        elif draw == 3:
            schema = {"$ref": self.rng.choice(REFERENCES[: 3 if self.fault == 0 else 5])}
        elif draw == 4:
            kind = self.rng.choice(("string", ["string"], ["null", "string"]))
            schema = {"enum": ["a", None, "b"], "type": kind}
        elif draw == 5:
            schema |= {"minimum": 1, "maximum": 1e9, "maxLength": 5, "pattern": "^a$", "minItems": 1}
        elif draw == 7:
            schema = {"type": "array", "minItems": 0, "maxItems": 3, "items": self.schema(depth + 1)}
        elif draw == 8:
            nested = self.object(depth + 1)
            schema = self.rng.choice((nested, {"anyOf": [nested, {"type": "null"}]}))
        if self.rng.random() < 0.5:
            schema["description"] = self.rng.choice(TEXTS)
        if self.rng.random() < 0.3:
            schema["default"] = self.rng.choice(SCALARS)
        return schema


@pytest.mark.parametrize("fault", [0.0, 0.03])
def test_declarations_equal_the_vendor_encoder(fault: float) -> None:
    """The model was trained on these bytes; another spelling of a type is another language to it."""
    fallbacks = 0
    for seed in range(3_000):
        tools = sort_deeply(Schemas(seed, fault).tools())
        compact = json.dumps(tools, separators=(",", ":"), ensure_ascii=False)
        expected = vendor_declaration(tools)
        fallbacks += not expected
        assert declare_tools(compact) == (expected or compact), compact
    assert 100 < fallbacks < 2_500


def test_a_declaration_by_hand() -> None:
    """The form, readable: required before optional, comments above, limits in the comment."""
    weather = function(
        "get_weather",
        {
            "type": "object",
            "required": ["city"],
            "properties": {
                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                "city": {"type": "string", "description": "A town.", "minLength": 1},
                "days": {"type": "array", "items": {"type": "integer", "maximum": 7}},
            },
        },
        "Ask the\nweather.",
    )
    assert declared(weather, function("now")) == (
        "# Tools\n\n## functions\nnamespace functions {\n"
        "// Ask the\n// weather.\n"
        "type get_weather = (_: {\n"
        "  // A town.\n  // minLength: 1\n  city: string,\n"
        "  days?: Array<\n    // maximum: 7\n    number\n  >,\n"
        '  // Default: "C"\n  unit?: "C" | "F"\n'
        "}) => any;\n"
        "type now = (_: {}) => any;\n"
        "}\n"
    )


def test_a_schema_that_refers_to_itself() -> None:
    """Recursive schemas become interfaces."""
    tree = {
        "type": "object",
        "$defs": {"Leaf": {"type": "object", "description": "An end.", "properties": {"v": {"type": "number"}}}},
        "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#/$defs/Leaf"}},
    }
    assert declared(function("grow", tree)) == (
        "# Tools\n\n## functions\nnamespace functions {\n"
        "interface parameters {\n  left?: parameters,\n  right?: Leaf\n}\n"
        "// An end.\ninterface Leaf {\n  v?: number\n}\n"
        "type grow = (_: parameters) => any;\n"
        "}\n"
    )


def test_a_schema_without_declaration_is_json_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The vendor falls back without a word; a user should know why the prompt looks different."""
    tool = function("odd", {"properties": {"x": {"title": "only a title, once"}}})
    with caplog.at_level(logging.WARNING, logger="prl.render"):
        assert declared(tool) == json.dumps([sort_deeply(tool)], separators=(",", ":"))
    assert "only a title, once" in caplog.text
