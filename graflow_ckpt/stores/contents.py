"""Contents of a keyed store: values that the checkpoints of a session have in common, each stored once.

Promise: what a save has found or written stays for it. One under a lease only remembers what it has found:
a delete meanwhile leaves that to the owner (`freed`, head.py). One without a lease is pinned in the
head before it writes, also if it has found nothing: so its writes are distinct from what dead saves have
left. Not here: what a commit may hold (keyed.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.head import Head, Held, Pin
from graflow_ckpt.stores.lease import Step, lasting, left_behind
from graflow_ckpt.stores.names import gone
from graflow_ckpt.stores.streams import RangeReader, Stream

if TYPE_CHECKING:
    from graflow_ckpt.stores.keyed import KeyedStore, PutTarget


class KeyedContents:
    """The contents of one store. Checkpoints of a session share; each other name is a scope of its own."""

    shares = True

    def __init__(self, store: KeyedStore) -> None:
        self._store = store

    def scope(self, path: str, /) -> str:
        return self._store.scope(path)

    def saving(self, path: str, *, lease: Lease | None, stage: str) -> KeyedSaving:
        return KeyedSaving(self._store, self._store.target(path, lease, stage))

    def open(self, path: str, name: str, stage: str) -> RangeReader:
        return self._store.open_content(path, name, stage)

    def distrust(self, path: str, name: str, stage: str) -> None:
        to = self._store.target(path, None, stage)

        def change(head: Head) -> Step | None:
            record = head.get(to.base)
            held = record.held.get(name) if record is not None and record.stage == stage else None
            return None if held is None or held in head.bad else Step(head._replace(bad=head.bad | {held}))

        self._store.heads.change(to.scope, change)

    def sweep(self) -> int:
        """Sweep all sessions; return how many keys were deleted."""
        store, count = self._store, 0
        for scope in sorted({entry.key.split("/")[1] for entry in store.driver.keys("data/")}):
            head = store.heads.change(scope, partial(self._without_the_dead, scope)).head
            keys = [entry.key for entry in left_behind(store.driver, scope, head)]
            store.drop(keys)
            count += len(keys)
        return count

    def _without_the_dead(self, scope: str, head: Head) -> Step | None:
        pins = lasting(self._store.driver, head)
        if len(pins) == len(head.pins):
            return None
        freed = [held for mark in head.pins.keys() - pins.keys() for held in head.pins[mark].held]
        return self._store.letting_go(scope, head._replace(pins=pins), freed, None)


class KeyedSaving:
    """The contents of one save."""

    def __init__(self, store: KeyedStore, to: PutTarget) -> None:
        self.mark = to.new_mark()
        self.added: dict[str, Held] = {}
        self._store, self._to = store, to
        self._owner = to.lease if to.owns else None
        self._found: dict[str, Held] = {}
        self._pinned = self._over = False
        store.savings[to.base, to.stage] = self
        if self._owner is not None:
            self._owner.finding.append(self._found)

    def hold(self, names: Sequence[str], /) -> Collection[str]:
        if self._owner is None:
            return self._pin(names)
        with self._owner.mutex:
            found = self._owner.head.find(names)
            self._found |= found
        return found.keys()

    def add(self, name: str, size: int, pieces: Iterable[bytes], /) -> None:
        if self._owner is None and not self._pinned:
            self._pin(())
        held = Held(name, self.mark, size)
        stream = Stream(self._store.driver, self._to.scope, held.stream)
        try:
            for piece in pieces:
                stream.write(piece)
            stream.send()
        except BaseException:
            stream.withdraw()
            raise
        self.added[name] = held

    def settle(self) -> None:
        """Do nothing: what was sent is on the disk with the commit, at the latest."""

    def committed(self) -> None:
        """Note that what the save has written belongs to a checkpoint now."""
        self._over = True

    def end(self) -> None:
        to, store = self._to, self._store
        if store.savings.get((to.base, to.stage)) is self:
            del store.savings[to.base, to.stage]
        if self._owner is not None:
            with self._owner.mutex:
                self._owner.finding[:] = [one for one in self._owner.finding if one is not self._found]
        if self._over:
            return
        self._over = True
        with suppress(GraflowError, OSError):
            store.drop(store.keys_of(to.scope, self.added.values()))
            if self._pinned:
                store.heads.change(to.scope, self._unpinned)

    def _pin(self, names: Sequence[str]) -> Collection[str]:
        """Pin these contents: without a lease a delete has to know of them."""
        now = self._store.driver.now()
        found: dict[str, Held] = {}

        def change(head: Head) -> Step | None:
            nonlocal found
            mine = head.pins.get(self.mark)
            if mine is None and self._pinned:  # swept as a dead one's
                raise gone(self._to.path, names)
            found = head.find(names)
            has = mine.held if mine is not None else ()
            more = tuple(held for held in found.values() if held not in has)
            if mine is not None and not more:
                return None
            return Step(head._replace(pins={**head.pins, self.mark: Pin(now, (*has, *more))}))

        self._store.heads.change(self._to.scope, change)
        self._pinned = True
        return found.keys()

    def _unpinned(self, head: Head) -> Step | None:
        if self.mark not in head.pins:
            return None
        pinned = head.pins[self.mark].held
        return self._store.letting_go(self._to.scope, head.without_pin(self.mark), pinned, None)
