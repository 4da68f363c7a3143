"""JSON as encoders in other languages write it."""

from __future__ import annotations

import pytest

from prl.render import write_json


def test_numbers_and_separators_are_the_encoders_own() -> None:
    """One number in Python's form changes every token behind it."""
    value = {"ü": [1, 1e-7, True, None], "b": {}, 3: "x\n\u2028"}
    assert write_json(value, lambda number: f"<{number}>") == (
        '{"ü": [<1>, <1e-07>, true, null], "b": {}, "3": "x\\n\u2028"}'
    )
    assert write_json([1, {"a": 2}], str, comma=",", colon=":") == '[1,{"a":2}]'


def test_what_is_no_json_is_refused() -> None:
    """A prompt with the text of a Python object is no prompt."""
    with pytest.raises(TypeError):
        write_json({"a": object()}, str)
