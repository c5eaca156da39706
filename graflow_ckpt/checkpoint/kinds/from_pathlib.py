"""Paths: one tag byte for the class, then the text.

A path that can touch files cannot be made on the other operating system; there it comes back
as the pure path of its own flavour, which says the same.
"""

from __future__ import annotations

import os
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath

from msgpack import ExtType

from graflow_ckpt.checkpoint.kinds import Kind, Packing, Unpacking, ext

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


def _encode(value: PurePath, _: Packing) -> ExtType:
    return ext(12, _TAGS[type(value)] + str(value).encode("utf-8", "surrogatepass"))


def _decode(data: bytes, _: Unpacking) -> PurePath:
    return _CLASSES[data[:1]](data[1:].decode("utf-8", "surrogatepass"))


KINDS = (Kind(12, tuple(_TAGS), _encode, _decode),)
