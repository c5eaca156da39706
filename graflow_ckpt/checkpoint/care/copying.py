"""Copying: checkpoints and journals from one place to another, verified on the way, sealed for where they go.

Promise: what arrives has the digests that it had, part by part (but for a pickle that gets back what it had
in common with others, where the target shares nothing: values/contents.py; and for what is encoded at either
place, which is decoded on the way, and encoded as the target wants it); only its meta is sealed again,
with the key of the place that it arrives at, and says where it was copied from. A copy that is broken off
leaves whole checkpoints and continues where it stopped when it is called again: what is there is not written
twice. The origin is only read, so runs may continue there: its journal is read before its cuts are listed, so
that no record comes without the cut that it follows.

A session is copied under a lease of the target, whose epoch is above all that it gets: an owner there
continues the same history. Journal records after the newest cut are framed again under that epoch, in one
segment that voids what an earlier attempt has left. Cuts that the session has gone back behind stay where
they are, and copies of them that were made before are deleted: the target could not tell them from those
that count.

The tail of a session is what its journal has after the newest cut, as payloads that no pickle of was opened.
Reading it verifies every record.
Not here: what is in a frame (checkpoint/journal.py), which segments count (history.py).
"""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final, Literal

from graflow_ckpt.checkpoint import archive, history, journal
from graflow_ckpt.checkpoint.archive import Found
from graflow_ckpt.checkpoint.care.inventory import Inventory, inventory
from graflow_ckpt.checkpoint.history import former_lines, is_superseded
from graflow_ckpt.checkpoint.model import Document
from graflow_ckpt.checkpoint.retention import IN_SESSION, Cut, by_session
from graflow_ckpt.checkpoint.seals import Keyring, sealed_bytes, sealed_in
from graflow_ckpt.checkpoint.values.contents import Bringing, pour, shares
from graflow_ckpt.core import errors
from graflow_ckpt.core.protocols import CheckpointStore, Lease, PartWriter, Readable, Sink, Source
from graflow_ckpt.stores.around.encodings import Metas, encoding_of
from graflow_ckpt.stores.names import META, PARTS, base_of

_OWNERS: Final = 10_000
"""That a session may have had at the origin more than at the target: each of them is made up for."""
_TURNS: Final = 5  # a session that is being run may cut, or prune, faster than it is looked at or copied
_COPIED_FROM: Final = "copied_from"
BATCH: Final = 256 << 10
"""Bytes of records that are appended at once."""

Tail = tuple[int, list[bytes]]
"""The transition of a cut, and the payloads of the journal after it."""

_NOTHING: Final[Tail] = (0, [])

State = Literal["copied", "there", "gone", "superseded", "bad"]


class Diverged(errors.SessionError):
    """The session has continued at the target in another way than at the origin."""


class Overtaken(errors.CheckpointError):
    """The newest checkpoint was pruned before it was copied; the journal is of no use without it."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The result for one checkpoint."""

    path: str
    state: State
    size: int = 0
    target: str = ""
    error: errors.CheckpointError | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """The result for one session."""

    session: str
    cuts: tuple[Copied, ...]
    records: int = 0  # of its journal
    running: bool = False  # at the origin: what it does from now on is not in the copy
    error: errors.CheckpointError | None = (
        None  # why the target lacks the journal, and resumes from the newest cut
    )


