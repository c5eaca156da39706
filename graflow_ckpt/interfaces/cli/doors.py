"""Doors: what a program knows as stdout and stderr, while a live block may stand below its output.

They are put up before the program starts, because it may keep them: a logging handler that was
made early has to write above the block as well. A forked child has no thread that draws, and
must not wait for its lock: its doors lead to the real streams.
"""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

from rich.console import Console
from rich.file_proxy import FileProxy


class Door:
    """One stream; where it leads can change."""

    def __init__(self, stream: TextIO) -> None:
        self.real = stream
        self.leads_to: Any = stream  # Any: the stream, or rich's stand-in for it

    def write(self, text: str) -> int:
        written: int = self.leads_to.write(text)
        return written

    def flush(self) -> None:
        if self.leads_to is self.real:  # above a block half a line waits for its other half
            self.real.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Doors:
    """Both of them."""

    def __init__(self) -> None:
        self.out, self.err = Door(sys.stdout), Door(sys.stderr)
        vars(sys).update(stdout=self.out, stderr=self.err)
        os.register_at_fork(after_in_child=self._open_in_child)

    def lead_above(self, console: Console) -> None:
        """What goes to the terminal is written above the block; a file gets what is meant for it."""
        self.err.leads_to = FileProxy(console, self.err.real)
        if self.out.real.isatty():
            self.out.leads_to = FileProxy(console, self.out.real)

    def _open_in_child(self) -> None:
        for door in (self.out, self.err):
            door.leads_to = door.real

    def open(self) -> None:
        """To the real streams again."""
        for door in (self.out, self.err):
            door.leads_to, before = door.real, door.leads_to
            if before is not door.real:
                before.flush()  # an unfinished line
