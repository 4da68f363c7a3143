"""Reading values: JSON first, types by schema."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from prl.parse import CallSyntaxError, coerce_text, load_arguments, load_object, parameter_schema


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"q": "where\'s the baker\'s van?"}', {"q": "where's the baker's van?"}),
        ('{"t": "\\u4f60 \\ud83e\\udd89"}', {"t": "你 🦉"}),
        ('{"t": "\\ud83e x"}', {"t": "\ufffd x"}),
        ("{'a': True, 'b': None}", {"a": True, "b": None}),
        (' \n{"a": 1}\n ', {"a": 1}),
        ('{"code": "if x:\n\tpass", "s": "it\'s"}', {"code": "if x:\n\tpass", "s": "it's"}),
    ],
)
def test_objects_that_are_read(text: str, value: dict[str, Any]) -> None:
    """Apostrophes, escapes, Python literals and bare line feeds are what models really write; all can be sent as UTF-8.

    https://github.com/minpeter/ai-sdk-tool-call-middleware/issues/298
    """
    got = load_object(text)
    assert got == value
    str(got).encode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "nope",
        '{"a": NaN}',
        '{"a": 1e999}',
        "{'a': {1, 2}}",
        '{"a": 1} {"b": 2}',
        "{'a': f(1)}",
        "{" * 5000,
    ],
)
def test_objects_that_are_refused(text: str) -> None:
    """A malformed call is reported, whatever it looks like; nothing else is raised."""
    with pytest.raises(CallSyntaxError):
        load_object(text)


@pytest.mark.parametrize("text", ['{"a": 1}', r'"{\"a\": 1}"'])
def test_arguments_may_be_the_string_of_an_object(text: str) -> None:
    """Models quote arguments twice: https://github.com/MoonshotAI/Kimi-K2/issues/26"""
    assert load_arguments(text) == {"a": 1}


@pytest.mark.parametrize("text", ["[1]", '"[1]"', '"nope"', r'"\"{}\""', "null", ""])
def test_arguments_that_are_no_object_are_refused(text: str) -> None:
    """A call with no arguments in place of unreadable ones runs what nobody asked for."""
    with pytest.raises(CallSyntaxError):
        load_arguments(text)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("00731", {"type": "string"}, "00731"),
        ("true", {"type": "string"}, "true"),
        ("null", {"type": "string"}, "null"),
        ("5", {"type": "integer"}, 5),
        ("5.0", {"type": "integer"}, 5),
        ("5.5", {"type": "integer"}, "5.5"),
        ("1e5", {"type": "integer"}, 100000),
        ("9007199254740993.0", {"type": "integer"}, 9007199254740993),
        ("9007199254740993", {"type": "number"}, 9007199254740993),
        ("Tom &amp; &lt;b&gt;", {"type": "string"}, "Tom &amp; &lt;b&gt;"),
        ("five", {"type": "integer"}, "five"),
        ("1_000", {"type": "integer"}, "1_000"),
        ("1e3", {"type": "number"}, 1000.0),
        ("007", {"type": "integer"}, 7),
        ("+5", {"type": "integer"}, 5),
        (".5", {"type": "number"}, 0.5),
        ("-.5e1", {"type": ["number", "null"]}, -5.0),
        ("007", {"type": ["string", "integer"]}, "007"),
        ("1e999", {"type": "number"}, "1e999"),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
        ("٣", {"type": "integer"}, "٣"),
        ("12345678901234567890123", {"type": "integer"}, 12345678901234567890123),
        ("5", {"type": "int"}, 5),
        ("5", {"type": "str"}, "5"),
        ("[1]", {"type": ["list", "null"]}, [1]),
        ("True", {"type": "boolean"}, True),
        ("FALSE", {"type": "boolean"}, False),
        ("1", {"type": "boolean"}, "1"),
        ("4", {"type": ["integer", "null"]}, 4),
        ("None", {"type": ["integer", "null"]}, None),
        ("null", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ("[]", {"anyOf": [{"type": "array"}, {"type": "null"}]}, []),
        ('{"a": true}', {"type": "object"}, {"a": True}),
        ("{'a': True}", {"type": "object"}, {"a": True}),
        ("none", {"type": "string", "enum": ["bell", "none"]}, "none"),
        ("none", {"enum": ["bell", "none"]}, "none"),
        ("3", {"enum": [1, 2, 3]}, 3),
        ("3", {"const": "3"}, "3"),
        ("x", {"type": ["string", "integer"]}, "x"),
        ("7", {"type": ["string", "integer"]}, 7),
        ("5", {"type": "integer", "nullable": True}, 5),
        ("plain words", None, "plain words"),
        ("12", None, 12),
        ('"quoted"', None, '"quoted"'),
        ("none", None, "none"),
    ],
)
def test_text_takes_its_declared_type(text: str, schema: Any, value: Any) -> None:
    """Digits declared a string stay text, 'none' is a word, booleans come in any case."""
    got = coerce_text(text, schema)
    assert (got, type(got)) == (value, type(value))


