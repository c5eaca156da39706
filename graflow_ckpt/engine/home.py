"""Home: where one session is kept, and how far that has come.

Holds the store, the keys, the lease and what is written of the program; numbers the cuts.
Nothing is touched on the disk before `open`, so that a workflow that keeps nothing leaves
nothing behind.
"""

from __future__ import annotations

import logging
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

from graflow_ckpt import __version__
from graflow_ckpt.checkpoint import archive, history, journal
from graflow_ckpt.checkpoint.archive import Allowance, Found, metadata_of
from graflow_ckpt.checkpoint.care.inventory import cut_of, inventory
from graflow_ckpt.checkpoint.care.pruning import Guard, carry_out, forget_journal, plan
from graflow_ckpt.checkpoint.model import CheckpointMetadata, Lines, lines_in, now_iso
from graflow_ckpt.checkpoint.program.program import Program
from graflow_ckpt.checkpoint.retention import WAITS, Cut, Retention, automatic, forked_from
from graflow_ckpt.checkpoint.seals import key_storage_warning, passing_warning
from graflow_ckpt.checkpoint.snapshot import BACKEND, Snapshot, capture
from graflow_ckpt.core import errors
from graflow_ckpt.core.events import Kind
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.core.protocols import CheckpointStore, Journal, Lease, Line
from graflow_ckpt.engine.announcer import Trace
from graflow_ckpt.engine.resuming import Description, Written
from graflow_ckpt.engine.settings import Settings, tell_slow
from graflow_ckpt.stores import (
    as_typed,
    backend_of,
    folder_on_disk,
    lies_in,
    open_beside,
    open_store,
    places,
    store_of,
)
from graflow_ckpt.stores.around.encodings import AEAD, Metas
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.names import base_of, session_of

if TYPE_CHECKING:
    from graflow_ckpt.engine.context import ExecutionContext

log = logging.getLogger("graflow_ckpt.checkpoint")

EARNED = 20
"""How many metas a pass may read for each save."""

BYTES = 100_000
"""And one more for each so many bytes: who writes large ones must not have many too many."""


