"""Reading values: JSON first, types by schema."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from prl.parse import CallSyntaxError, coerce_text, load_object, parameter_schema


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"q": "where\'s the baker\'s van?"}', {"q": "where's the baker's van?"}),
        ('{"t": "\\u4f60 \\ud83e\\udd89"}', {"t": "你 🦉"}),
        ('{"t": "\\ud83e x"}', {"t": "\ufffd x"}),
        ("{'a': True, 'b': None}", {"a": True, "b": None}),
        (' \n{"a": 1}\n ', {"a": 1}),
    ],
)
def test_objects_that_are_read(text: str, value: dict[str, Any]) -> None:
    """Apostrophes, escapes and Python literals are what models really write; all results can be sent as UTF-8."""
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


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("00731", {"type": "string"}, "00731"),
        ("true", {"type": "string"}, "true"),
        ("null", {"type": "string"}, "null"),
        ("5", {"type": "integer"}, 5),
        ("5.0", {"type": "integer"}, 5),
        ("five", {"type": "integer"}, "five"),
        ("1_000", {"type": "integer"}, "1_000"),
        ("1e3", {"type": "number"}, 1000.0),
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


def test_reading_a_models_text_warns_nobody() -> None:
    """Python warns about odd escapes; a run would print one line for every malformed call."""
    code = "from prl.parse import load_object; print(load_object(chr(123) + \"'a': 'x\\\\d'\" + chr(125)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "{'a': 'x\\\\d'}", "")
