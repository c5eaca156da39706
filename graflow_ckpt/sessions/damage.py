"""Damage: what stands in the tables of a session in Redis and no version has written.

with readable(session, address): ...     what decoding them raises is a SessionDamaged, which names it
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.links.complaints import damaged

BROKEN: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What bytes that mean nothing raise when they are taken apart."""


@contextmanager
def readable(session: str, address: str = "") -> Iterator[None]:
    """Around what takes bytes of a session apart. Errors of our own pass."""
    try:
        yield
    except BROKEN as error:
        if isinstance(error, GraflowError):
            raise
        raise damaged(session, address, error) from error
