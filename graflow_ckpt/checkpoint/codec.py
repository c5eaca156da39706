"""Plain values as bytes: msgpack, with extension types (kinds/) for what msgpack does not know.

Plain means: of an exact type listed in ARCHITECTURE section 5, all the way down, as a tree. What
is decoded has the types, the order and the bits that were encoded; equal values in equal order
have equal bytes, so that bytes can be compared instead of values. Decoding runs no code.

Not plain, so that nothing changes silently on the way: subclasses (decoding them would import
code), one list, dict or set in two places (two would come back), cycles, more than 400 levels
(100 of tuples and sets), more than 4 GiB. Not here: what cannot be plain (cells.py).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import msgpack

from graflow_ckpt.checkpoint.kinds import SCALARS, NotPlain, builtin, decoder, encoder, take_in
from graflow_ckpt.checkpoint.tree import MAX_EXT_DEPTH, MAX_SIZE, check_plain
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError

NONE: Final = b"\xc0"

_ATOMS: Final = frozenset(SCALARS)
_KEPT: Final = 1 << 16  # a packer keeps the largest buffer that it ever had

# Extension code -1 is decoded by msgpack itself, before anybody is asked.
_TIMESTAMPS: Final = (b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff")
_BROKEN: Final = (
    ValueError, TypeError, LookupError, ArithmeticError, struct.error, msgpack.UnpackException,
    SyntaxError, OSError, RuntimeError, AttributeError,  # of a dtype or a time zone that is none
)  # fmt: skip

take_in(*builtin.KINDS)


# Any, here and below: whatever the user put into the channel.
def is_atom(value: Any) -> bool:
    """Is it immutable and of an exact builtin type, so that nobody needs a copy of it?"""
    return type(value) in _ATOMS


def encode(value: Any) -> bytes:
    """The bytes of a plain value; NotPlain if it is not one."""
    if type(value) not in SCALARS:
        check_plain(value)
    elif type(value) is bytes and _KEPT <= len(value) <= MAX_SIZE:
        # What the packer would make, with one copy less.
        return b"\xc6%b%b" % (len(value).to_bytes(4, "big"), value)
    return _pack(value)


def decode(data: bytes) -> Any:
    """The value of the bytes; CheckpointCorrupt if `encode` cannot have made them."""
    try:
        value = _unpack(data)
    except _BROKEN as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointCorrupt(f"A stored value cannot be decoded: {error!r}.") from error
    if type(value) not in _ATOMS and b"\xff" in data and any(mark in data for mark in _TIMESTAMPS):
        _refuse_timestamps(value)
    return value


# --- packing ---------------------------------------------------------------------------

# A packer is not reentrant, and a finalizer or another thread can come in at any allocation:
# whoever packs takes one out, and only one that did not fail comes back.
_packers: list[msgpack.Packer] = []


def _new_packer(unicode_errors: str | None = None) -> msgpack.Packer:
    return msgpack.Packer(strict_types=True, default=_pack_ext, unicode_errors=unicode_errors, buf_size=1024)


def _pack(value: Any) -> bytes:
    try:
        packer = _packers.pop()
    except IndexError:
        packer = _new_packer()
    try:
        data: bytes = packer.pack(value)
    except (ValueError, OverflowError, RecursionError) as error:
        return _pack_odd(value, error)
    if len(data) < _KEPT:
        _packers.append(packer)
    return data


def _pack_odd(value: Any, error: Exception) -> bytes:
    if not isinstance(error, UnicodeEncodeError):
        raise NotPlain(type(value), str(error)) from error
    try:
        # Lone surrogates. A packer that lets them pass is slower; what has none gets the same bytes.
        data: bytes = _new_packer("surrogatepass").pack(value)
    except (ValueError, OverflowError, RecursionError) as other:
        raise NotPlain(type(value), str(other)) from other
    return data


def _pack_ext(value: Any) -> msgpack.ExtType:
    encode_kind = encoder(type(value))
    if encode_kind is None:
        raise NotPlain(type(value))
    packed = encode_kind(value, _pack)
    if len(packed.data) > MAX_SIZE:
        raise NotPlain(type(value), "more than 4 GiB")
    return packed


def _level(depth: int, inner: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    """Decodes what lies so many extensions deep. Each takes a call within a call, and the stack of a thread
    ends without an error: whoever nests thousands of them would end the process."""

    def unpack_ext(code: int, data: bytes) -> Any:
        decode_kind = decoder(code)
        if decode_kind is None:
            raise CheckpointCorrupt(
                f"A stored value has the unknown extension code {code}.",
                hint="Either a newer graflow_ckpt wrote it, or the bytes are damaged.",
                code=code,
            )
        if inner is None:
            raise CheckpointCorrupt(f"A stored value has more than {depth} levels of tuples and sets.")
        return decode_kind(data, inner)

    def unpack(data: bytes) -> Any:
        return msgpack.unpackb(
            data, ext_hook=unpack_ext, strict_map_key=False, unicode_errors="surrogatepass"
        )

    return unpack


def _levels() -> Callable[[bytes], Any]:
    unpack = _level(MAX_EXT_DEPTH + 1, None)
    for depth in range(MAX_EXT_DEPTH, -1, -1):
        unpack = _level(depth, unpack)
    return unpack


_unpack: Final = _levels()


def _refuse_timestamps(value: Any) -> None:
    try:
        check_plain(value)
    except NotPlain as error:
        raise CheckpointCorrupt("A stored value has the unknown extension code -1.", code=-1) from error
