"""Pruning: what a retention does not keep is deleted, except what must never go.

    paused   it waits for a user's answer: it neither expires nor is trimmed
    forked   another session began there
    newest   the newest good one of a session that can continue; of one that is finished, if any of it is
             kept at all
    busy     of a session that a process runs now: that process prunes it
    later    of a session of which a later version has written something: only that knows what it needs
    doubt    none of the session's checkpoints verifies: it is not known which one will be needed

Promise: as long as something of a session is to stay, a checkpoint goes only after one that stays was read
to the last byte. A pass that is killed in the middle has deleted the oldest ones; the next one
continues. Deciding (`plan`) changes nothing, and carrying out deletes only what was planned.
Not here: which ones are too many (retention.py), and when it is asked for (the engine, the command line).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from types import TracebackType
from typing import Literal

from graflow_ckpt.checkpoint import archive, journal
from graflow_ckpt.checkpoint.care.inventory import Inventory, inventory
from graflow_ckpt.checkpoint.history import former_lines, gone_back, is_superseded
from graflow_ckpt.checkpoint.model import parse
from graflow_ckpt.checkpoint.retention import (
    DEFAULT,
    FINISHED,
    IN_SESSION,
    WAITS,
    Cut,
    Retention,
    by_session,
    bytes_of,
    forked_from,
)
from graflow_ckpt.checkpoint.seals import verify
from graflow_ckpt.core.errors import CheckpointError, GraflowError, GraphError, UnknownKey
from graflow_ckpt.core.protocols import CheckpointStore, Lease
from graflow_ckpt.stores import open_store
from graflow_ckpt.stores.around.keys import Keyring

log = logging.getLogger("graflow_ckpt.checkpoint")

Reason = Literal["paused", "forked", "newest", "busy", "later", "doubt"]
EVERYTHING = 2**62
"""Behind the last transition of any journal."""
_MANY = 8  # that are deleted by one call; of fewer each is counted for itself
_AT_ONCE = 256  # between two calls of a watcher


@dataclass(frozen=True, slots=True)
class PruningPlan:
    """The cuts to delete, oldest first, and those that would be deleted if they had not to stay."""

    cuts: tuple[Cut, ...]
    spared: tuple[tuple[Cut, Reason], ...] = ()
    emptied: frozenset[str] = frozenset()  # sessions of which nothing stays

    @property
    def size(self) -> int:
        return bytes_of(self.cuts)


@dataclass(frozen=True, slots=True)
class Pruned:
    """The cuts that were deleted, those that could not be, with the error, and those that had to stay.

    Of two passes that delete many at the same moment, both may count one that has gone.
    """

    cuts: tuple[Cut, ...] = ()
    failed: tuple[tuple[Cut, str], ...] = ()
    spared: tuple[tuple[Cut, Reason], ...] = ()

    @property
    def size(self) -> int:
        return bytes_of(self.cuts)


class Guard:
    """The reasons why checkpoints have to stay. One per pass: what it has asked and verified it remembers.

    `keyring` is called only if something has to be verified. `own`: the session that asks, which is not
    busy for itself; `good`: the paths of what was written just now; `going`: paths of forks that are to go
    together with what they began with.
    """

    def __init__(
        self,
        store: CheckpointStore,
        known: Inventory,
        keyring: Callable[[], Keyring],
        *,
        own: str = "",
        good: Collection[str] = (),
        going: Collection[str] = (),
    ) -> None:
        self.store = store
        self.known = known
        self._keyring = keyring
        self._own = own
        self._good = good
        self._forked = forked_from(known.cuts, going)
        self._cuts = by_session(known.cuts)
        self._lacking = by_session([cut for cut in (*known.cuts, *known.unreadable) if cut.lacks])
        # of a session, each asked once
        self.busy = cache(self._is_run)
        self.finished = cache(self._is_finished)
        self.line = cache(self._current_line)
        self.newest = cache(self._newest_good)
        self._is_later = cache(self._has_later_seal)
        self._goes_on_later = cache(partial(has_later_journal, store, keyring=keyring))

    def reason(self, cut: Cut, meant: Collection[str] = ()) -> Reason | None:
        """Return why it stays; None if nothing holds it. `meant`: sessions of which something is to stay."""
        held = self.held(cut)
        if held is not None:
            return held
        if self.finished(cut.session) and cut.session not in meant:
            return "later" if self._goes_on_later(cut.session) else None
        newest = self.newest(cut.session)
        return "doubt" if newest is None else "newest" if newest == cut.path else None

    def held(self, cut: Cut) -> Reason | None:
        """Return why it stays even if a user has named it."""
        if self.busy(cut.session):
            return "busy"
        if cut.session in self._lacking and self._is_later(cut.session):
            return "later"
        if cut.status in WAITS:
            return "paused"
        return "forked" if cut.id in self._forked else None

    def _is_run(self, session: str) -> bool:
        """Return True if another process runs it; unreadable ones may name no session."""
        return session not in ("", self._own) and self.store.owner(session) is not None

    def _has_later_seal(self, session: str) -> bool:
        """Return True if a later version has sealed a checkpoint of the session, or may have."""
        # without its key nothing is deleted
        return any(self._sealed(cut) is not False for cut in self._lacking[session])

    def _sealed(self, cut: Cut) -> bool | None:
        """Return True if the seal of a cut holds, None if its key is not here."""
        try:
            verify(parse(cut.path, self.store.meta(cut.path), ".meta.json"), self._keyring())
        except UnknownKey:
            return None
        except CheckpointError:
            return False
        return True

    def _is_finished(self, session: str) -> bool:
        """Return True if it will not be continued, by the newest checkpoint whose seal holds."""
        sealed = (c for c in self.line(session) if c.path in self._good or self._sealed(c))
        newest = next(sealed, None)  # without a seal, one file of any writer would delete all others
        return newest is not None and newest.status in FINISHED

    def _current_line(self, session: str) -> list[Cut]:
        """Return the session's checkpoints that a resume looks at, newest first."""
        cuts = sorted(self._cuts.get(session, ()), key=IN_SESSION, reverse=True)
        back = former_lines(self.store, session)
        if any(cut.rewinds for cut in cuts):
            order = ((cut.epoch, cut.sequence, cut.path) for cut in cuts)
            with suppress(CheckpointError):  # there is no key: what no seal proves is not believed
                back = gone_back(self.store, self._keyring(), session, order)
        return [cut for cut in cuts if not is_superseded(back, cut.epoch, cut.sequence)]

    def _newest_good(self, session: str) -> str | None:
        """Return the newest one that is good to its last byte."""
        return next((cut.path for cut in self.line(session) if self._is_good(cut)), None)

    def _is_good(self, cut: Cut) -> bool:
        if cut.path in self._good:
            return True
        keyring = self._keyring()
        try:
            found, _ = archive.check(self.store, keyring, cut.path)
        except CheckpointError as error:
            log.warning("checkpoint %s: %s", cut.path, error, extra={"session": cut.session})
            return False
        return bool(found.meta["session_id"] == cut.session)