def test_schema_look_up_survives_odd_tools() -> None:
    """Tools are the caller's data: what is not there is no schema, not a crash."""
    tools: list[Any] = [
        {},
        {"function": None},
        {"function": {"name": "f", "parameters": []}},
        {"name": "g", "parameters": {"properties": {"a": {"type": "string"}}}},
    ]
    assert parameter_schema(tools, "f", "a") is None
    assert parameter_schema(tools, "g", "a") == {"type": "string"}
    assert parameter_schema(None, "g", "a") is None


DEFINITIONS = {
    "Count": {"type": "integer"},
    "Code": {"$ref": "#/$defs/Text"},
    "Text": {"type": "string"},
    "a/b": {"type": "boolean"},
    "Loop": {"$ref": "#/$defs/Loop"},
    "Tree": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"$ref": "#/$defs/Text"}, {"type": "null"}]},
}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"$ref": "#/$defs/Code"}, "10", "10"),
        ({"$ref": "#/$defs/Count"}, "10", 10),
        ({"$ref": "#/$defs/Count"}, "ten", "ten"),
        ({"$ref": "#/$defs/a~1b"}, "True", True),
        ({"anyOf": [{"$ref": "#/$defs/Text"}, {"type": "null"}]}, "10", "10"),
        ({"anyOf": [{"$ref": "#/$defs/Text"}, {"type": "null"}]}, "null", None),
        ({"allOf": [{"$ref": "#/$defs/Count"}], "description": "n"}, "7", 7),
        ({"$ref": "#/$defs/Tree"}, "10", "10"),
        ({"$ref": "#/$defs/Loop"}, "10", 10),
        ({"$ref": "#/$defs/missing"}, "10", 10),
        ({"$ref": "https://example.org/schema"}, "10", 10),
        ({"$ref": "#count"}, "10", 10),
        ({"$ref": "#/$defs/missing", "type": "string"}, "10", "10"),
    ],
)
def test_references_in_a_schema_are_followed(schema: Any, text: str, value: Any) -> None:
    """Tools made from classes declare their types by reference: a number arrives as text, or a text as a number.

    https://github.com/vllm-project/vllm/pull/38973 https://github.com/vllm-project/vllm/pull/37652
    """
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": DEFINITIONS}
    got = coerce_text(text, parameter_schema([{"function": {"name": "f", "parameters": parameters}}], "f", "a"))
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize(
    "parameters",
    [
        {"oneOf": [{"properties": {"b": {}}}, {"properties": {"a": {"type": "string"}}}]},
        {"$ref": "#/$defs/In", "$defs": {"In": {"allOf": [{"properties": {"a": {"type": "string"}}}]}}},
        {"properties": {"b": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        {"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"type": "null"}}}]},
    ],
)
def test_parameters_are_found_wherever_a_schema_declares_them(parameters: Any) -> None:
    """A union at the top: https://github.com/sgl-project/sglang/issues/32286"""
    tools = [{"function": {"name": "f", "parameters": parameters}}]
    assert coerce_text("42", parameter_schema(tools, "f", "a")) == "42"


def test_reading_a_models_text_warns_nobody() -> None:
    """Python warns about odd escapes; a run would print one line for every malformed call."""
    code = "from prl.parse import load_object; print(load_object(chr(123) + \"'a': 'x\\\\d'\" + chr(125)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "{'a': 'x\\\\d'}", "")
