"""Decimals, as the text that gives back sign, digits, exponent and NaN payload."""

from __future__ import annotations

from decimal import Decimal

from msgpack import ExtType

from graflow_ckpt.checkpoint.kinds import Kind, Packing, Unpacking, ext


def _encode(value: Decimal, _: Packing) -> ExtType:
    return ext(10, str(value).encode("ascii"))


def _decode(data: bytes, _: Unpacking) -> Decimal:
    return Decimal(data.decode("ascii"))


KINDS = (Kind(10, (Decimal,), _encode, _decode),)