def plan(
    guard: Guard, retention: Retention, now: float, *, among: Callable[[Cut], bool] = lambda cut: True
) -> PruningPlan:
    """Plan what a retention does not keep of those `among` which it is applied."""
    paths = retention.keeps(guard.known.cuts, now)
    kept = frozenset(cut.session for cut in guard.known.cuts if cut.path in paths)
    return planned(guard, (cut for cut in guard.known.cuts if cut.path not in paths and among(cut)), kept)


def planned(guard: Guard, candidates: Iterable[Cut], meant: Collection[str] = ()) -> PruningPlan:
    """Plan all of these, except what has to stay. `meant`: sessions of which something stays anyway."""
    going = list(candidates)
    # where an older one stays, the end stays too: without it the session would seem to continue from there
    stays = {*meant, *(cut.session for cut in going if guard.held(cut) is not None)}
    return _plan(guard, going, lambda cut: guard.reason(cut, stays))


def named(guard: Guard, candidates: Iterable[Cut], *, force: bool) -> PruningPlan:
    """Plan all of these, since a user named them; `force`: also what is paused or was forked from."""
    going = list(candidates)
    held = {cut.path: guard.held(cut) for cut in going}
    if force:
        held = {path: reason if reason == "busy" else None for path, reason in held.items()}
    stays = {cut.session for cut in going if held[cut.path] is not None}  # so does its newest

    def why(cut: Cut) -> Reason | None:
        if held[cut.path] is None and cut.session in stays and guard.newest(cut.session) == cut.path:
            return "newest"
        return held[cut.path]

    return _plan(guard, going, why)


def _plan(guard: Guard, candidates: Iterable[Cut], why: Callable[[Cut], Reason | None]) -> PruningPlan:
    gone: list[Cut] = []
    spared: list[tuple[Cut, Reason]] = []
    for cut in candidates:
        reason = why(cut)
        if reason is None:
            gone.append(cut)
        else:
            spared.append((cut, reason))
    gone.sort(key=lambda cut: (cut.session, *IN_SESSION(cut)))
    paths = {cut.path for cut in gone}
    known = (*guard.known.cuts, *guard.known.unreadable)
    stay = [cut for cut in known if cut.path not in paths]
    staying = frozenset(cut.session for cut in stay)
    if any(cut.shared for cut in gone):  # what goes with them is what no other one holds
        held = {name for cut in stay for name in cut.shared}
        gone = [replace(cut, shared={n: cut.shared[n] for n in cut.shared if n not in held}) for cut in gone]
    emptied = frozenset(cut.session for cut in gone) - staying
    return PruningPlan(tuple(gone), tuple(spared), emptied)