@dataclass(frozen=True, slots=True)
class Move:
    """A move between two places. Without `keys` seals of the origin are not looked at: it is trusted."""

    origin: Readable
    target: CheckpointStore
    keys: Keyring | None
    ring: Keyring
    take_over: bool = False
    seen: Callable[[Copied], None] = lambda copied: None

    def cut(self, path: str, lease: Lease | None = None) -> Copied:
        """Copy one checkpoint; if it is there already, it is left alone."""
        try:
            taking = partial(self._pass_on, path, lease)
            copied = archive.taken(self.origin, self.keys, path, taking, shares=shares(self.target))
        except errors.CheckpointNotFound:
            copied = Copied(path, "gone")
        self.seen(copied)
        return copied

    def session(
        self, session: str, known: Inventory | None = None, known_there: Inventory | None = None
    ) -> Moved:
        """Copy what counts of a session: its cuts, the oldest first, and its journal.

        `known`, `known_there`: what it has at the origin and the target, if the caller has looked already.
        """
        moved = self._at_once(session, known, known_there)
        for _ in range(_TURNS):
            if not isinstance(moved.error, Overtaken):
                break
            copied = {cut.path: cut for cut in moved.cuts if cut.state == "copied"}
            again = self._at_once(session)
            moved = replace(again, cuts=tuple(copied.get(cut.path, cut) for cut in again.cuts))
        return moved

    def _at_once(
        self, session: str, known: Inventory | None = None, known_there: Inventory | None = None
    ) -> Moved:
        """Copy what counts at this moment; a session that is being run may overtake it."""
        running = self.origin.owner(session) is not None
        journal, known = at_one_moment(self.origin, self.keys, session, known, running=running)
        known_there = known_there if known_there is not None else inventory(self.target, session)
        cuts, there = sorted(known.cuts, key=IN_SESSION), sorted(known_there.cuts, key=IN_SESSION)
        old = _superseded(self.origin, self.keys, session, cuts)
        going = [cut for cut in cuts if cut.path not in old]
        self._check_same_line(session, cuts, there)
        done = [Copied(cut.path, "superseded", cut.size) for cut in cuts if cut.path in old]
        given_up = {cut.id for cut in cuts if cut.path in old}
        stale = [cut.path for cut in there if cut.id in given_up]
        done += unreadable(known)
        nothing_new = not stale and self._is_there(session, going, there, journal)
        if nothing_new:
            done += [Copied(cut.path, "there", cut.size) for cut in going]
        for copied in done:
            self.seen(copied)
        if nothing_new:
            return Moved(session, tuple(done), 0, running)
        lacking: errors.CheckpointError | None = None
        above = max(_highest(self.origin, self.keys, cuts), _highest(self.target, self.ring, there))
        lease = self._own(session, above)
        try:
            for path in stale:  # there since a former copy: the target would resume from them
                self.target.delete(path)
            for cut in going:
                try:
                    done.append(self.cut(cut.path, lease))
                except errors.CheckpointError as error:
                    done.append(Copied(cut.path, "bad", error=error))
                    self.seen(done[-1])
            try:
                if going and done[-1].state == "gone":
                    raise Overtaken(
                        f"Session {session} prunes faster than it can be copied: {going[-1].path} is gone.",
                        hint="Copy it when it is not run, or let it keep more checkpoints (keep=).",
                        session=session,
                        path=going[-1].path,
                    )
                count = self._copy_journal(session, lease, journal)
            except errors.CheckpointError as why:  # a store that keeps none, or one that is damaged
                count, lacking = 0, why
        finally:
            lease.release()
        return Moved(session, tuple(done), count, running, lacking)

    # --- one checkpoint ----------------------------------------------------------------

    def _pass_on(
        self, path: str, lease: Lease | None, meta: Document, part: Callable[[str], Source]
    ) -> Copied:
        where = target_path(self.target, path)
        size = sum(int(meta["parts"][name]["size"]) for name in PARTS if name != META)
        former = _sealed(self.target, self.ring, where)
        if former is not None:
            if _is_same(former, meta):
                return Copied(path, "there", size, where)
            _check_older(where, former, meta)
        stage, home = uuid.uuid4().hex, meta.get("home")
        document = meta | {
            "stage": stage,
            "synced": self.target.synced,
            _COPIED_FROM: self._here(),
            "home": self.target.url if home in (None, "", self.origin.url) else home,
        }
        encoding = encoding_of(self.target, self.ring)

        def write_meta(sink: Sink) -> None:
            stored = document if encoding is None else encoding.concealed(document)
            sink.write(sealed_bytes(stored, self.ring, where))

        bringing = Bringing(self.origin, path, meta)

        def write_values(sink: Sink) -> None:
            bringing.bring(self.target, where, lease, stage)
            pour(partial(part, "pkl"), sink)

        def encoded(name: str, write: PartWriter) -> PartWriter:
            def write_encoded(sink: Sink) -> None:
                digest = archive.digested(sink, name, write, encoding)
                document["parts"] = document["parts"] | {name: digest.document()}

            return write if encoding is None else write_encoded

        facts = partial(pour, partial(part, "state.json"))
        parts: list[tuple[str, PartWriter]] = [
            ("pkl", encoded("pkl", write_values)),
            ("state.json", encoded("state.json", facts)),
            (META, write_meta),
        ]
        try:
            self.target.put(where, parts, lease=lease, stage=stage)
        finally:
            bringing.end()
        return Copied(path, "copied", size, where)

    # --- a session ---------------------------------------------------------------------

    def _own(self, session: str, above: int) -> Lease:
        """Return a lease whose epoch is above all that the target gets, so that an owner there is newer."""
        while True:
            lease = self.target.acquire(session, take_over=self.take_over)
            if lease.epoch > above:
                return lease
            lease.release()
            if above - lease.epoch > _OWNERS:
                raise errors.CheckpointError(
                    f"A checkpoint of session {session} claims to be of owner {above}: none gets that far.",
                    hint="Its metadata were changed. With its key, only it would be left out.",
                    session=session,
                    epoch=above,
                )

    def _is_there(
        self, session: str, going: Sequence[Cut], there: Sequence[Cut], journal: Tail | errors.CheckpointError
    ) -> bool:
        if isinstance(journal, errors.CheckpointError):
            return False  # what is wrong with a journal is reported when it is copied
        known = {(cut.id, target_path(self.target, cut.path)) for cut in there}
        wanted = [(cut.id, target_path(self.target, cut.path)) for cut in going]
        if not known.issuperset(wanted) or not all(
            _sealed(self.target, self.ring, where) for _, where in wanted
        ):
            return False
        try:
            return journal[1] == tail(self.target, self.ring, session)[1]
        except errors.CheckpointError:
            return False

    def _check_same_line(self, session: str, ours: Sequence[Cut], theirs: Sequence[Cut]) -> None:
        """Refuse a target that was continued: cuts that its owner never made would be between its own."""
        known = {cut.id for cut in ours}
        common = max(((cut.epoch, cut.sequence) for cut in theirs if cut.id in known), default=(-1, -1))
        later = [cut for cut in theirs if cut.id not in known and (cut.epoch, cut.sequence) > common]
        metas = [(cut, _sealed(self.target, self.ring, cut.path) or {}) for cut in later]
        # what a former copy has brought from here, the origin has not kept
        own = [cut for cut, meta in metas if meta.get(_COPIED_FROM) != self._here()]
        if own:
            where, path = self.target.url, own[-1].path
            raise Diverged(
                f"Session {session} has gone on by itself at {where}: {path} is not one of the origin's.",
                hint="Copy it the other way round, or take what is there away "
                "(graflow-ckpt checkpoints delete).",
                session=session,
                path=path,
            )

    def _here(self) -> str:
        """Return the origin, named for every host: a folder of that name is another one on another host."""
        return self.origin.url if self.origin.shared else f"{platform.node()} {self.origin.url}"

    def _copy_journal(self, session: str, lease: Lease, found: Tail | errors.CheckpointError) -> int:
        if isinstance(found, errors.CheckpointError):
            raise found
        after, payloads = found
        if not payloads and not any(self.target.segments(session)):
            return 0  # else an empty segment: it voids what a former copy has brought
        if self.keys is None:
            newest = next(history.good(self.target, self.ring, session), None)
            after = int(newest.facts["transition"]) if newest else 0
        segment = self.target.journal(lease, after)  # it voids what older owners have beyond
        try:
            ring = self.ring.around(self.target)
            writer = journal.Writer(ring, session, lease.epoch, after, self.target.encoding)
            batch = [writer.head]
            for payload in payloads:
                batch.append(writer.frame(payload))
                if sum(map(len, batch)) > BATCH:
                    segment.append(b"".join(batch))
                    batch = []
            if batch:
                segment.append(b"".join(batch))
        finally:
            segment.close()
        return len(payloads)


