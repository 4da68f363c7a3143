"""Read the parameters of a function, also of torch's custom operators, which hide them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

EMPTY = inspect.Parameter.empty
_HIDDEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return parameter -> default, `EMPTY` where there is none; nothing for a function that tells none.

    The Python signature of a `torch.library.custom_op` is (*args, **kwargs); its own is that of the function that it
    was made of. An operator from `torch.ops` has only its schema.
    """
    made_of = getattr(function, "_init_fn", None)
    if made_of is not None:
        return _of_python(made_of)
    schema = getattr(function, "_schema", None) or getattr(getattr(function, "default", None), "_schema", None)
    if schema is not None:
        return {
            argument.name: argument.default_value if argument.has_default_value() else EMPTY
            for argument in schema.arguments
        }
    return _of_python(function)


def nameless_of(function: Callable[..., Any]) -> list[str]:
    """Return the parameters that a function takes by their place alone, never by name."""
    try:
        parameters = inspect.signature(getattr(function, "_init_fn", function)).parameters
    except (TypeError, ValueError):
        return []
    return [name for name, one in parameters.items() if one.kind is inspect.Parameter.POSITIONAL_ONLY]


def _of_python(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}
    return {name: one.default for name, one in signature.parameters.items() if one.kind not in _HIDDEN}