class Tidier:
    """The deletion of what a workflow's retention does not keep, with the commit of a save or after it.

    Which ones those are is known without asking the store, as long as the retention looks at one session and
    no other process writes it (`alone`); that no other session began at one of them, as long as nothing
    else was written since the last *pass* over the metadata of the store. Then they go in the commit, else a
    pass deletes them. In a large store saves have to earn it, so that a save pays for some twenty metas
    whatever the store has grown to. What is left goes with the last save of a run.

    Promise: a save never fails because of what is not deleted; it is an event (`emit`), is logged, and tried
    again.
    """

    def __init__(
        self, store: CheckpointStore, session: str, keyring: Callable[[], Keyring], *,
        emit: Callable[..., None], alone: bool = True,
    ) -> None:  # fmt: skip
        self._store = store
        self._session = session
        self._keyring = keyring
        self._emit = emit
        self._alone = alone
        self._rule: Retention | None = None  # as it was applied last
        self._own: dict[str, Cut] | None = None  # by name, the session's in the store that count for it
        self._coming: Cut | None = None  # what is being saved
        self._going: list[str] = []  # with it
        self._forked: frozenset[str] = frozenset()  # where others began
        self._top: tuple[str, bytes] | None = None  # the last that was written to the store, if known
        self._earned = 0.0
        self._seen = 0  # metas that the last pass has left
        self._told = False  # that nothing can be deleted now: once, not after each save

    def before(self, path: str, meta: bytes, keep: Retention) -> Sequence[str]:
        """Return what goes with the commit of a checkpoint that is about to be there."""
        if self._coming is not None:
            self._own = None  # whether the last one is there was never said
        self._coming = coming = cut_of(path, meta, Metas(self._store, self._keyring()))
        top, self._top, self._going = self._top, None, []
        rule = self._applied(keep)
        if coming is None or self._own is None or top is None or not rule.per_session:
            return ()
        if session_of(base_of(path.removeprefix(f"{self._store.folder}/"))) != self._session:
            return ()  # a path that others may write is no part of the session's commit
        try:
            if [*self._store.newest(1)] != [top]:
                return ()
        except (errors.GraflowError, OSError):
            return ()  # the save will say so
        self._top = path, meta
        cuts = tuple((self._own | _counted([coming], rule)).values())
        kept = rule.keeps(cuts, time.time())
        if (path in kept or not rule.counts(coming)) and not any(cut.lacks for cut in cuts):
            own = (cut for cut in cuts if cut.path not in kept)
            self._going = [cut.path for cut in own if cut.status not in WAITS and cut.id not in self._forked]
        return self._going

    def after(self, saved: CheckpointMetadata, keep: Retention, *, last: bool = False) -> bool:
        """Delete what is not kept after a save; return True if none is left. `last`: no save follows."""
        try:
            rule = self._applied(keep)
            self._earned += EARNED
            self._count(saved.path, rule)
            if not self._too_many(rule) or (self._earned < self._seen and not last):
                return False
            none_left = self._pass(saved.path, rule)
        except (errors.GraflowError, OSError) as error:
            self._own = None
            self._failed("list_failed", error)
            if not self._told:
                log.warning("old checkpoints stay: %s", error, extra={"session": self._session})
            self._told = True
            return False
        self._told = False
        return none_left

    def _applied(self, keep: Retention) -> Retention:
        rule = automatic(keep)
        if rule != self._rule:  # others count for it
            self._own, self._rule = None, rule
        return rule

    def _count(self, path: str, rule: Retention) -> None:
        """Count what was saved just now, and what went with it."""
        coming, self._coming = self._coming, None
        if os.path.dirname(path) != self._store.folder:
            return  # it is no part of the session's history
        if self._own is None or coming is None or coming.path != path:
            self._own = None
            return
        self._own |= _counted([coming], rule)
        self._earned += coming.size / BYTES
        for gone in self._going:
            self._own.pop(base_of(gone), None)
            log.debug("checkpoint %s is not kept", gone, extra={"session": self._session})

    def _too_many(self, rule: Retention) -> bool:
        if not rule.per_session or not self._alone:
            return True  # others have to be looked at
        if self._own is None:
            self._own = _counted(inventory(self._store, self._session).cuts, rule)
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
        self._own = _counted(left, rule)
        self._earned, self._seen = 0.0, len(known.cuts) - len(gone)
        if self._alone and self._store.drops_along and not any(cut.lacks for cut in known.unreadable):
            self._forked, self._top = forked_from(known.cuts), known.top
        return not left and all(cut.session != self._session for cut in known.unreadable)

    def _stays(self, cut: Cut, error: Exception) -> None:
        self._failed("delete_failed", error, path=cut.path)

    def _failed(self, kind: Kind, error: Exception, **facts: Any) -> None:
        backend = backend_of(self._store.url)
        self._emit(kind, error=str(error), error_type=type(error).__name__, backend=backend, **facts)


def _counted(cuts: Iterable[Cut], rule: Retention) -> dict[str, Cut]:
    """Return those that count, by their paths without a suffix, which a listing may have otherwise."""
    return {base_of(cut.path): cut for cut in cuts if rule.counts(cut) or cut.lacks}


