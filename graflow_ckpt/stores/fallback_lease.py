"""The lease of a session whose store may be away for a while.

Promise: the epoch is the store's. While that is away nobody can say whether the session is ours still, so
saves are kept under it in the folder, and checked by the store when they are handed over.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from graflow_ckpt.core.errors import Fenced, GraflowError
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.passing import may_pass

if TYPE_CHECKING:
    from graflow_ckpt.stores.fallback import Fallback

log = logging.getLogger("graflow_ckpt.stores")


class FallbackLease:
    """The remote store's lease, and the folder's from the first save on that goes there."""

    def __init__(self, store: Fallback, remote: Lease) -> None:
        self.session = remote.session
        self.epoch = remote.epoch
        self.taken_from = remote.taken_from
        self.remote = remote
        self.store = store
        self.has_put_aside = False  # since it was last handed over
        self._mutex = threading.Lock()
        self._local: Lease | None = None
        self._released = False
        self._process = os.getpid()

    def check(self) -> None:
        """While the store is away nobody can be asked; what waits is checked when it is handed over."""
        self.not_released()
        try:
            self.store.asked(self.remote.check)
        except (GraflowError, OSError) as error:
            if not may_pass(error):
                raise

    def not_released(self) -> None:
        if self._released or self._process != os.getpid():
            raise Fenced(
                f"Session {self.session!r} is not owned by this process (any more): the lease was released, "
                "or the process was forked from its owner.",
                hint="Acquire it first.",
                session=self.session,
                epoch=self.epoch,
            )

    def local(self) -> Lease:
        """That of the folder: one process keeps and hands over what is saved of a session."""
        with self._mutex:
            if self._local is None:
                self._local = self.store.waits.owned.acquire(self.session)
            return self._local

    def release(self) -> None:
        if self._released or self._process != os.getpid():
            return
        try:
            self.store.hand_over_now(self)
        except (GraflowError, OSError) as error:
            log.warning(
                "session %s ends while checkpoints of it wait in %s: %s",
                self.session,
                self.store.waits.where,
                error,
                extra={"session": self.session},
            )
        self.let_go()

    def let_go(self) -> None:
        """Without a look at what waits."""
        self._released = True
        self.remote.release()
        if self._local is not None:
            self._local.release()