def target_path(target: CheckpointStore, path: str) -> str:
    """Return what a checkpoint is called at the target: as it was, in that place."""
    return os.path.join(target.folder, base_of(path.rpartition("/")[2]) + ".pkl")


def survey(place: Readable) -> dict[str, Inventory]:
    """Return all that a place has, by session, the one cut last at the end; under "" what is damaged and
    has a name that tells no session. One look for all of them: a listing can be long."""
    known = inventory(place)
    cuts, damaged = by_session(known.cuts), by_session(known.unreadable)
    last = {session: max(cut.created for cut in some) for session, some in cuts.items()}
    names = sorted({*cuts, *damaged}, key=lambda name: (last.get(name, 0.0), name))
    return {name: Inventory(tuple(cuts.get(name, ())), tuple(damaged.get(name, ()))) for name in names}


def unreadable(known: Inventory) -> list[Copied]:
    """Return what cannot be copied, since it is not known what it is."""
    error = "The metadata of {} cannot be read."
    return [
        Copied(cut.path, "bad", error=errors.CheckpointCorrupt(error.format(cut.path), path=cut.path))
        for cut in known.unreadable
    ]


def _highest(place: Readable, keys: Keyring | None, cuts: Sequence[Cut]) -> int:
    """Return the highest epoch whose seal holds: any writer may have claimed the others."""
    for cut in sorted(cuts, key=IN_SESSION, reverse=True):
        if keys is None or _sealed(place, keys, cut.path) is not None:
            return cut.epoch
    return 0