def carry_out(
    store: CheckpointStore,
    what: PruningPlan,
    *,
    own: str = "",
    seen: Callable[[Cut], object] = lambda cut: None,
    stays: Callable[[Cut, Exception], object] = lambda cut, error: None,
) -> Pruned:
    """Delete what was planned. What cannot be deleted does not keep the rest.

    `seen` is called before each deletion, `stays` with the error of one that failed.
    """
    gone: list[Cut] = []
    failed: list[tuple[Cut, str]] = []
    waiting: list[Cut] = []
    for session, cuts in by_session(what.cuts).items():
        if session not in ("", own) and store.owner(session) is not None:  # it was taken since
            failed += [(cut, f"session {session} is being run") for cut in cuts]
            continue
        waiting += cuts
        while len(waiting) >= _AT_ONCE:
            _delete(store, waiting[:_AT_ONCE], seen, stays, gone, failed)
            del waiting[:_AT_ONCE]
    _delete(store, waiting, seen, stays, gone, failed)
    for session in sorted(what.emptied - {"", *(cut.session for cut, _ in failed)}):
        if not any(store.list(session)):  # else a rewind has gone back to one of them meanwhile
            forget_journal(store, session)
    return Pruned(tuple(gone), tuple(failed), what.spared)


def _delete(
    store: CheckpointStore,
    cuts: Sequence[Cut],
    seen: Callable[[Cut], object],
    stays: Callable[[Cut, Exception], object],
    gone: list[Cut],
    failed: list[tuple[Cut, str]],
) -> None:
    """Delete many at once, where it pays. If a store fails at one of them, delete each to find which one."""
    tried = len(cuts) >= _MANY
    if tried:
        for cut in cuts:
            seen(cut)
        with suppress(GraflowError, OSError):
            if store.delete_many([cut.path for cut in cuts]):  # else another process was faster
                gone += cuts
            return
    for cut in cuts:
        if not tried:
            seen(cut)
        try:
            if store.delete(cut.path) or tried:  # if it was there a moment ago, it has gone since
                gone.append(cut)
        except (GraflowError, OSError) as error:
            log.warning("checkpoint %s stays: %s", cut.path, error, extra={"session": cut.session})
            failed.append((cut, str(error)))
            stays(cut, error)


def sweep_contents(store: CheckpointStore) -> None:
    """Sweep contents that killed processes have left; what a checkpoint held has gone with it."""
    try:
        if store.contents is not None:
            store.contents.sweep()
    except (GraflowError, OSError) as error:
        log.warning("contents that no checkpoint holds stay in %s: %s", store.url, error)


def has_later_journal(
    store: CheckpointStore, session: str, keyring: Callable[[], Keyring] | None = None
) -> bool:
    """Return True if a segment says that it has a format that is not known here, and `keyring` proves it."""
    try:
        for epoch, after, raw in store.segments(session):
            if journal.is_later(raw) and (
                keyring is None or journal.may_be_sealed(keyring(), session, epoch, after, raw)
            ):
                return True
        return False
    except (GraflowError, OSError):
        return False  # it cannot be read for another reason, which a resume reports


def forget_journal(store: CheckpointStore, session: str, lease: Lease | None = None) -> None:
    """Drop the journal of a session without checkpoints: its records follow nothing, and may hold values.

    A store keeps the newest segment, which an owner may be writing; so an empty one is begun.
    """
    mine = lease
    try:
        if not any(raw for _, _, raw in store.segments(session)) or has_later_journal(store, session):
            return
        mine = mine or store.acquire(session)
        store.journal(mine, EVERYTHING).close()
        store.drop_segments(session, EVERYTHING)
    except (GraflowError, OSError) as error:
        log.warning("the journal of session %s stays: %s", session, error, extra={"session": session})
    finally:
        if mine is not None and lease is None:
            mine.release()


def sweep(
    store: CheckpointStore,
    retention: Retention,
    *,
    among: Callable[[Cut], bool] = lambda cut: True,
    dry_run: bool = False,
    seen: Callable[[Cut], object] = lambda cut: None,
) -> Pruned:
    """Prune a whole store once; `dry_run`: only say what would go."""
    guard = Guard(store, inventory(store), cache(partial(Keyring.for_store, store)))
    what = plan(guard, retention, time.time(), among=among)
    if dry_run:
        return Pruned(what.cuts, (), what.spared)
    done = carry_out(store, what, seen=seen)
    sweep_contents(store)
    return done


class _Ended(Exception):
    """The end of a sweeper in the middle of a pass."""


class Sweeper:
    """Prunes a store again and again, by a thread, until the block is left.

        with Sweeper("/srv/checkpoints", KeepLast(50, per="workflow") | LastSuccessful(), every=3600):
            serve()

    Promise: a pass that fails is logged, and the next one comes all the same, so many seconds after it;
    leaving the block ends the thread after the checkpoint that it is deleting. Sessions that are running
    are left to their own retention. Several sweepers of one store do no harm. `last`: what the last pass has
    done.
    """

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
        """Run one pass."""
        done = sweep(self._store, self._retention, seen=self._look_up)
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