class CheckpointPlace:
    """The place of a session's checkpoints, and the reports of them."""

    alone = True  # no other process commits to it or writes checkpoints of it
    tables: ClassVar[Mapping[str, str]]  # where its queue and channel are
    lease: Lease | None = None  # of this process alone

    def __init__(self, session: str, store: CheckpointStore | str, program: Description) -> None:
        self.session = session
        self.program = program
        self.backend = backend_of(store if isinstance(store, str) else store.url)  # the kind of its store
        self._store = store  # an address: it may not be there to be opened
        self.last: CheckpointMetadata | None = None  # wherever it is
        self.resumable: CheckpointMetadata | None = None  # the last that a resume finds
        self.save_error: Exception | None = None  # of the last save, unless a later one has succeeded
        self.trace = Trace(session)
        self._told_slow = False  # saves; a session says so once
        self._keyring: Keyring | None = None
        self._elsewhere: dict[str, CheckpointStore] = {}  # that paths of single cuts lead to
        self._tidier: Tidier | None = None

    def own_path(self, steps: int) -> str:
        """Return a path that nothing else of this session will have."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what is owned."""

    def reserve(self, steps: int, user: dict[str, Any], start: str = "") -> CheckpointMetadata:
        """Return what is known of a checkpoint before it is taken, its path above all."""
        return CheckpointMetadata(
            "", self.session, now_iso(), steps, start, dict(self.tables), user, path=self.own_path(steps),
            workflow=self.program.written.workflow, library=__version__,
        )  # fmt: skip

    @property
    def store(self) -> CheckpointStore:
        """Opened by the first cut."""
        if isinstance(self._store, str):
            self._store = open_store(self._store)
        return self._store

    @property
    def keyring(self) -> Keyring:
        if self._keyring is None:
            self._keyring = Keyring.for_store(self.store)
        return self._keyring

    def place_of(self, path: str) -> tuple[CheckpointStore, str]:
        """Return the store that a path leads to, and the path as it is written there."""
        own = self.store.takes(path)
        if own is not None:
            return self.store, own
        where = store_of(path)
        if where not in self._elsewhere:
            self._elsewhere[where] = open_beside(self.store, path)
        place = self._elsewhere[where]
        return place, place.takes(path) or path

    def tidy(self, keep: Retention, *, emit: Callable[..., None], last: bool = False) -> bool:
        """Delete what is not kept now that there is one more; return True if none is left."""
        if self._tidier is None:
            self._tidier = Tidier(self.store, self.session, lambda: self.keyring, emit=emit, alone=self.alone)
        return self.last is not None and self._tidier.after(self.last, keep, last=last)

    def tell_saved(
        self, emit: Callable[..., None], saved: CheckpointMetadata, cause: str, seconds: float, limit: float
    ) -> None:
        """Report a checkpoint to the log and the observers; `limit`: seconds from which on it was slow."""
        facts = {"session": self.session, "step": saved.steps}
        log.info("Checkpoint created: %s", saved.path, extra=facts)
        emit(
            "checkpoint_saved", path=saved.path, cause=cause, seconds=seconds, bytes=saved.size,
            backend=self.backend, synced=saved.synced,
        )  # fmt: skip
        if not self._told_slow:
            self._told_slow = tell_slow("SAVE", seconds, saved.path, self.session, limit)

    def describes(
        self, snapshot: Snapshot, program: Program, *, path: str, sequence: int, cause: str,
        user: dict[str, Any] | None, parent: str | None, origin: str | None,
    ) -> CheckpointMetadata:  # fmt: skip
        """Return the metadata of a checkpoint, with what the session, its trace and its store are to it."""
        metadata = metadata_of(snapshot, program, path=path, sequence=sequence, cause=cause, user=user)
        context, original = self.trace.now()
        return replace(
            metadata, parent=parent, origin=origin, home=self.store.url, trace_context=context,
            original_trace_id=original,
        )  # fmt: skip

    def tell_failed(self, emit: Callable[..., None], error: Exception, cause: str, seconds: float) -> None:
        """Report to the log and the observers a checkpoint that could not be written."""
        self.save_error = error
        log.error("checkpoint failed: %s", error, extra={"session": self.session})
        emit(
            "checkpoint_failed", error=str(error), error_type=type(error).__name__, cause=cause,
            backend=self.backend, seconds=seconds,
        )  # fmt: skip


