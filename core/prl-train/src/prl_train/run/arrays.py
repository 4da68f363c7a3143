"""Arrays in msgpack: dtype, shape and bytes, as one extension value."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

_NDARRAY = 1
_AGAIN = 2


def pack_array(value: Any) -> Any:
    """Encode what msgpack has no type for; raise `TypeError` where it is no array either."""
    array = np.asarray(value)
    if array.dtype == object:
        raise TypeError(f"{type(value).__name__} has no place in a batch file")
    body = msgspec.msgpack.encode((array.dtype.str, array.shape, np.ascontiguousarray(array).tobytes()))
    return msgspec.msgpack.Ext(_NDARRAY, body)


class SharedArrays:
    """Encode and decode arrays of one message, each once however often it stands in it.

    A later place holds the number of the array among those before it, and reads back as the very same object: the
    images of a group are one array in every sample. Use one for one message.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._read: list[Any] = []
        self._held: list[Any] = []

    def pack(self, value: Any) -> Any:
        """Encode an array, or where it already stands."""
        number = self._numbers.get(id(value))
        if number is not None:
            return msgspec.msgpack.Ext(_AGAIN, msgspec.msgpack.encode(number))
        packed = pack_array(value)
        self._numbers[id(value)] = len(self._numbers)
        self._held.append(value)  # its id must not become another's before the message ends
        return packed

    def unpack(self, code: int, data: memoryview) -> Any:
        """Read back what `pack` wrote, in the order of the message."""
        if code == _AGAIN:
            number = msgspec.msgpack.decode(data, type=int)
            if not 0 <= number < len(self._read):
                raise ValueError(f"array {number} of {len(self._read)}")
            return self._read[number]
        self._read.append(unpack_array(code, data))
        return self._read[-1]


def unpack_array(code: int, data: memoryview) -> Any:
    """Read back what `pack_array` wrote; raise `ValueError` for an extension that is not its own."""
    if code != _NDARRAY:
        raise ValueError(f"unknown extension {code}")
    dtype, shape, raw = msgspec.msgpack.decode(data)
    return np.frombuffer(raw, dtype=np.dtype(dtype)).reshape(shape)
