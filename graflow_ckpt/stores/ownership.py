"""Ownership: one living owner per session, under an epoch that only grows.

    .{session}.lock            who owns it; flocked around each claim and each commit
    .{session}.{epoch}.alive   flocked by the owner for as long as it lives

Promise: of several who acquire a session at once exactly one gets it; an epoch that `acquire` has
given out is on the disk and is never given out again; who lost the session finds out in `check`,
under the lock, before a commit: by epoch and claim, for in a folder that was put back to an older state
the next owner may get the same epoch. A dead owner needs nobody's consent and no timeout: its flock died
with it, also when its pid has been taken by another process or lives in another container.

The lock file is never renamed (a flock belongs to the inode) and has two slots, written in turns:

    offset 0      crc32 {"turn": 4, "epoch": 3, "claim": "…", "owner": {…}, "lines": [[3, 17], …]} \\n
    offset 8192   crc32 {"turn": 5, …} \\n

The valid slot of the higher turn counts; a crash can tear only the other one.
Not here: what a commit is, and hosts that share a folder without sharing its locks (some NFS).
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from graflow_ckpt.core.errors import CheckpointError, Fenced, SessionBusy
from graflow_ckpt.core.protocols import Line, Owner
from graflow_ckpt.links.processes import is_gone, is_myself, myself, named
from graflow_ckpt.stores.disk import Disk, refusing
from graflow_ckpt.stores.flock import Flock, is_held
from graflow_ckpt.stores.ledger import Record, Slots, read_record

_logger = logging.getLogger(__name__)
_PATIENCE = 10.0  # seconds to wait for a commit of the present owner to end
_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


class LocalLease:
    """A session that this process owns until it releases it, dies, or is fenced."""

    def __init__(
        self, session: str, record: Record, slots: Slots, alive: Flock, taken_from: Owner | None
    ) -> None:
        self.session = session
        self.epoch = record.epoch
        self.taken_from = taken_from
        self._record = record
        self._slots = slots
        self._alive = alive
        self._mutex = threading.Lock()  # a flock does not keep two threads of one open file apart

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with the session: no other process claims it, no other thread commits."""
        self._not_released()
        with self._mutex:
            self._not_released()
            try:
                self._slots.lock.take()
                yield
            finally:  # also after a Ctrl-C in between: the lock would keep everybody out, us as well
                self._slots.lock.drop()

    def check(self) -> None:
        """Raise `Fenced` unless the session is still ours. Says something lasting under the lock only."""
        self._not_released()
        if self._slots.unchanged():
            return
        if self._slots.removed():
            raise Fenced(
                f"The lock file of session {self.session!r} has been removed: {self._slots.lock.path}.",
                hint="Nothing more is written, because another process could own the session now.",
                session=self.session,
                epoch=self.epoch,
            )
        found = self._slots.read()  # nobody but another owner writes into the file, and who puts it back
        raise lost(self.session, self.epoch, found.epoch, found.owner)

    def rewound(self, sequence: int) -> None:
        """Write down that this epoch goes on from `sequence`."""
        with self.locked():
            self.check()
            self._write(self._record.with_line(Line(self.epoch, sequence)))

    def release(self) -> None:
        """Let the session go. What cannot be written then does not matter: the flock ends anyway."""
        if self._alive.fd < 0:
            return
        try:
            with self.locked():
                self.check()
                self._write(self._record.without_owner())
                self._slots.disk.unlink(self._alive.path)
        except (Fenced, CheckpointError, OSError) as error:
            _logger.info("session %s let go without a word: %s", self.session, error)
        finally:
            self._alive.close()
            self._slots.lock.close()

    def _write(self, record: Record) -> None:
        with refusing("write", self._slots.lock.path):
            self._record = self._slots.write(record)

    def _not_released(self) -> None:
        if self._alive.fd < 0 or self._slots.lock.fd < 0:
            raise Fenced(
                f"Session {self.session!r} is not owned by this process (any more): the lease was released, "
                "or the process was forked from its owner.",
                hint="Acquire it first.",
                session=self.session,
                epoch=self.epoch,
            )