def _sealed(place: Readable, keys: Keyring, path: str) -> Document | None:
    """Return the meta that is there; None if there is none whose seal holds."""
    with suppress(errors.CheckpointError):
        meta = sealed_in(place.meta(path), keys)
        return Metas(place, keys).shown(path, meta) if meta is not None else None
    return None  # gone


def _superseded(place: Readable, keys: Keyring | None, session: str, cuts: Sequence[Cut]) -> frozenset[str]:
    if keys is None:
        lines = (*former_lines(place, session), *(cuts[-1].rewinds if cuts else ()))
    else:
        newest_first = ((cut.epoch, cut.sequence, cut.path) for cut in reversed(cuts))
        lines = history.gone_back(place, keys, session, newest_first)
    return frozenset(cut.path for cut in cuts if is_superseded(lines, cut.epoch, cut.sequence))


def _is_same(former: Document, meta: Document) -> bool:
    """Return True if what is at the target is that checkpoint. How it is encoded there is of no
    account."""
    if "encoding" not in former:
        return all(former.get(key) == meta.get(key) for key in ("checkpoint_id", "parts"))
    sizes = {name: part.get("plain") for name, part in former["parts"].items()}
    its = {name: part["size"] for name, part in meta["parts"].items()}
    return former.get("checkpoint_id") == meta.get("checkpoint_id") and sizes == its


def _check_older(where: str, former: Document, meta: Document) -> None:
    """Refuse what is not older. A name that a user gave may mean a newer checkpoint by now, or another's."""

    def age(one: Document) -> tuple[int, int]:
        return int(one["epoch"]), int(one["sequence"])

    if former.get("session_id") != meta.get("session_id") or age(former) >= age(meta):
        raise errors.CheckpointError(
            f"{where} is another checkpoint than the one that would be copied there.",
            hint="Delete it, or copy into another place.",
            path=where,
        )


# --- the tail of a session -------------------------------------------------------------


def at_one_moment(
    place: Readable, keys: Keyring | None, session: str, known: Inventory | None, *, running: bool
) -> tuple[Tail | errors.CheckpointError, Inventory]:
    """Return the journal of a session, or what is wrong with it, and its cuts of then or later: a cut takes
    the place of the records before it, and without it those after it are of no use.

    `known`: what the caller has seen before, and what counts if it cannot have changed since.
    """
    before = known if known is not None else inventory(place, session)
    while True:
        journal: Tail | errors.CheckpointError = _NOTHING
        if keys is not None:  # records are sealed one after the other: none can be checked without
            try:
                journal = tail(place, keys, session)
            except errors.CheckpointError as why:
                journal = why
        if known is not None and not running and journal == _NOTHING:
            return journal, known
        after = inventory(place, session)
        if _gone_back(before) == _gone_back(after):
            return journal, after
        before, running = after, True  # it was taken back between the two


def _gone_back(known: Inventory) -> object:
    return max(((cut.epoch, cut.sequence, cut.rewinds) for cut in known.cuts), default=(0, 0, ()))[2]


def tail(place: Readable, keys: Keyring, session: str) -> Tail:
    """Read and verify the tail of a session.

    It begins at the cut before the newest one if the journal goes back so far: should the newest be damaged
    one day, a resume continues from the other one.
    """
    if not any(place.segments(session)):
        return 0, []
    for turn in range(_TURNS):
        good = list(islice(history.good(place, keys, session), 2))
        try:
            after, payloads = _after(place, keys, session, good[0] if good else None)
        except errors.JournalDamaged:
            if turn == _TURNS - 1:
                raise
            continue  # cut again meanwhile, and what was before it dropped
        if len(good) < 2 or not payloads:
            return after, payloads
        try:
            earlier, longer = _after(place, keys, session, good[1])
        except errors.JournalDamaged:
            return after, payloads
        ahead = after - earlier
        return (earlier, longer) if ahead >= 0 and longer[ahead:] == payloads else (after, payloads)
    raise AssertionError("not reached")


def _after(place: Readable, keys: Keyring, session: str, found: Found | None) -> tuple[int, list[bytes]]:
    after = int(found.facts["transition"]) if found is not None else 0
    kept = history.records(place, keys, after, found, session, closed=True)
    return after, [payload for payload, _ in kept]
