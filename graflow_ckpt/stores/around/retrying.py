"""Retrying: a store whose errors that may pass are waited for.

    retry+postgresql://host/database          for up to 10 seconds per call
    retry.60+s3://bucket/runs                 for up to a minute

Promise: a call is made again only if its error may pass, and only where that cannot do a thing twice. A lease
whose reply was lost is given up, and released later. A `put` whose reply was lost is looked for first: if the
meta that was written is there, it was committed. A line of history is looked for in the same way. What is
appended to a journal is never sent twice; it fails, and the session stops, as without this wrapper. What a
writer raises is the writer's.
After five calls in a row that patience did not help, the next ones fail at once for some seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any, Self, TypeVar

from graflow_ckpt.core.errors import CheckpointError, GraflowError
from graflow_ckpt.core.protocols import CheckpointStore, Drops, Lease, Parts, Source
from graflow_ckpt.links.addresses import masked
from graflow_ckpt.stores.around.patience import Breaker, Patience, PutAttempt, may_pass
from graflow_ckpt.stores.around.wrapper import Wrapper
from graflow_ckpt.stores.streams import read_up_to

log = logging.getLogger("graflow_ckpt.stores")

T = TypeVar("T")
Row = TypeVar("Row", bound=tuple[Any, ...])  # Any: rows differ, and only their ends are looked at
LONGEST = 3600.0
_PIECE = 1 << 20


class Retrying(Wrapper):
    """The store, asked again."""

    word = "retry"
    reads_shared = True

    def __init__(
        self,
        inner: CheckpointStore,
        argument: str = "",
        *,
        patience: Patience | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        super().__init__(inner, argument)
        self._patience = patience or Patience()
        self._breaker = breaker or Breaker()

    @classmethod
    def of(cls, inner: CheckpointStore, argument: str) -> Self:
        return cls(inner, argument, patience=Patience(_seconds(argument, inner)) if argument else None)

    # --- what may be done twice --------------------------------------------------------

    def open(self, path: str, part: str, stage: str) -> Source:
        return _Reopened(self.asked, lambda: super(Retrying, self).open(path, part, stage))

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield the list; what was listed before an error is not listed once more."""
        return self._from_where_it_was(lambda: super(Retrying, self).list(session, pattern))

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        return self._from_where_it_was(lambda: self.inner.segments(session))

    # --- what may have been done -------------------------------------------------------

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str, drops: Drops = tuple) -> None:
        attempt = PutAttempt(parts)

        def write() -> None:
            attempt.written.clear()
            along = partial(self._drops, drops)
            self.inner.put(self._inner(path), attempt.parts, lease=lease, stage=stage, drops=along)

        self.asked(write, done=lambda: self._is_there(path, attempt), hopeless=lambda: attempt.own_fault)

    def delete_many(self, paths: Iterable[str]) -> int:
        """Delete checkpoints. If an error came between, what is gone counts as deleted by this call."""
        wanted = [self._inner(path) for path in paths]
        tries = count(1)

        def take_away() -> int:
            first, found = next(tries) == 1, self.inner.delete_many(wanted)
            return found if first else len(set(wanted))

        return self.asked(take_away)

    # --- within ------------------------------------------------------------------------

    def asked(
        self,
        call: Callable[[], T],
        *,
        done: Callable[[], bool] = lambda: False,
        hopeless: Callable[[], bool] = lambda: False,
    ) -> T:
        """Call until it succeeds, patience ends, or it turns out that it was done."""
        if not self._breaker.allows():
            raise self._breaker.away(masked(self.inner.url))
        first = None
        pauses = self._patience.pauses()
        while True:
            try:
                if first is not None and done():
                    found = None
                else:
                    found = call()
            except (GraflowError, OSError) as error:
                if not may_pass(error):
                    self._breaker.good()  # it has answered
                    raise
                if hopeless():
                    raise
                if first is None:
                    log.info("%s is asked again: %s", masked(self.inner.url), error)
                first = first or error
                if next(pauses, self) is self:
                    self._breaker.bad()
                    raise
                continue
            self._breaker.good()
            return found  # type: ignore[return-value]  # None only for calls that return nothing

    def _is_there(self, path: str, attempt: PutAttempt) -> bool:
        """Return whether the last attempt was committed before its reply was lost."""
        written = attempt.written.get("meta.json")
        if written is None:
            return False  # it did not get that far
        try:
            return self.inner.meta(self._inner(path)) == written
        except CheckpointError as error:
            if may_pass(error):
                raise
            return False

    def _from_where_it_was(self, begin: Callable[[], Iterator[Row]]) -> Iterator[Row]:
        seen: set[tuple[object, ...]] = set()
        listing: list[Iterator[Row]] = []

        def following() -> Row | None:
            if not listing:
                listing.append(begin())
            try:
                return next((found for found in listing[0] if found[:-1] not in seen), None)
            except BaseException:
                listing.clear()
                raise

        while (found := self.asked(following)) is not None:
            seen.add(found[:-1])  # the bytes may be other ones by now
            yield found


class _Reopened:
    """A part that is opened again where reading has stopped."""

    def __init__(self, again: Callable[[Callable[[], int]], int], begin: Callable[[], Source]) -> None:
        self._again = again
        self._begin = begin
        self._source: Source | None = None
        self._read = 0
        self._again(lambda: self._opened().size)

    @property
    def size(self) -> int:
        return self._again(lambda: self._opened().size)

    def readinto(self, buffer: memoryview, /) -> int:
        def read() -> int:
            try:
                return self._opened().readinto(buffer)
            except BaseException:
                self.close()
                raise

        got = self._again(read)
        self._read += got
        return got

    def close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _opened(self) -> Source:
        if self._source is None:
            source = self._begin()
            try:
                for at in range(0, self._read, _PIECE):
                    read_up_to(source, min(_PIECE, self._read - at))
            except BaseException:
                source.close()
                raise
            self._source = source
        return self._source


def _seconds(text: str, inner: CheckpointStore) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST:
        raise CheckpointError(
            f"retry.SECONDS+ takes a number of seconds, and {text!r} is none.",
            hint=f"Write retry.30+{masked(inner.url)}, with at most {LONGEST:g}.",
            store=masked(inner.url),
        )
    return seconds
