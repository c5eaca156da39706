"""Plain types of other modules: dates and times, decimals, UUIDs, paths; scalars of numpy.

The codec imports this file when it first meets one of them, so that importing the codec loads neither
datetime nor numpy.

dates, times  their fields, then the time zone as one tag byte and what it needs: none, `timezone.utc`, a
              fixed offset with or without a name, ZoneInfo by its key. Any other tzinfo runs code of its own,
              so it is not plain
decimals      the text that restores sign, digits, exponent and NaN payload
UUIDs         sixteen bytes, and one more for `is_safe` when it is known
paths         one tag byte for the class, then the text. A path that can touch files cannot be made on the
              other operating system; there it is the pure path of its own flavour, which says the same
numpy         scalars: the dtype's text with its length before it, then the value's memory. Arrays are not
              plain: they are changed in place. Left to pickle as well: long doubles (another format on every
              machine), `str_` and `bytes_` (they cut off trailing zeros) and `void`
"""

from __future__ import annotations

import os
import struct
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any
from uuid import UUID, SafeUUID

from graflow_ckpt.checkpoint.values.codec import Kind, NotPlain, Packing, Unpacking
from graflow_ckpt.core.errors import CheckpointError

_DATE = struct.Struct(">HBB")
_TIME = struct.Struct(">BBBIB")
_DATETIME = struct.Struct(">HBBBBBIB")
_TIMEDELTA = struct.Struct(">iII")
_OFFSET = struct.Struct(">q")

_UTC, _FIXED, _NAMED, _ZONE = b"u", b"f", b"n", b"z"


def _encode_time(value: time, _: Packing) -> bytes:
    fields = _TIME.pack(value.hour, value.minute, value.second, value.microsecond, value.fold)
    return fields + _zone_bytes(value.tzinfo)


def _decode_time(data: bytes, _: Unpacking) -> time:
    hour, minute, second, micro, fold = _TIME.unpack_from(data)
    return time(hour, minute, second, micro, _zone(data[_TIME.size :]), fold=fold)


def _encode_datetime(value: datetime, _: Packing) -> bytes:
    day = (value.year, value.month, value.day)
    fields = _DATETIME.pack(*day, value.hour, value.minute, value.second, value.microsecond, value.fold)
    return fields + _zone_bytes(value.tzinfo)


def _decode_datetime(data: bytes, _: Unpacking) -> datetime:
    year, month, day, hour, minute, second, micro, fold = _DATETIME.unpack_from(data)
    return datetime(year, month, day, hour, minute, second, micro, _zone(data[_DATETIME.size :]), fold=fold)


def _zone_bytes(zone: tzinfo | None) -> bytes:
    if zone is None:
        return b""
    if zone is UTC:
        return _UTC
    if type(zone) is timezone:
        return _fixed_bytes(*zone.__getinitargs__())  # type: ignore[attr-defined]  # what it was made with
    if type(zone).__module__ == "zoneinfo":
        from zoneinfo import ZoneInfo

        # Only what ZoneInfo(key) returns: one from a file, or made past the cache, is another object.
        if type(zone) is ZoneInfo and type(zone.key) is str and ZoneInfo(zone.key) is zone:
            return _ZONE + zone.key.encode()
    raise NotPlain(type(zone), "a time zone of its own")


def _fixed_bytes(offset: timedelta, name: str | None = None) -> bytes:
    fixed = _OFFSET.pack(offset // timedelta(microseconds=1))
    return _FIXED + fixed if name is None else _NAMED + fixed + name.encode("utf-8", "surrogatepass")


def _zone(data: bytes) -> tzinfo | None:
    match data[:1]:
        case b"":
            return None
        case b"u" if data == _UTC:
            return UTC
        case b"f":
            return timezone(timedelta(microseconds=_OFFSET.unpack(data[1:])[0]))
        case b"n":
            offset = timedelta(microseconds=_OFFSET.unpack_from(data, 1)[0])
            return timezone(offset, data[1 + _OFFSET.size :].decode("utf-8", "surrogatepass"))
        case b"z":
            return _zone_info(data[1:].decode())
    raise ValueError(f"unknown time zone tag {data[:1]!r}")


def _zone_info(key: str) -> tzinfo:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(key)
    except ZoneInfoNotFoundError as error:
        raise CheckpointError(
            f"A stored time is in the time zone {key!r}, which this machine does not know.",
            hint="Install the zones: pip install tzdata",
            needs="tzdata",
        ) from error


_SAFE = {SafeUUID.unknown: b"", SafeUUID.safe: b"s", SafeUUID.unsafe: b"u"}
_IS_SAFE = {tag: known for known, tag in _SAFE.items()}

_TAGS: dict[type[PurePath], bytes] = {
    PurePosixPath: b"p",
    PureWindowsPath: b"w",
    PosixPath: b"P",
    WindowsPath: b"W",
}
_CLASSES: dict[bytes, type[PurePath]] = {
    b"p": PurePosixPath,
    b"w": PureWindowsPath,
    b"P": PurePosixPath if os.name == "nt" else PosixPath,
    b"W": WindowsPath if os.name == "nt" else PureWindowsPath,
}


KINDS = (
    Kind(
        6, (date,), lambda value, _: _DATE.pack(value.year, value.month, value.day),
        lambda data, _: date(*_DATE.unpack(data)),
    ),
    Kind(7, (time,), _encode_time, _decode_time),
    Kind(8, (datetime,), _encode_datetime, _decode_datetime),
    Kind(
        9, (timedelta,), lambda value, _: _TIMEDELTA.pack(value.days, value.seconds, value.microseconds),
        lambda data, _: timedelta(*_TIMEDELTA.unpack(data)),
    ),
    Kind(
        10, (Decimal,), lambda value, _: str(value).encode("ascii"),
        lambda data, _: Decimal(data.decode("ascii")),
    ),
    Kind(
        11, (UUID,), lambda value, _: value.bytes + _SAFE[value.is_safe],
        lambda data, _: UUID(bytes=data[:16], is_safe=_IS_SAFE[data[16:]]),
    ),
    Kind(
        12, tuple(_TAGS), lambda path, _: _TAGS[type(path)] + str(path).encode("utf-8", "surrogatepass"),
        lambda data, _: _CLASSES[data[:1]](data[1:].decode("utf-8", "surrogatepass")),
    ),
)  # fmt: skip


def of_numpy() -> tuple[Kind, ...]:
    """Return the kind of numpy's scalars; ImportError where numpy is not installed."""
    import numpy as np

    types: tuple[type[np.generic], ...] = (
        np.bool_,
        *(np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
        *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
        *(np.datetime64, np.timedelta64),
    )

    def encode(value: np.generic, _: Packing) -> bytes:
        dtype = value.dtype.str.encode("ascii")
        return bytes((len(dtype),)) + dtype + value.tobytes()

    def decode(data: bytes, _: Unpacking) -> np.generic:
        end = 1 + data[0]
        # Any: numpy has no name for "a dtype of one of these".
        dtype: np.dtype[Any] = np.dtype(data[1:end].decode("ascii"))
        if dtype.type not in types or len(data) != end + dtype.itemsize:
            raise ValueError(f"not a numpy scalar: {data[1:end]!r}")
        value: np.generic = np.frombuffer(data, dtype, offset=end)[0]
        return value

    return (Kind(13, types, encode, decode),)
