"""Contents that are fetched while the one before them is read: a load opens one after the other.

Promise: no more than AHEAD wait, whoever opens what; who stops in the middle leaves them until the next one
is opened. One that could not be fetched ahead is asked for again in its turn.
Not here: which ones come next (objects_trio.py), and the pieces of one content (objects_chunks.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.stores.objects_chunks import PieceSource

AHEAD = 3

Opening = tuple[str, Callable[[], PieceSource]]


class Ahead:
    """For the readers of one store."""

    def __init__(self) -> None:
        self._coming: dict[str, Future[PieceSource]] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._mutex = threading.Lock()

    def open(self, first: Opening, following: Sequence[Opening]) -> PieceSource:
        """What `first` opens, and `following` begun. Each has a name that no other one has."""
        with self._mutex:
            mine = self._coming.pop(first[0], None)
            wanted = dict(following)
            for name in [name for name in self._coming if name not in wanted]:
                _drop(self._coming.pop(name))
            for name, opening in following:
                if name not in self._coming:
                    self._pool = self._pool or ThreadPoolExecutor(AHEAD, thread_name_prefix="contents")
                    self._coming[name] = self._pool.submit(opening)
            if self._pool is not None and not self._coming:
                self._pool.shutdown(wait=False)
                self._pool = None
        if mine is not None:
            with suppress(GraflowError):
                return mine.result()
        return first[1]()


def _drop(future: Future[PieceSource]) -> None:
    """Nobody has opened it."""

    def close(done: Future[PieceSource]) -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().close()

    if not future.cancel():
        future.add_done_callback(close)