class Lineage:
    """The line of a session's checkpoints as its owner continues it: what the next one follows."""

    def __init__(self, store: CheckpointStore, session: str) -> None:
        self._store = store
        self._session = session
        self.sequence = 0  # of the last cut
        self._reserved = 0  # the last number that a path has
        self._lock = Lock()
        self.parent: str | None = None  # the last cut
        self.origin: str | None = None  # the cut that the session was forked from
        self.rewinds: Lines = ()  # what the session has gone back behind

    def count_on(self) -> None:
        """Number from the highest that the session has had on."""
        self.sequence = history.highest_sequence(self._store, self._session)

    def is_continued_since(self, left: int) -> bool:
        """Return True if an owner after that epoch has saved a state, and not just set metadata, say."""
        cuts = (history.order_of(raw, self._session)[0] for _, raw in self._store.list(self._session))
        segments = (epoch for epoch, _, _ in self._store.segments(self._session))
        return any(epoch > left for epoch in chain(cuts, segments))

    def reserve(self) -> int:
        """Return a number for a path. Bodies ask in their own threads."""
        with self._lock:
            self._reserved = max(self._reserved, self.sequence) + 1
            return self._reserved

    def extend(self, parent: str | None) -> None:
        """Use up the number of a cut; the next one follows `parent`."""
        self.sequence += 1
        self.parent = parent

    def follow(self, found: Found) -> None:
        """Let later cuts follow this one."""
        self.sequence = max(self.sequence, history.highest_sequence(self._store, self._session))
        self.parent, self.origin = found.meta["checkpoint_id"], found.meta.get("origin")
        self.rewinds = lines_in(found.meta)

    def adopt(self, found: Found, lease: Lease) -> None:
        """Begin an epoch with the cut that was followed; what the session has had after it is superseded."""
        if found.meta["session_id"] != self._session:  # what that has gone back behind is nothing of this one
            self.origin, self.rewinds = found.meta["checkpoint_id"], ()
            return
        line = Line(lease.epoch, int(found.meta["sequence"]))
        cuts = (history.order_of(raw, self._session) for _, raw in self._store.list(self._session))
        self.rewinds = history.with_line(self.rewinds, line, cuts)

    def ends_at(self, found: Found, keyring: Keyring) -> bool:
        """Return True if the session has nothing after that cut: no later one, and no record."""
        newest = next(history.good(self._store, keyring, self._session), None)
        if newest is not None and newest.meta["checkpoint_id"] != found.meta["checkpoint_id"]:
            return False
        after = int(found.facts["transition"])
        records = history.records(self._store, keyring, after, found, self._session, closed=True)
        try:
            return next(records, None) is None
        except errors.JournalDamaged:
            return False


class SessionJournal:
    """The journal of a session as its owner writes it, one segment after another."""

    def __init__(self, store: CheckpointStore, session: str) -> None:
        self._store = store
        self._session = session
        self._segment: Journal | None = None
        self._after = -1
        self._writer: journal.Writer | None = None

    def begin(self, after: int, lease: Lease, keyring: Keyring) -> None:
        """Open a new segment for what follows the transition `after`."""
        if self._segment is not None and self._after == after:
            return  # nothing has been appended since it was opened
        self.close()
        self._after = after
        self._segment = self._store.journal(lease, after)
        around = keyring.around(self._store)
        self._writer = journal.Writer(around, self._session, lease.epoch, after, self._store.encoding)
        self._segment.append(self._writer.head)

    def append(self, payload: bytes) -> None:
        """Write one record, durable when this returns."""
        if self._segment is None or self._writer is None:
            raise errors.JournalFailed(
                f"The journal of session {self._session!r} has no segment: it could not be begun.",
                hint="The session stops here; what was recorded before is safe. Fix the store and resume.",
                session=self._session,
            )
        self._segment.append(self._writer.frame(payload))

    def drop(self, before: int) -> None:
        """Delete what no cut needs any more. What stays is tried at the next cut: this one is saved."""
        try:
            self._store.drop_segments(self._session, before)
        except (errors.GraflowError, OSError) as error:
            log.warning("an old journal stays: %s", error, extra={"session": self._session})

    def forget(self, lease: Lease | None) -> None:
        """Close it, and delete all of it."""
        self.close()
        forget_journal(self._store, self._session, lease)

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None


