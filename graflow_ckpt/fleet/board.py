"""The board: one page of memory that a pool shares with its children, a line for each of them.

    parent writes   order, deadline, pid            child writes   state, what it runs, since, slices

Promise: what a child wrote before it was killed can be read at once, and is never half of something:
its length is written last and cleared first. No lock: each field has one writer.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from mmap import mmap
from time import monotonic
from typing import NamedTuple

_LINE = 256
_TEXT = 48  # where the text begins
_ORDER, _STATE, _LENGTH = 0, 1, 2
_PID = struct.Struct("<Q")
_TIME = struct.Struct("<d")


class Order(IntEnum):
    """The order for a child: what it is to do."""

    WORK = 0
    DRAIN = 1  # finish what runs, until the deadline
    LEAVE = 2  # release what runs, at once


class State(IntEnum):
    """The state of a child: what it does."""

    STARTING = 0
    IDLE = 1
    BUSY = 2


class RunningSlice(NamedTuple):
    """A slice that runs."""

    session: str
    token: str


class BoardLine:
    """One child's line."""

    def __init__(self, page: mmap, at: int) -> None:
        self._page = page
        self._at = at

    # --- the parent's ------------------------------------------------------------------

    def begin(self, pid: int) -> None:
        """Give this line to a new child. It may have written to it already."""
        _PID.pack_into(self._page, self._at + 8, pid)

    def reset(self) -> None:
        """Clear the line before a child is made."""
        self._page[self._at : self._at + _LINE] = bytes(_LINE)

    def tell(self, order: Order, deadline: float) -> None:
        """Write an order. Its deadline is of the monotonic clock, which a machine's processes share."""
        _TIME.pack_into(self._page, self._at + 16, deadline)
        self._page[self._at + _ORDER] = order

    def count(self, number: int) -> None:
        """Write to the parent's own line how many children it had to restart."""
        _PID.pack_into(self._page, self._at + 32, number)

    # --- the child's -------------------------------------------------------------------

    def now(self, state: State) -> None:
        self._page[self._at + _STATE] = state

    def note(self, session: str, token: str) -> None:
        """Note that a slice begins; with two empty strings it is over."""
        self._page[self._at + _LENGTH] = 0  # a reader sees nothing rather than half a name
        if not token:
            self.now(State.IDLE)
            return
        text = f"{session} {token}".encode()[: _LINE - _TEXT]
        start = self._at + _TEXT
        self._page[start : start + len(text)] = text
        _TIME.pack_into(self._page, self._at + 24, monotonic())
        _PID.pack_into(self._page, self._at + 32, self.slices + 1)
        self._page[self._at + _LENGTH] = len(text)
        self.now(State.BUSY)

    # --- of all lines ------------------------------------------------------------------

    @property
    def order(self) -> Order:
        return Order(self._page[self._at + _ORDER])

    @property
    def deadline(self) -> float:
        found: float = _TIME.unpack_from(self._page, self._at + 16)[0]
        return found

    @property
    def state(self) -> State:
        return State(self._page[self._at + _STATE])

    @property
    def pid(self) -> int:
        found: int = _PID.unpack_from(self._page, self._at + 8)[0]
        return found

    @property
    def slices(self) -> int:
        found: int = _PID.unpack_from(self._page, self._at + 32)[0]
        return found

    @property
    def seconds(self) -> float:
        """For how long the slice has been running that runs."""
        began: float = _TIME.unpack_from(self._page, self._at + 24)[0]
        return monotonic() - began

    @property
    def run(self) -> RunningSlice | None:
        length = self._page[self._at + _LENGTH]
        if not length:
            return None
        start = self._at + _TEXT
        session, _, token = self._page[start : start + length].decode().partition(" ")
        return RunningSlice(session, token)


class Board:
    """All lines. Made before the children are forked; they inherit it."""

    def __init__(self, lines: int) -> None:
        self._page = mmap(-1, max(1, lines) * _LINE)  # anonymous, shared
        self.lines = [BoardLine(self._page, n * _LINE) for n in range(lines)]
