"""Which experts a mixture-of-experts model used: lists of integers, or what vLLM makes of them.

vLLM 0.32 sends the rows [tokens - 1, layers, experts per token] as base64 of a `.npy` file
(vllm/entrypoints/scale_out/token_in_token_out/protocol.py, and its chat route).
"""

from __future__ import annotations

import ast
import base64
from typing import Any

from . import wire

_MAGIC = b"\x93NUMPY"
_CODES = {"u1": "B", "i1": "b", "u2": "H", "i2": "h", "u4": "I", "i4": "i", "u8": "Q", "i8": "q"}
"""Integer types as `.npy` files name them -> as memory views do."""


def read_routing(value: Any, name: str, where: str) -> Any:
    """Return routing rows as nested lists, None where there are none; raise `MalformedResponseError` for others."""
    if value is None or isinstance(value, list):
        return value
    if not isinstance(value, str):
        raise wire.malformed(f"{name}.routed_experts is {type(value).__name__}", where)
    try:
        return _from_npy(base64.b64decode(value, validate=True))
    except (ValueError, TypeError, KeyError, SyntaxError, IndexError) as error:
        raise wire.malformed(f"{name}.routed_experts is no base64 of an array of integers: {error}", where) from error


def _from_npy(data: bytes) -> Any:
    """Return the array of a `.npy` file (numpy.lib.format), without numpy."""
    if not data.startswith(_MAGIC):
        raise ValueError("it does not begin as a .npy file")
    start = len(_MAGIC) + 2 + (2 if data[len(_MAGIC)] == 1 else 4)
    end = start + int.from_bytes(data[len(_MAGIC) + 2 : start], "little")
    header = ast.literal_eval(data[start:end].decode("utf-8"))
    if header["fortran_order"] or header["descr"][0] not in "<|":
        raise ValueError(f"its order is that of {header['descr']}, fortran_order {header['fortran_order']}")
    view: Any = memoryview(data)[end:]
    return view.cast(_CODES[header["descr"][1:]], header["shape"]).tolist()
