"""Fallback: a remote store, and a local folder for as long as it is away.

    fallback+postgresql://host/database
    fallback.%2Fvar%2Fspool%2Fckpt+s3://bucket/runs      the folder, with %2F for each slash

    the store is there     saves go to it; what waits goes first, in the order of epochs and sequences
    it is away             saves go to the folder: `accepted`; what is asked of the store fails at once
    it is back             the next save, release or owner of the session sends what waits

Promise: a save that was confirmed is in the store or in the folder, also if the process is killed between
the two. An owner that lost the session meanwhile is fenced by the store. What waits is then the next owner's,
which sets it aside, with a line in the log, if anything was written under a higher epoch than its own.
A session begins and continues only while the store is there: only the store knows its history. What waits
for an owner was made under its epoch: a copy of what others have made does not wait, and fails.
A journal does not fall back: an append that fails stops the session, as without this wrapper.
What is to be encrypted is so before it comes here: the folder has what the store would have.
Not here: what is waited for before (retrying.py: fallback+retry+…).

The folder of a fallback: checkpoints that wait until their store is back.

    FOLDER/{digest of the store's address}/store       that address, for operators
    …/owned      saved by the owner of a session
    …/free       saved without a lease
    …/refused    what could not be sent, since a later owner has continued; kept as evidence

Promise: each is a whole trio in a local folder, on the disk when its save returns, and is deleted only
after the store has confirmed it, so that a process that is killed between the two leaves it there.

The lease of a session whose store may be away for a while.
Promise: the epoch is the store's. While that is away it is unknown whether the session is still ours, so
saves are kept under it in the folder, and checked by the store when they are sent.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import TypeVar, Unpack

from graflow_ckpt.core import errors
from graflow_ckpt.core.protocols import (
    CheckpointStore,
    Drops,
    Journal,
    Lease,
    Parts,
    PartWriter,
    Sink,
    Source,
)
from graflow_ckpt.links.addresses import masked
from graflow_ckpt.stores.around.patience import Breaker, PutAttempt, may_pass
from graflow_ckpt.stores.around.wrapper import Wrapper
from graflow_ckpt.stores.files.lock import held
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.names import META, PARTS, Collected, base_of, facts_in, session_of
from graflow_ckpt.stores.owners import HeldLease
from graflow_ckpt.stores.store import Facts, newest_of
from graflow_ckpt.stores.streams import BytesSource, read_up_to

VARIABLE = "GRAFLOW_CKPT_FALLBACK"
_PIECE = 4 << 20


@dataclass(frozen=True, slots=True)
class Waiting:
    """One checkpoint in the folder."""

    store: CheckpointStore
    path: str
    raw: bytes
    epoch: int
    sequence: int
    stage: str
    session: str

    @property
    def base(self) -> str:
        return os.path.basename(self.path)

    @property
    def order(self) -> tuple[int, int]:
        return self.epoch, self.sequence

    def parts(self) -> Parts:
        """Return the writers that copy it elsewhere, byte by byte."""

        def write(part: str, sink: Sink) -> None:
            meta = BytesSource(self.raw) if part == META else None
            with closing(meta or self.store.open(self.path, part, self.stage)) as source:
                while piece := read_up_to(source, min(_PIECE, source.size)):
                    sink.write(piece)

        return [(part, partial(write, part)) for part in PARTS]


class Folder:
    """The checkpoints that wait for one store."""

    def __init__(self, root: str, url: str) -> None:
        name = hashlib.blake2b(url.encode(), digest_size=8).hexdigest()
        self.where = Path(root or default_root()).absolute() / name
        self.owned = LocalStore(self.where / "owned")
        self.free = LocalStore(self.where / "free")
        self.refused = LocalStore(self.where / "refused")
        self._url = url

    def settle(self) -> None:
        """Make it, and say in it what it is for."""
        if not self.where.exists():
            for folder in (self.where.parent, self.where):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError), (self.where / "store").open("x", encoding="utf-8") as file:
                file.write(f"{self._url}\n")

    def alone(self) -> AbstractContextManager[bool]:
        """Lock what has no owner while it is put here or sent: several processes may do it."""
        self.settle()
        return held(str(self.where / ".lock"))

    def waiting(self, session: str | None = None) -> list[Waiting]:
        """Return what waits, the newest of a session first."""
        found = [e for e in (*entries(self.owned), *entries(self.free)) if session in (None, e.session)]
        return sorted(found, key=lambda entry: entry.order, reverse=True)

    def holder(self, base: str) -> LocalStore | None:
        """Return the store in which a checkpoint of that name waits; None if none does."""
        for store in (self.owned, self.free):
            if Path(store.folder).is_dir():
                try:
                    store.meta(f"{store.folder}/{base}")
                except errors.CheckpointNotFound:
                    continue
                return store
        return None

    def set_aside(self, entry: Waiting) -> None:
        """Move the files of an entry to `refused`: it is not sent, nor lost; it may be damaged."""
        target = Path(self.refused.folder)
        target.mkdir(mode=0o700, exist_ok=True)
        base = entry.path.removesuffix(".pkl")
        for part in reversed(PARTS):  # meta first: without it the others are nothing
            for ending in (part, f"{entry.stage}.{part}.tmp"):
                if os.path.exists(found := f"{base}.{ending}"):
                    os.replace(found, target / os.path.basename(found))


def entries(store: LocalStore) -> Iterator[Waiting]:
    """Yield the checkpoints of one of the three. What cannot be read has no epoch, and is the oldest."""
    if not Path(store.folder).is_dir():
        return
    yield from (waiting(store, path, raw) for path, raw in store.list())


def waiting(store: CheckpointStore, path: str, raw: bytes) -> Waiting:
    facts = facts_in(raw)
    epoch, sequence = (
        value if type(value := facts.get(name)) is int else -1 for name in ("epoch", "sequence")
    )
    stage, session = (str(facts.get(name, "")) for name in ("stage", "session_id"))
    return Waiting(store, path, raw, epoch, sequence, stage, session)


def _write_own(write: PartWriter, epoch: int, error: BaseException, sink: Sink) -> None:
    """Write a meta if it is of that epoch: its owner will be known by it when it is sent."""
    collected = Collected()
    write(collected)
    if facts_in(bytes(collected.data)).get("epoch") != epoch:
        raise error
    sink.write(collected.data)


def highest_epoch(store: CheckpointStore, session: str, without: int) -> int:
    """Return the highest epoch under which another owner has written to a session; 0: none has."""
    found = [facts_in(raw).get("epoch") for _, raw in store.list(session)]
    found += [epoch for epoch, _, raw in store.segments(session) if raw]
    return max((epoch for epoch in found if type(epoch) is int and epoch != without), default=0)


def default_root() -> str:
    """Return the folder beside the key: it has to outlive the process."""
    if named := os.environ.get(VARIABLE, "").strip():
        return named
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "graflow_ckpt", "fallback")


class FallbackLease(HeldLease):
    """The remote store's lease, and the folder's from the first save on that goes there."""

    def __init__(self, store: Fallback, remote: Lease) -> None:
        self.remote, self.store = remote, store
        self.has_put_aside = False  # since it was last sent
        self._mutex = threading.Lock()
        self._local: Lease | None = None
        super().__init__(str(store.waits.where), remote.session, remote.epoch, "", remote.taken_from)

    def check(self) -> None:
        """Check with the store; while that is away, what waits is checked when it is sent."""
        self.not_released()
        try:
            self.store.asked(self.remote.check)
        except (errors.GraflowError, OSError) as error:
            if not may_pass(error):
                raise

    def local(self) -> Lease:
        """Return the folder's lease: one process keeps and sends what is saved of a session."""
        with self._mutex:
            if self._local is None:
                self._local = self.store.waits.owned.acquire(self.session)
            return self._local

    def _let_go(self) -> None:
        try:
            self.store.hand_over_now(self)
        except (errors.GraflowError, OSError) as error:
            log.warning(
                "session %s ends while checkpoints of it wait in %s: %s",
                self.session,
                self.store.waits.where,
                error,
                extra={"session": self.session},
            )
        finally:
            self.drop()

    def drop(self) -> None:
        """Release without a look at what waits."""
        self._released = True
        try:
            self.remote.release()
        finally:
            if self._local is not None:
                self._local.release()


