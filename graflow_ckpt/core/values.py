"""Cells: what a session holds for a value.

A plain value is its codec bytes. Everything else is live: the object itself, boxed, so that
nobody mistakes it for bytes.
"""

from __future__ import annotations

from typing import Any


class Live:
    """A box around an object that only pickle can keep."""

    __slots__ = ("bundle", "value")

    # Whatever the user put into the channel.
    def __init__(self, value: Any, bundle: int = 0) -> None:
        self.value = value
        self.bundle = bundle  # in one transition: equal numbers share objects, and are pickled together

    def __repr__(self) -> str:
        return f"Live({type(self.value).__name__})"


Cell = bytes | Live

Version = int | bytes
"""What tells one write of a value from every other: compared, and nothing else. 0: there is no value."""