class Home(CheckpointPlace):
    """One session in one store."""

    tables = BACKEND

    def __init__(self, store: CheckpointStore, session: str, written: Written | None = None) -> None:
        super().__init__(session, store, Description(written or Written()))
        self.allowance = Allowance()
        self.lineage = Lineage(store, session)
        self.journal = SessionJournal(store, session)
        self._left = 0  # the epoch under which it was owned when its newest state was known here
        self.passed: list[tuple[str, errors.CheckpointError]] = []  # that the last `newest` could not use

    @property
    def inputs(self) -> Mapping[str, str]:
        """The digests of what the session was started with."""
        return self.program.written.inputs

    def told(self) -> dict[str, Any]:
        """Return what observers are told of where it is kept."""
        where = getattr(self.store, "folder", self.store.url)
        return {"kept": self.lease is not None, "saved": self.resumable is not None, "store": where}

    def option(self) -> str:
        """Return the option of a command that finds it; "" where none is needed."""
        folder = self.store.folder
        return "" if places.goes_without_saying(folder) else f" --store {shlex.quote(as_typed(folder))}"

    def run_with(self, settings: Settings) -> None:
        """Begin a run: set what its checkpoints say, and how large they may be."""
        self.program.run_with(settings)
        self.allowance = Allowance(settings.size_limit)

    def open(self, *, take_over: bool = False) -> Lease:
        """Own the session; raise SessionBusy if a live process owns it."""
        if self.lease is None:
            self.store.probe()
            self.lease = self.store.acquire(self.session, take_over=take_over)
            if self.is_behind and not self.lineage.is_continued_since(self._left):
                self._left = 0
            folder = None if self.store.shared else folder_on_disk(self.store)
            warning = folder and (key_storage_warning(folder) or passing_warning(folder))
            places.remember(self.store.url, self.program.written.program)
            if warning:
                log.warning("%s", warning, extra={"session": self.session})
        return self.lease

    @property
    def was_left(self) -> bool:
        """True if it was owned here before, and is not now: another may have continued it."""
        return self._left > 0 and self.lease is None

    @property
    def is_behind(self) -> bool:
        """True if another has continued it since it was left here: what is known of it here is old."""
        return self.lease is not None and 0 < self._left < self.lease.epoch - 1

    def close(self) -> None:
        self.journal.close()
        if self.lease is not None:
            self._left = self._left if self.is_behind else self.lease.epoch
            self.lease.release()
            self.lease = None

    def delete(self) -> None:
        """Delete all of the session, as on_failure="rollback" asks."""
        if self.lease is not None:
            for path, _ in list(self.store.list(self.session)):
                self.store.delete(path)
            self.journal.forget(self.lease)

    # --- what was kept -----------------------------------------------------------------

    def newest(self, load: Callable[[Found], None]) -> Found | None:
        """Load the newest cut that is good to the last byte; what was passed over is logged.

        None if there is no cut at all, NoGoodCheckpoint if all are bad.
        """
        passed = self.passed = []
        for path, found in history.newest(self.store, self.keyring, self.session):
            if isinstance(found, Found):
                self._check_stays_encrypted(found)
                try:
                    load(found)
                except errors.CheckpointCorrupt as error:
                    passed.append((path, error))
                    continue
                for bad, why in passed:
                    log.warning("checkpoint %s is passed over: %s", bad, why, extra={"session": self.session})
                return found
            passed.append((path, found))
        if passed:
            raise history.none_good(self.session, passed)
        self._left = 0
        return None

    def _check_stays_encrypted(self, found: Found) -> None:
        """Refuse to continue an encrypted session where it would be saved in the clear."""
        encoding = found.encoding
        if encoding is not None and AEAD in encoding.kinds and AEAD not in self.store.encoding:
            raise errors.UnsafeCheckpoint(
                f"Session {self.session} is encrypted, and what it saves in {self.store.url} would not be.",
                hint="Put encrypted+ before the address of its store.",
                session=self.session,
                path=found.path,
            )

    def continue_from(self, found: Found) -> None:
        """Continue the session from this cut, with what is known of the program."""
        self._left = 0
        self.lineage.follow(found)
        self.trace.goes_on(found.meta)
        self.last = self.resumable = found.metadata
        self.program.writes(self.program.written.following(found.meta))

    def finds(self, path: str) -> bool:
        """Return True if a resume of this session looks where that cut is."""
        return lies_in(self.store, path)

    # --- cuts --------------------------------------------------------------------------

    def own_path(self, steps: int) -> str:
        return archive.auto_path(self.store, self.session, steps, self.lineage.reserve())

    @property
    def last_path(self) -> str | None:
        """The path of the last checkpoint."""
        return self.last.path if self.last else None

    def schedule(self, context: ExecutionContext) -> None:
        """Commit the start of a session, so that it is kept as what is to run."""
        graph = context.graph
        context.state.start_at(graph.starts)
        context.session.commit([graph.routes[name].enqueue() for name in graph.starts])

    def take(
        self, context: ExecutionContext, user: dict[str, Any] | None, path: str | None, portable: bool
    ) -> CheckpointMetadata:
        """Take the session as it is now, outside of a run; a checkpoint of it is always portable."""
        return self.cut(context.graph, capture(context.state, context.random_state()), "request", user, path)

    def cut(
        self,
        graph: TaskGraph,
        snapshot: Snapshot,
        cause: str,
        user: dict[str, Any] | None,
        path: str | None = None,
        keep: Retention | None = None,
    ) -> CheckpointMetadata:
        """Write one trio; raises if it could not be written, and then nothing has changed.

        `keep`: says what goes with it. The caller that gives it tidies afterwards.
        """
        lease: Lease | None = self.open()
        assert lease is not None
        if self.is_behind:
            raise errors.Fenced(
                f"Session {self.session!r} was continued by another owner since it was left here.",
                hint="Execute it, or open it again: it continues from what that owner has saved.",
                session=self.session,
            )
        snapshot.facts["epoch"] = lease.epoch
        place, path = self.place_of(path or self.own_path(snapshot.facts["steps"]))
        keyring, program = self.keyring, self.program.of(graph)
        if place is not self.store:
            lease.check()  # that store knows nothing of ours
            lease, keyring = None, Keyring.for_store(place)
        lineage = self.lineage
        metadata = self.describes(
            snapshot, program, path=path, sequence=lineage.sequence + 1, cause=cause, user=user,
            parent=lineage.parent, origin=lineage.origin,
        )  # fmt: skip
        if lineage.rewinds:
            lines = [[line.epoch, line.sequence] for line in lineage.rewinds]
            metadata = replace(metadata, rewinds=lines, needs=[*metadata.needs, "rewinds"])
        tidier = self._tidier if lease is not None else None
        going = partial(tidier.before, path, keep=keep) if tidier and keep else lambda meta: ()
        try:
            metadata = archive.save(place, keyring, lease, snapshot, program, metadata, self.allowance, going)
        except errors.SaveOutcomeUnknown:  # it may be there: of two with one number the newer one is unknown
            lineage.extend(lineage.parent)
            raise
        lineage.extend(metadata.checkpoint_id)
        self.last, self.save_error = metadata, None
        self.resumable = metadata if self.finds(metadata.path) else self.resumable
        return metadata

    def prune(self, keep: Retention, *, emit: Callable[..., None], last: bool = False) -> None:
        """Delete what is not kept now that there is one more; `last`: this run saves nothing any more."""
        if self.tidy(keep, emit=emit, last=last) and last:
            self.journal.forget(self.lease)
