"""Tidying: after each save, what the workflow's retention does not keep any more is taken away.

Whether there are too many is known without asking the store, as long as the retention looks at one
session and nobody else writes it. What is too many goes in a *pass* over the metadata of the store: another
session may have been forked from it meanwhile. In a large store saves have to earn a pass, so that a save
pays for some twenty metas whatever the store has grown to. What is left goes with the last save of a run.

Promise: a save never fails because of what is not deleted; it is an event, is logged, and tried again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from graflow_ckpt.checkpoint.inventory import cut_of, inventory
from graflow_ckpt.checkpoint.model import CheckpointMetadata
from graflow_ckpt.checkpoint.pruning import Guard, carry_out, plan
from graflow_ckpt.checkpoint.retention import Cut, Retention, automatic
from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.core.events import Kind
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import backend_of
from graflow_ckpt.stores.keys import Keyring

log = logging.getLogger("graflow_ckpt.checkpoint")

EARNED = 20
"""How many metas a pass may read for each save."""

BYTES = 100_000
"""And one more for each so many bytes: who writes large ones must not have many too many."""


class Tidier:
    """Of one session. `alone`: nobody else writes checkpoints of it; `emit`: tells the observers."""

    def __init__(
        self,
        store: CheckpointStore,
        session: str,
        keyring: Callable[[], Keyring],
        *,
        emit: Callable[..., None],
        alone: bool = True,
    ) -> None:
        self._store = store
        self._session = session
        self._keyring = keyring
        self._emit = emit
        self._alone = alone
        self._own: dict[str, Cut] | None = None  # the session's, as far as they are in the store
        self._earned = 0.0
        self._seen = 0  # metas that the last pass has left
        self._told = False  # that nothing can be taken away now: once, not after each save

    def after(self, saved: CheckpointMetadata, keep: Retention, *, last: bool = False) -> bool:
        """One more was saved; whether none is left. `last`: nobody asks again, so nothing waits."""
        try:
            rule = automatic(keep)
            self._earned += EARNED
            if not self._too_many(saved.path, rule) or (self._earned < self._seen and not last):
                return False
            none_left = self._pass(saved.path, rule)
        except (GraflowError, OSError) as error:
            self._own = None
            self._failed("list_failed", error)
            if not self._told:
                log.warning("old checkpoints stay: %s", error, extra={"session": self._session})
            self._told = True
            return False
        self._told = False
        return none_left

    def _too_many(self, path: str, rule: Retention) -> bool:
        if not rule.per_session or not self._alone:
            return True  # others have to be looked at
        if self._own is None:
            self._own = {cut.path: cut for cut in inventory(self._store, self._session).cuts}
        elif os.path.dirname(path) == self._store.folder:  # else it is no part of the session's history
            cut = cut_of(path, self._store.meta(path), self._store.contents)
            if cut is not None:
                self._own[path] = cut
                self._earned += cut.size / BYTES
        own = tuple(self._own.values())
        return len(rule.keeps(own, time.time())) < len(own)

    def _pass(self, path: str, rule: Retention) -> bool:
        known = inventory(self._store)
        guard = Guard(self._store, known, self._keyring, own=self._session, good=(path,))
        if rule.per_session:
            what = plan(guard, rule, time.time(), among=lambda cut: cut.session == self._session)
        else:
            what = plan(guard, rule, time.time())
        done = carry_out(self._store, what, own=self._session, stays=self._stays)
        gone = {cut.path for cut in done.cuts}
        for cut in done.cuts:
            log.debug("checkpoint %s is not kept", cut.path, extra={"session": cut.session})
        left = [cut for cut in known.cuts if cut.session == self._session and cut.path not in gone]
        self._own = {cut.path: cut for cut in left}
        self._earned, self._seen = 0.0, len(known.cuts) - len(gone)
        return not left and all(cut.session != self._session for cut in known.unreadable)

    def _stays(self, cut: Cut, error: Exception) -> None:
        self._failed("delete_failed", error, path=cut.path)

    def _failed(self, kind: Kind, error: Exception, **facts: Any) -> None:
        backend = backend_of(self._store.url)
        self._emit(kind, error=str(error), error_type=type(error).__name__, backend=backend, **facts)