# --- the store -----------------------------------------------------------------------------


log = logging.getLogger("graflow_ckpt.stores")

T = TypeVar("T")


class Fallback(Wrapper):
    """`argument`: the folder; if none is given, one beside the key (GRAFLOW_CKPT_FALLBACK)."""

    word, argued = "fallback", True
    reads_shared = True  # what is shared in the store; what goes to the folder is whole

    def __init__(self, inner: CheckpointStore, argument: str = "", *, breaker: Breaker | None = None) -> None:
        super().__init__(inner, argument)
        self.waits = Folder(argument, inner.url)
        self._breaker = breaker or Breaker(failures=1)
        self._aside = False  # whether the last save went to the folder
        # one save at a time decides where it goes, so that their order is kept
        self._mutex = threading.RLock()

    @property
    def synced(self) -> bool:
        return not self._aside and self.inner.synced

    # --- ownership ---------------------------------------------------------------------

    def acquire(self, session: str, *, take_over: bool = False) -> FallbackLease:
        """Acquire, and also take over what waits of the session: its former owner may have been killed."""
        lease = FallbackLease(self, super().acquire(session, take_over=take_over))
        try:
            self._take_in(lease)
        except BaseException:
            lease.drop()
            raise
        return lease

    def journal(self, lease: Lease, after: int) -> Journal:
        mine = self._own(lease)
        return self.asked(lambda: self.inner.journal(mine.remote, after))

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        return iter(self.asked(lambda: list(self.inner.segments(session))))

    # --- checkpoints -------------------------------------------------------------------

    @property
    def drops_along(self) -> bool:
        return False  # what is put aside must delete nothing in the store

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str, drops: Drops = tuple) -> None:
        mine = self._own(lease) if lease is not None else None
        if mine is not None:
            mine.not_released()
        attempt, inner = PutAttempt(parts), self._inner(path)
        try:
            self._what_it_takes(lambda: self.hand_over_of(mine))
            remote = mine.remote if mine is not None else None
            self.asked(
                lambda: self.inner.put(inner, attempt.parts, lease=remote, stage=stage),
                own_fault=lambda: attempt.own_fault,
            )
        except (errors.GraflowError, OSError) as error:
            name = self._name(inner)
            whole = [part for part, _ in parts] == list(PARTS)
            if attempt.own_fault or not may_pass(error) or name is None or not whole:
                raise
            self._keep(name, parts, mine, stage, error)
        else:
            self._aside = False

    def open(self, path: str, part: str, stage: str) -> Source:
        return self._here_or_there(path, lambda store, found: store.open(found, part, stage))

    def meta(self, path: str) -> bytes:
        return self._here_or_there(path, lambda store, found: store.meta(found))

    def unsafe(self, path: str) -> str | None:
        return self._here_or_there(path, lambda store, found: store.unsafe(found))

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield what waits, and what the store has; while that is away it cannot be listed."""
        inner = None if pattern is None else self._inner(pattern)
        wanted = None if inner is None else base_of(inner.rpartition("/")[2])
        waiting = {  # first: what is sent meanwhile is in both then, and else would be in neither
            self._outer(f"{self.inner.folder}/{entry.base}"): entry.raw
            for entry in self.waits.waiting(session)
            if wanted is None or fnmatchcase(base_of(entry.base), wanted)
        }
        there = self.asked(lambda: list(self.inner.list(session, inner)))
        yield from waiting.items()
        for path, raw in there:
            if self._outer(path) not in waiting:
                yield self._outer(path), raw

    def delete(self, path: str) -> bool:
        inner = self._inner(path)
        waits = self._waiting_at(inner)
        try:
            there = self.asked(lambda: self.inner.delete(inner))
        except (errors.GraflowError, OSError) as error:
            # a name of a session's own is used once: the store has nothing under it
            if waits is None or not may_pass(error) or session_of(base_of(os.path.basename(inner))) is None:
                raise
            there = False
        return waits[0].delete(waits[1]) or there if waits is not None else there

    def newest(
        self, limit: int, *, session: str | None = None, **facts: Unpack[Facts]
    ) -> Sequence[tuple[str, bytes]]:
        if self.waits.waiting(session):  # they have a place among the others
            return newest_of(self.list(session), limit, **facts)
        return super().newest(limit, session=session, **facts)

    def delete_many(self, paths: Iterable[str]) -> int:
        wanted = [*paths]
        if any(self._waiting_at(self._inner(path)) for path in wanted):
            return sum(self.delete(path) for path in wanted)
        return super().delete_many(wanted)

    # --- sending what waits ------------------------------------------------------------

    def hand_over_of(self, mine: FallbackLease | None) -> None:
        """Send what was saved under that lease; None: what was saved without one."""
        if mine is None:
            if any(entries(self.waits.free)):
                with self._mutex, self.waits.alone():
                    self._adopt(entries(self.waits.free), None)
        elif mine.has_put_aside:  # else there is nothing to look for
            with self._mutex:
                whose = mine.session, mine.epoch
                self._adopt((e for e in entries(self.waits.owned) if (e.session, e.epoch) == whose), mine)
                mine.has_put_aside = False

    def hand_over_now(self, mine: FallbackLease) -> None:
        """Do the same for the last time: it is tried whatever happened before."""
        if mine.has_put_aside:
            self._breaker.ask()
            self.hand_over_of(mine)

    def hand_over_all(self) -> int:
        """Send what waits of sessions that no process runs; return how many wait still."""
        self.hand_over_of(None)
        for session in sorted({entry.session for entry in entries(self.waits.owned)}):
            try:
                self.acquire(session).release()
            # one that is damaged names no session
            except (errors.CheckpointError, errors.SessionError) as error:
                log.warning("what waits of session %r stays: %s", session, error, extra={"session": session})
        return len(self.waits.waiting())

    def _what_it_takes(self, hand_over: Callable[[], None]) -> None:
        """Run it; what the store does not take, being too large, stops neither the next save nor an owner."""
        try:
            hand_over()
        except (errors.CheckpointError, errors.ServerError) as error:
            if may_pass(error):
                raise
            log.warning("what waits in %s stays there: %s", self.waits.where, error)

    def _take_in(self, lease: FallbackLease) -> None:
        """Send what a former owner has left; nothing, if another owner has written since."""
        own = [entry for entry in entries(self.waits.owned) if entry.session == lease.session]
        if not own:
            return
        try:
            lease.local()
        except errors.SessionBusy as error:
            log.warning(
                "what waits of session %s stays: %s", lease.session, error, extra={"session": lease.session}
            )
            return
        self._what_it_takes(lambda: self._adopt(own, lease))

    def _adopt(self, found: Iterable[Waiting], mine: FallbackLease | None) -> None:
        """Put into the store what waits, in order, unless others have written what is later."""
        highest = cache(lambda of: self.asked(partial(highest_epoch, self.inner, of.session, of.epoch)))
        for entry in sorted(found, key=lambda entry: entry.order):
            if mine is None:
                later = self.asked(partial(self._is_replaced, entry))
            else:
                later = entry.epoch != mine.epoch and highest(mine) > entry.epoch
            if later:
                self._refuse(entry, "another owner has continued it")
                continue
            try:
                self.asked(partial(self._put, entry, mine.remote if mine is not None else None))
            except errors.CheckpointCorrupt as error:
                self._refuse(entry, str(error))
                continue
            entry.store.delete(entry.path)  # not before: after a kill in between it is sent once more
            log.info("checkpoint %s was handed over to %s", entry.base, masked(self.inner.url))

    def _is_replaced(self, entry: Waiting) -> bool:
        """Return True if the store has a later one of its session under that name.

        Who saves without a lease is no owner: which epochs there are beside says nothing of that save.
        """
        try:
            there = waiting(self.inner, entry.path, self.inner.meta(f"{self.inner.folder}/{entry.base}"))
        except errors.CheckpointNotFound:
            return False
        return there.session == entry.session and there.order > entry.order

    def _put(self, entry: Waiting, lease: Lease | None) -> None:
        path = f"{self.inner.folder}/{entry.base}"
        self.inner.put(path, entry.parts(), lease=lease, stage=entry.stage)

    def _refuse(self, entry: Waiting, why: str) -> None:
        self.waits.set_aside(entry)
        log.error(
            "checkpoint %s of session %s is not handed over to %s: %s. It is kept in %s.",
            entry.base,
            entry.session,
            masked(self.inner.url),
            why,
            self.waits.refused.folder,
            extra={"session": entry.session},
        )

    # --- within ------------------------------------------------------------------------

    def asked(self, call: Callable[[], T], own_fault: Callable[[], bool] = lambda: False) -> T:
        """Call the store; while that is away, raise an error at once."""
        if not self._breaker.allows():
            raise self._breaker.away(masked(self.inner.url))
        began = self._breaker.clock()
        try:
            found = call()
        except (errors.GraflowError, OSError) as error:
            if not may_pass(error):
                self._is_there()  # it has answered
            elif not own_fault() and self._breaker.bad(self._breaker.clock() - began):
                log.warning("%s is away: %s", masked(self.inner.url), error)
            raise
        self._is_there()
        return found

    def _is_there(self) -> None:
        if self._breaker.open:
            log.warning("%s is back", masked(self.inner.url))
        self._breaker.good()

    def _keep(
        self, name: str, parts: Parts, mine: FallbackLease | None, stage: str, error: BaseException
    ) -> None:
        """Save into the folder; the writers write once more."""
        self.waits.settle()
        place, lease = self.waits.free, None
        if mine is not None:
            mine.has_put_aside = True
            place, lease = self.waits.owned, mine.local()
            parts = [*parts[:-1], (META, partial(_write_own, parts[-1][1], mine.epoch, error))]
        with nullcontext() if lease is not None else self.waits.alone():
            place.put(f"{place.folder}/{name}", parts, lease=lease, stage=stage)
        self._aside = True
        log.info("checkpoint %s waits in %s: %s", name, place.folder, error)

    def _own(self, lease: Lease) -> FallbackLease:
        if not isinstance(lease, FallbackLease) or lease.where != str(self.waits.where):
            raise TypeError(f"a lease of this store is needed, not {type(lease).__name__}")
        return lease

    def _name(self, inner: str) -> str | None:
        """Return the last piece of a path, if the rest is the store's folder or empty."""
        taken = self.inner.takes(inner) or inner
        folder, _, name = taken.rpartition("/")
        return name if name and folder in ("", self.inner.folder) else None

    def _here_or_there(self, path: str, look: Callable[[CheckpointStore, str], T]) -> T:
        """Look in the folder, if it waits there and is not sent in this moment; else in the store."""
        inner = self._inner(path)
        if (found := self._waiting_at(inner)) is not None:
            try:
                return look(*found)
            except (errors.CheckpointNotFound, errors.CheckpointCorrupt):
                if self._waiting_at(inner) is not None:
                    raise
        return self.asked(lambda: look(self.inner, inner))

    def _waiting_at(self, inner: str) -> tuple[CheckpointStore, str] | None:
        name = self._name(inner)
        store = self.waits.holder(name) if name is not None else None
        return None if store is None else (store, f"{store.folder}/{name}")
