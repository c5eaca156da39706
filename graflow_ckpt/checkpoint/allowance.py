"""What a checkpoint may take: `max_checkpoint_size_mb`.

Promise: one that takes more is refused as a whole, with its size, and the former one stands; nothing is
left out of it, and none is passed over in silence. From 80 % on there is one warning for each session. What
a session pauses with is kept whatever its size: there would be nothing to go on from.
Not here: what follows from a refusal.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from graflow_ckpt.core.errors import TooLarge
from graflow_ckpt.core.protocols import Buffer, Sink

log = logging.getLogger("graflow_ckpt.checkpoint")

MB: Final = 1_000_000
_NEAR: Final = 0.8
_PAUSES: Final = frozenset({"failure", "signal", "pause"})


@dataclass(slots=True)
class Allowance:
    """Of one session. `limit`: bytes, None for no limit."""

    limit: int | None = None
    warned: bool = field(default=False, init=False)

    def meter(self, session: str, path: str, cause: str) -> Meter:
        """For one checkpoint."""
        return Meter(self, session, path, spared=cause in _PAUSES)


@dataclass(slots=True)
class Meter:
    """Counts what is written of one checkpoint, and writes no more of it than is allowed."""

    allowance: Allowance
    session: str
    path: str
    spared: bool
    size: int = 0

    def takes(self, size: int) -> bool:
        """Count so many bytes; whether they are to be written. Past the limit the rest is counted only, so
        that the refusal can say how much it would have been."""
        self.size += size
        return self.spared or not self.over

    def sink(self, sink: Sink) -> Sink:
        return sink if self.allowance.limit is None else _Metered(self, sink)

    @property
    def over(self) -> bool:
        limit = self.allowance.limit
        return limit is not None and self.size > limit

    def check(self) -> None:
        """After each part: TooLarge if it was one too many."""
        if self.over and not self.spared:
            size, limit = self._mb(self.size), self._mb(self.allowance.limit)
            raise TooLarge(
                f"Checkpoint size ({size} MB) exceeds limit ({limit} MB). "
                "Consider reducing context size or increasing limit.",
                hint="It is max_checkpoint_size_mb. What is large can be kept in a file, and its path here.",
                path=self.path,
                session=self.session,
                size=self.size,
                limit=self.allowance.limit,
            )

    def done(self) -> None:
        """It was saved; somebody may want to know before the next one is refused."""
        limit = self.allowance.limit
        if limit is not None and self.size >= _NEAR * limit and not self.allowance.warned:
            self.allowance.warned = True
            log.warning(
                "Checkpoint size (%s MB) %s limit (%s MB).%s",
                self._mb(self.size),
                "exceeds" if self.over else "approaches",
                self._mb(limit),
                " It is kept, since the session pauses with it." if self.over else "",
                extra={"session": self.session},
            )

    @staticmethod
    def _mb(size: int | None) -> str:
        return f"{(size or 0) / MB:.4g}"


class _Metered:
    """A sink behind the count."""

    __slots__ = ("_meter", "_sink")

    def __init__(self, meter: Meter, sink: Sink) -> None:
        self._meter, self._sink = meter, sink

    def write(self, data: Buffer, /) -> int:
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if self._meter.takes(size):
            self._sink.write(data)
        return size
