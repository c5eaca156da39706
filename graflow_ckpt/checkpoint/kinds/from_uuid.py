"""UUIDs: sixteen bytes, and one more for `is_safe` when it is known."""

from __future__ import annotations

from uuid import UUID, SafeUUID

from msgpack import ExtType

from graflow_ckpt.checkpoint.kinds import Kind, Packing, Unpacking, ext


def _encode(value: UUID, _: Packing) -> ExtType:
    safe = b"" if value.is_safe is SafeUUID.unknown else b"s" if value.is_safe is SafeUUID.safe else b"u"
    return ext(11, value.bytes + safe)


def _decode(data: bytes, _: Unpacking) -> UUID:
    safe = {b"": SafeUUID.unknown, b"s": SafeUUID.safe, b"u": SafeUUID.unsafe}[data[16:]]
    return UUID(bytes=data[:16], is_safe=safe)


KINDS = (Kind(11, (UUID,), _encode, _decode),)
