"""Bind one function of a library: find how its own signature spells what we pass, once, when the kernel is loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from prl.types import PluginError

from .signatures import EMPTY, nameless_of, parameters_of

SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "scale": ("softmax_scale",),
    "causal": ("causal", "is_causal"),
    "lse": ("softmax_lse", "lse"),
    "wants_lse": ("return_lse",),
}
"""Argument -> how libraries spell it; one that is not here has one spelling, its own."""

WINDOW_PAIR = ("window_size_left", "window_size_right")
WINDOW_TUPLE = "window_size"

NEUTRAL: Mapping[str, Any] = {
    "dropout_p": 0.0,
    "softcap": 0.0,
    "deterministic": False,
    "return_softmax": False,
    "zero_tensors": False,
    **dict.fromkeys(
        (
            "alibi_slopes",
            "block_table",
            "cu_seqlens_k_new",
            "k_descale",
            "k_new",
            "kv_batch_idx",
            "leftpad_k",
            "out",
            "out_",
            "page_table",
            "q_descale",
            "qv",
            "rng_state",
            "rotary_cos",
            "rotary_sin",
            "seqlens_rotary",
            "seqused_k",
            "seqused_q",
            "sequed_k",
            "sequed_q",
            "v_descale",
            "v_new",
        )
    ),
}
"""Parameters that some versions require and that we never use -> the value that means nothing."""


class Bound:
    """A function and the spelling of everything that it is called with."""

    def __init__(
        self,
        function: Callable[..., Any],
        needed: Collection[str],
        optional: Collection[str],
        *,
        place: str,
        version: str,
    ) -> None:
        """Read the signature; raise `PluginError` naming what was looked for, or an unknown required parameter.

        `needed` and `optional` are our names of arguments, "window" among them; `place` and `version` are for messages.
        """
        self._function = function
        self._place = f"{place}, version {version}"
        parameters = parameters_of(function)
        if not parameters:
            raise self._error("does not tell its parameters", "install a released version of the library")
        nameless = nameless_of(function)
        if nameless:
            raise self._error(
                f"takes {', '.join(map(repr, nameless))} by place alone, and this adapter names what it passes",
                "update prl-attention-flash, or install a version of the library that it knows",
            )
        self._names = {ours: self._spelling(ours, parameters) for ours in needed if ours != "window"}
        self._names |= {ours: name for ours in optional if (name := _first(ours, parameters)) is not None}
        self._infinite, self._window = self._read_window(parameters)
        passed = {*(self._names[ours] for ours in needed if ours != "window"), *self._window}
        rest = [name for name, default in parameters.items() if name not in passed and default is EMPTY]
        unknown = [name for name in rest if name not in NEUTRAL]
        if unknown:
            raise self._error(
                f"requires {', '.join(map(repr, unknown))}, which this adapter does not know",
                "update prl-attention-flash, or install a version of the library that it knows",
            )
        self._fixed = {name: NEUTRAL[name] for name in rest}

    def has(self, ours: str) -> bool:
        """Say whether the function takes an argument, by our name."""
        return ours in self._names

    def __call__(self, *, window: tuple[int, int], **arguments: Any) -> Any:
        """Call the function by keywords, each argument under the one name that it has there.

        `window` is (left, right) with -1 for infinite. Optional arguments that the function does not take are left out.
        """
        named = {self._names[ours]: value for ours, value in arguments.items() if ours in self._names}
        sides = tuple(word if side < 0 else side for side, word in zip(window, self._infinite, strict=True))
        windows = dict(zip(self._window, sides, strict=True)) if len(self._window) == 2 else {self._window[0]: sides}
        return self._function(**{**self._fixed, **named, **windows})

    def _read_window(self, parameters: Mapping[str, Any]) -> tuple[tuple[int | None, ...], tuple[str, ...]]:
        """Return the library's words for infinite, left and right, and the names of the window."""
        if all(name in parameters for name in WINDOW_PAIR):
            return tuple(_infinite(parameters[name]) for name in WINDOW_PAIR), WINDOW_PAIR
        if WINDOW_TUPLE in parameters:
            default = parameters[WINDOW_TUPLE]
            is_pair = isinstance(default, tuple | list) and len(default) == 2
            return tuple(map(_infinite, default)) if is_pair else (-1, -1), (WINDOW_TUPLE,)
        raise self._missing("window", (WINDOW_TUPLE, " with ".join(WINDOW_PAIR)), parameters)

    def _spelling(self, ours: str, parameters: Mapping[str, Any]) -> str:
        name = _first(ours, parameters)
        if name is None:
            raise self._missing(ours, SPELLINGS.get(ours, (ours,)), parameters)
        return name

    def _missing(self, ours: str, looked_for: Collection[str], parameters: Collection[str]) -> PluginError:
        return self._error(
            f"has no parameter for {ours!r}: looked for {' or '.join(looked_for)}, found {', '.join(parameters)}",
            "update prl-attention-flash, or install a version of the library that it knows",
        )

    def _error(self, what: str, next_step: str) -> PluginError:
        return PluginError(f"the library's function {what}", where=self._place, next_step=next_step)


def _infinite(default: Any) -> int | None:
    """Return the word for infinite: None where the function's own default is, else -1 (a default of 0 is a window)."""
    return None if default is None else -1


def _first(ours: str, parameters: Collection[str]) -> str | None:
    """Return the first spelling that there is; a function with two gets only that one."""
    return next((name for name in SPELLINGS.get(ours, (ours,)) if name in parameters), None)