class Ownership:
    """The lock and alive files of the sessions in one folder."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder

    def acquire(self, session: str, *, take_over: bool, floor: int) -> LocalLease:
        """Become the owner. `floor`: the highest epoch known from elsewhere, if the lock file was lost."""
        path = f"{self._folder}/.{session}.lock"
        with refusing("lock", path):
            lock = Flock(path)
            try:
                if not lock.take_within(_PATIENCE):
                    raise self._stuck(session)
                try:
                    return self._claim(session, Slots(self._disk, lock), take_over=take_over, floor=floor)
                finally:
                    lock.drop()
            except BaseException:
                lock.close()
                raise

    def owner(self, session: str) -> Owner | None:
        """The living owner, without taking anything."""
        record = self._read(session)
        return record.owner if self._alive_epochs(session, record) else None

    def lines(self, session: str) -> tuple[Line, ...]:
        return self._read(session).lines

    def has_record(self, session: str) -> bool:
        return self._read(session).epoch > 0

    def _claim(self, session: str, slots: Slots, *, take_over: bool, floor: int) -> LocalLease:
        # A former owner may have been killed between writing and syncing. Unless its slot is safe
        # now, ours would overwrite the only one that is.
        self._disk.sync_data(slots.lock.fd)
        found = slots.read()
        if not take_over and self._alive_epochs(session, found):
            raise busy(session, found.owner)
        epochs = self._alive_files(session)
        epoch = max(found.epoch, floor, *epochs, 0) + 1
        alive = Flock(self._alive_path(session, epoch))
        try:
            if not alive.try_take():
                raise busy(session, None)
            record = slots.write(found.claimed(epoch, myself(), os.urandom(16).hex()))
            self._disk.sync_folder(self._folder)  # the two files' names: an epoch must not be forgotten
        except BaseException:
            alive.close()
            raise
        for old in epochs:
            with suppress(FileNotFoundError):
                self._disk.unlink(self._alive_path(session, old))
        return LocalLease(session, record, slots, alive, found.owner)

    def _read(self, session: str) -> Record:
        path = f"{self._folder}/.{session}.lock"
        with refusing("read", path):
            try:
                return read_record(self._disk.read(path))
            except (FileNotFoundError, NotADirectoryError):
                return Record()

    def _alive_path(self, session: str, epoch: int) -> str:
        return f"{self._folder}/.{session}.{epoch}.alive"

    def _alive_files(self, session: str) -> list[int]:
        pattern = re.compile(rf"\.{re.escape(session)}\.(\d+)\.alive\Z")
        try:
            names = self._disk.names(self._folder)
        except FileNotFoundError:
            return []
        return [int(match[1]) for name in names if (match := pattern.match(name))]

    def _alive_epochs(self, session: str, found: Record) -> list[int]:
        """Those at work. A lower epoch than the recorded one is a fenced owner and does not count."""
        return [
            epoch
            for epoch in self._alive_files(session)
            if epoch >= found.epoch
            and is_held(self._alive_path(session, epoch))
            # what a child that was just forked still has open does not make its dead parent an owner
            and not (epoch == found.epoch and found.owner is not None and is_gone(found.owner))
        ]

    def _stuck(self, session: str) -> SessionBusy:
        owner = self._read(session).owner
        return SessionBusy(
            f"Session {session!r} is locked for a commit by {named(owner)}, for {_PATIENCE:.0f} seconds now.",
            hint="It may have been stopped (kill -CONT lets it go on) or hang in a slow disk; end it first.",
            session=session,
            owner=owner,
        )


def lost(session: str, epoch: int, found: int, owner: Owner | None) -> Fenced:
    """What to raise where the store has another claim than that of this owner. `found`: its epoch."""
    if found > epoch:
        said = f"Session {session!r} was taken over by {named(owner)}."
    elif found == epoch:
        said = (
            f"Session {session!r} belongs to {named(owner)} under the same epoch, {epoch}: "
            "the store has forgotten this owner (a restored backup, a failover), and gave it out once more."
        )
        _logger.warning("a write was refused: %s", said, extra={"session": session})
    else:
        said = (
            f"The store has forgotten epoch {epoch} of session {session!r}, and knows {found} as the last: "
            "it is in an older state (a restored backup, a failover)."
        )
    hint = "Nothing that this process does counts any more; it should end."
    return Fenced(said, hint=hint, session=session, epoch=epoch, owner=owner)


def busy(session: str, owner: Owner | None) -> SessionBusy:
    if owner is not None and is_myself(owner):
        whom, hint = f"this process itself (since {owner.since})", "Leave or release it there first."
    else:
        whom, hint = named(owner), "Wait for it, end it, or take the session over (--take-over)."
    return SessionBusy(
        f"Session {session!r} is in use by {whom}.",
        hint=_rank_hint(session, [name for name in _RANKS if name in os.environ]) or hint,
        session=session,
        owner=owner,
    )


def _rank_hint(session: str, ranks: Sequence[str]) -> str:
    if not ranks and "WORLD_SIZE" not in os.environ:
        return ""
    name = ranks[0] if ranks else "RANK"
    rank = os.environ.get(name, "")
    example = f' (here "{session}-rank{rank}")' if rank else ""
    return (
        f"{name} is set, so this program seems to run once per rank: give each its own session, "
        f'session_id=f"{session}-rank{{r}}" with r from {name}{example}.'
    )
