"""One function bound by its own signature: each argument under exactly one name, and nothing left to chance."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from prl.types import PluginError
from prl_attention_flash.binder import Bound

NEEDED = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "scale", "causal", "window")
ARGUMENTS: dict[str, Any] = {
    "q": 1,
    "k": 2,
    "v": 3,
    "cu_seqlens_q": 4,
    "cu_seqlens_k": 5,
    "max_seqlen_q": 6,
    "max_seqlen_k": 7,
    "scale": 0.5,
    "causal": True,
}
SHARED = "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale"


def received(tail: str, window: tuple[int, int], optional: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """Bind a function with these last parameters, call it, and return what it got beyond the shared ones."""
    scope: dict[str, Any] = {}
    exec(f"def function({SHARED}, {tail}): return dict(locals())", scope)
    bound = Bound(scope["function"], NEEDED, optional, place="acme.function", version="1.2")
    got: dict[str, Any] = bound(window=window, **ARGUMENTS, **more)
    assert (got["q"], got["max_seqlen_k"], got["softmax_scale"]) == (1, 7, 0.5)
    return {name: value for name, value in got.items() if name not in SHARED.split(", ")}


@pytest.mark.parametrize(
    ("tail", "wanted"),
    [
        ("causal=False, window_size=(-1, -1)", {"causal": True, "window_size": (3, 0)}),
        (
            "is_causal=False, window_size_left=-1, window_size_right=-1",
            {"is_causal": True, "window_size_left": 3, "window_size_right": 0},
        ),
        (
            "causal=False, window_size_left=None, window_size_right=None",
            {"causal": True, "window_size_left": 3, "window_size_right": 0},
        ),
    ],
)
def test_the_names_that_the_function_has_are_used(tail: str, wanted: dict[str, Any]) -> None:
    """Passed under both names the call fails; under the wrong one causality stays at its default, off."""
    assert received(tail, (3, 0)) == wanted


def test_of_two_names_one_is_passed() -> None:
    """A version that takes the old name beside the new one refuses both at once."""
    got = received(
        "causal=False, is_causal='unset', window_size='unset', window_size_left=-1, window_size_right=-1", (3, 0)
    )
    assert got == {
        "causal": True,
        "is_causal": "unset",
        "window_size": "unset",
        "window_size_left": 3,
        "window_size_right": 0,
    }


@pytest.mark.parametrize(
    ("tail", "wanted"),
    [
        ("causal, window_size=(-1, -1)", (-1, -1)),
        ("causal, window_size=(None, None)", (None, None)),
        ("causal, window_size", (-1, -1)),
        ("causal, window_size=None", (-1, -1)),
        ("causal, window_size=(0, 0)", (-1, -1)),
    ],
)
def test_infinite_is_the_functions_own_default(tail: str, wanted: tuple[Any, Any]) -> None:
    assert received(tail, (-1, -1))["window_size"] == wanted


def test_what_is_required_and_known_gets_its_neutral_value() -> None:
    got = received("dropout_p, softcap, causal, window_size, alibi_slopes, deterministic", (-1, -1), ("softcap",))
    assert (got["dropout_p"], got["softcap"], got["alibi_slopes"], got["deterministic"]) == (0.0, 0.0, None, False)
    got = received("softcap, causal, window_size", (-1, -1), ("softcap",), softcap=2.0)
    assert got["softcap"] == 2.0


def test_neither_name_is_an_error_that_tells_the_version() -> None:
    with pytest.raises(PluginError) as caught:
        received("window_size=(-1, -1)", (3, 0))
    assert "looked for causal or is_causal, found q, k, v" in caught.value.what
    assert caught.value.where == "acme.function, version 1.2"


def test_an_unknown_required_parameter_is_named() -> None:
    with pytest.raises(PluginError, match="requires 'page_size', which this adapter does not know"):
        received("causal, window_size, page_size", (3, 0))


def test_each_side_of_a_window_has_its_own_word_for_infinite() -> None:
    """A default of 0 is a window of one token: passed on as if it were infinite, a model would see itself alone."""
    got = received("causal, window_size_left=None, window_size_right=0", (-1, -1))
    assert (got["window_size_left"], got["window_size_right"]) == (None, -1)


def test_parameters_without_names_are_refused_at_load() -> None:
    def by_place(q: Any, k: Any, v: Any, /, causal: bool = False) -> None: ...

    with pytest.raises(PluginError, match="takes 'q', 'k', 'v' by place alone") as caught:
        Bound(by_place, ("q", "k", "v", "causal"), (), place="acme.function", version="1.2")
    assert caught.value.where == "acme.function, version 1.2"


def test_wrapped_functions_are_read_as_what_they_wrap() -> None:
    """A decorator that keeps the name of what it wraps, or an argument fixed beforehand, hides nothing."""
    scope: dict[str, Any] = {}
    exec(f"def function({SHARED}, knob, is_causal=False, window_size=(-1, -1)): return dict(locals())", scope)

    @functools.wraps(scope["function"])
    def wrapped(*given: Any, **named: Any) -> Any:
        return scope["function"](*given, **named)

    bound = Bound(functools.partial(wrapped, knob=4), NEEDED, (), place="acme.function", version="1.2")
    got = bound(window=(3, 0), **ARGUMENTS)
    assert (got["is_causal"], got["window_size"], got["knob"]) == (True, (3, 0), 4)
