"""Sweeping: a store is pruned again and again, by a thread, for as long as somebody holds the sweeper.

    with Sweeper("/srv/checkpoints", KeepLast(50, per="workflow") | LastSuccessful(), every=3600):
        serve()

Promise: a pass that fails is logged, and the next one comes all the same; leaving the block ends the thread
after the checkpoint that it is deleting. Sessions that somebody runs are left to their own retention.
Several sweepers of one store do no harm. Not here: what is kept (retention.py, pruning.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from functools import cache, partial
from types import TracebackType

from graflow_ckpt.checkpoint.inventory import inventory
from graflow_ckpt.checkpoint.pruning import Guard, Pruned, carry_out, plan, sweep_contents
from graflow_ckpt.checkpoint.retention import DEFAULT, Cut, Retention
from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.keys import Keyring

log = logging.getLogger("graflow_ckpt.checkpoint")


class _Ended(Exception):
    """In the middle of a pass."""


class Sweeper:
    """Prunes at once, and then so many seconds after each pass. `last`: what the last pass has done."""

    def __init__(
        self,
        store: str | os.PathLike[str] = "checkpoints",
        retention: Retention = DEFAULT,
        *,
        every: float = 3600.0,
    ) -> None:
        if not every > 0:
            raise GraphError(f"every={every}: a sweeper needs time between two passes.")
        self.last: Pruned | None = None
        self._store = open_store(store)
        self._retention = retention
        self._every = every
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def sweep(self) -> Pruned:
        """One pass."""
        guard = Guard(self._store, inventory(self._store), cache(partial(Keyring.for_store, self._store)))
        done = carry_out(self._store, plan(guard, self._retention, time.time()), seen=self._look_up)
        sweep_contents(self._store)
        if done.cuts:
            log.info("%d checkpoints (%d bytes) are not kept any more", len(done.cuts), done.size)
        self.last = done
        return done

    def __enter__(self) -> Sweeper:
        self._end.clear()
        self._thread = threading.Thread(target=self._work, name="graflow-ckpt sweeper", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while True:
            try:
                self.sweep()
            except _Ended:
                return
            except Exception:
                log.exception("old checkpoints at %s stay: the pass has failed", self._store.url)
            if self._end.wait(self._every):
                return

    def _look_up(self, cut: Cut) -> None:
        if self._thread is threading.current_thread() and self._end.is_set():
            raise _Ended
