"""Calls as Llama models write them, and what must not be read as one."""

from __future__ import annotations

from typing import Any

import pytest

from prl.contracts import ToolCodec
from prl.testing import ToolParserSuite
from prl_parser_pythonic.tools import PythonicCalls

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}},
    }
]


class TestCalls(ToolParserSuite):
    @pytest.fixture
    def codec(self) -> ToolCodec:
        return PythonicCalls()


def read(region: str, tools: Any = None) -> list[Any]:
    return [(call.name, call.arguments) for call in PythonicCalls().read(region, tools)]


@pytest.mark.parametrize(
    ("region", "calls"),
    [
        ("get_weather(city='Oslo', days=3)", [("get_weather", {"city": "Oslo", "days": 3})]),
        ('f(a="it\'s"), g(b=[1, 2.5, -3])', [("f", {"a": "it's"}), ("g", {"b": [1, 2.5, -3]})]),
        ("f(a={'k': [None, True]}, b=(1, 2))", [("f", {"a": {"k": [None, True]}, "b": [1, 2]})]),
        ("f(ok=true, none=null, no=false)", [("f", {"ok": True, "none": None, "no": False})]),
        ("ping()", [("ping", {})]),
        ("math.add(x=1), naïve-name(y=2)", [("math.add", {"x": 1}), ("naïve-name", {"y": 2})]),
        ("f(a='x, y)', b='[1]')", [("f", {"a": "x, y)", "b": "[1]"})]),
        ("f(**{'x y': 1, 'class': 2})", [("f", {"x y": 1, "class": 2})]),
        ("f(\n  a=1,\n  b='two',\n)", [("f", {"a": 1, "b": "two"})]),
        ("f(a='line\\nfeed')", [("f", {"a": "line\nfeed"})]),
    ],
)
def test_calls_are_read_with_their_types(region: str, calls: list[Any]) -> None:
    assert read(region) == calls


def test_positional_arguments_take_the_names_of_the_schema() -> None:
    """Models leave names out; the schema's order says which is which, and without one nobody can know."""
    assert read("add(1, b=2)", TOOLS) == [("add", {"a": 1, "b": 2})]
    assert read("add(1, 2)") == [("", None)]


@pytest.mark.parametrize(
    "region",
    [
        "f(a=b)",
        "f(a=1+1)",
        "f(a=g())",
        "f(a=__import__('os').system('true'))",
        "f(a=1)(b=2)",
        "f(a=1, a=2)",
        "f(**{'a': 1}, a=2)",
        "f(a=1",
        "f(a='x)",
        "f(a=1e999)",
        "f(a=b'bytes')",
        "f(a={1: 2})",
        "f(a=f'{x}')",
        "f(a=...)",
        "f(a=1) g(b=2)",
        "f(*[1])",
        "f(a=(yield))",
        "f(a=1); g()",
        "f(a:=1)",
        "",
        "f(a=1),, g()",
    ],
)
def test_what_is_no_call_of_literals_is_malformed_and_never_evaluated(region: str) -> None:
    assert (("", None)) in read(region)


def test_one_malformed_call_does_not_spoil_the_others() -> None:
    assert read("f(a=1), g(b=c), h()") == [("f", {"a": 1}), ("", None), ("h", {})]


def test_a_long_nested_list_is_refused_not_a_crash() -> None:
    assert read("f(a=" + "[" * 90_000 + "])") == [("", None)]
    assert read("f(a=" + "1," * 200_000 + ")") == [("", None)]
