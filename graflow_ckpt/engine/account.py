"""An account: what is kept of an exception as text, for those who never see the exception itself.

    Type: message           what lists show is its first line
    \\x1e traceback          where whoever waits for it is elsewhere

Promise: making one never fails, whatever the exception does when it is asked for its message, and it
has an end: what is left out of the middle is counted. Nothing of it is ever pickled.
"""

from __future__ import annotations

import re
from traceback import TracebackException
from typing import NamedTuple, Self

MESSAGE = 4_000
"""Characters of a message that are kept."""

TRACEBACK = 16_000
"""Characters of a traceback that are kept."""

_DIVIDED = "\n\x1e"
_TYPE = re.compile(r"[^\W\d][\w.]*\Z")


class Account(NamedTuple):
    """An exception in words."""

    type: str  # "" of what is no exception's
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException, *, traced: bool) -> Self:
        return cls(type(error).__name__, _message(error), _traceback(error) if traced else "")

    @classmethod
    def read(cls, text: str) -> Self:
        """Back from its text, or of whatever else is a reason."""
        said, _, traceback = text.partition(_DIVIDED)
        kind, colon, message = said.partition(": ")
        if not colon or not _TYPE.match(kind):
            kind, message = "", said
        return cls(kind, message, traceback)

    @property
    def line(self) -> str:
        """For a list."""
        first = self.message.partition("\n")[0]
        return f"{self.type}: {first}" if self.type else first

    @property
    def text(self) -> str:
        """As it is stored."""
        said = f"{self.type}: {self.message}"
        return f"{said}{_DIVIDED}{self.traceback}" if self.traceback else said


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001  a body's own code
        text = f"(its message cannot be made: {type(broken).__name__})"
    return _clean(_shortened(text, MESSAGE))


def _traceback(error: BaseException) -> str:
    try:
        parts = TracebackException(type(error), error, error.__traceback__, compact=True).format()
        text = "".join(_shortened(part, MESSAGE) for part in parts)
    except Exception as broken:  # noqa: BLE001  a body's own code: notes, causes, sources that are no text
        text = f"(its traceback cannot be made: {type(broken).__name__})\n"
    return _clean(_shortened(text, TRACEBACK))


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head, tail = limit // 2, limit - limit // 2
    return f"{text[:head]} … ({len(text) - limit} characters are left out) … {text[-tail:]}"


def _clean(text: str) -> str:
    """Without what cannot be sent, or would be taken for the mark between message and traceback."""
    return text.encode(errors="backslashreplace").decode().replace("\x1e", " ")
