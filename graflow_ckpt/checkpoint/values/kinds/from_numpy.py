"""numpy scalars: the dtype's text with its length before it, then the value's memory.

Arrays are not plain: they are changed in place. Left to pickle as well: long doubles (another
format on every machine), `str_` and `bytes_` (they cut off trailing zeros) and `void`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graflow_ckpt.checkpoint.values.kinds import Kind, Packing, Unpacking

_TYPES: tuple[type[np.generic], ...] = (
    np.bool_,
    *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
    *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
    *(np.datetime64, np.timedelta64),
)


def _encode(value: np.generic, _: Packing) -> bytes:
    dtype = value.dtype.str.encode("ascii")
    return bytes((len(dtype),)) + dtype + value.tobytes()


def _decode(data: bytes, _: Unpacking) -> np.generic:
    end = 1 + data[0]
    # Any: numpy has no name for "a dtype of one of these".
    dtype: np.dtype[Any] = np.dtype(data[1:end].decode("ascii"))
    if dtype.type not in _TYPES or len(data) != end + dtype.itemsize:
        raise ValueError(f"not a numpy scalar: {data[1:end]!r}")
    value: np.generic = np.frombuffer(data, dtype, offset=end)[0]
    return value


KINDS = (Kind(13, _TYPES, _encode, _decode),)
