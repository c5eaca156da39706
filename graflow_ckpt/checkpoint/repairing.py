"""Repairing: what is damaged is kept aside, replaced from a good copy if there is one, and else taken away.

Promise: no byte that can still be read is lost. The files of a damaged checkpoint, as they are, are on the
disk in a folder of their own before anything of it is touched; a checkpoint of which something cannot be read
is not deleted unless that is wanted. Of a damaged journal the records before the damage go on to count; the
segments as they were are kept aside, too.

Only damage is repaired. A seal of a key that is not here, or none, and a schema of a newer version are no
damage; sessions that somebody runs are left alone. Not here: who decides (the command line asks).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from graflow_ckpt.checkpoint import archive, history
from graflow_ckpt.checkpoint.copying import Move, target_path
from graflow_ckpt.checkpoint.inventory import cut_of, inventory
from graflow_ckpt.checkpoint.model import parse
from graflow_ckpt.checkpoint.seal import Keyring
from graflow_ckpt.checkpoint.tail import write_segment
from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointNotFound,
    JournalDamaged,
    NoKey,
    SchemaUnsupported,
    UnknownKey,
    UnsafeCheckpoint,
)
from graflow_ckpt.core.protocols import CheckpointStore, Readable, Source
from graflow_ckpt.stores.disk import Disk, refusing
from graflow_ckpt.stores.names import META, PARTS, base_of, contents_in_order, session_of

_PIECE: Final = 4 << 20
_EVERYTHING: Final = 2**62
_OTHERS: Final = (UnknownKey, SchemaUnsupported, NoKey, CheckpointNotFound)


@dataclass(frozen=True, slots=True)
class Damage:
    """One checkpoint that does not verify, or (path "") the journal of a session."""

    path: str
    session: str
    error: CheckpointError
    good: str = ""  # the path of a good copy of it elsewhere


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was done about it."""

    damage: Damage
    done: Literal["replaced", "set aside", "left"]
    kept: tuple[str, ...] = ()  # where its bytes are
    why: str = ""
    records: int = 0  # of a journal: those that still count


@dataclass(frozen=True, slots=True)
class Repair:
    """Of one store. `copies`: where good copies may be."""

    store: CheckpointStore
    keyring: Keyring
    aside: str
    copies: Readable | None = None
    copies_keys: Keyring | None = None
    copies_path: Callable[[str], str] = lambda name: name
    force: bool = False

    # --- looking -----------------------------------------------------------------------

    def look(self, paths: Iterable[str]) -> Iterator[Damage]:
        """Which of them are damaged."""
        for path in paths:
            try:
                archive.check(self.store, self.keyring, path)
            except _OTHERS:
                continue
            except CheckpointError as error:
                if not isinstance(error, UnsafeCheckpoint) or self._was_changed(path):
                    yield Damage(path, self._session_of(path), error, self._good_copy(path))

    def look_at_journals(self, sessions: Sequence[str]) -> Iterator[Damage]:
        for session in sessions:
            try:
                self._salvage(session)
            except JournalDamaged as error:
                yield Damage("", session, error)
            except CheckpointError:
                continue

    def _was_changed(self, path: str) -> bool:
        """Whether a seal that is refused is one that was made here and does not fit any more."""
        meta = parse(path, self.store.meta(path), f".{META}")
        return self.store.unsafe(path) is None and {"seal", "key_id"} <= set(meta)

    def _session_of(self, path: str) -> str:
        with suppress(CheckpointError):
            cut = cut_of(path, self.store.meta(path))
            if cut is not None:
                return cut.session
        return session_of(base_of(path.rpartition("/")[2])) or ""

    def _good_copy(self, path: str) -> str:
        if self.copies is None or self.copies_keys is None:
            return ""
        there = self.copies_path(f"{base_of(path.rpartition('/')[2])}.pkl")
        try:
            found, _ = archive.check(self.copies, self.copies_keys, there)
        except CheckpointError:
            return ""
        ours = self._id_of(path)
        return there if ours in (None, found.meta["checkpoint_id"]) else ""

    def _id_of(self, path: str) -> object:
        """As the damaged meta has it; None if it cannot be read."""
        try:
            return parse(path, self.store.meta(path), ".meta.json").get("checkpoint_id")
        except CheckpointError:
            return None

    # --- mending -----------------------------------------------------------------------

    def mend(self, damage: Damage) -> Repaired:
        """Keep it aside, and replace it or take it away."""
        if damage.session and self.store.owner(damage.session) is not None:
            return Repaired(damage, "left", why=f"session {damage.session} is being run")
        if not damage.path:
            return self._mend_journal(damage)
        kept, lacking = self._keep(damage.path)
        if damage.good:
            assert self.copies is not None
            move = Move(self.copies, self.store, self.copies_keys, self.keyring, replace=True)
            move.cut(damage.good)
            return Repaired(damage, "replaced", kept)
        if lacking and not self.force:
            why = f"{', '.join(lacking)} cannot be read, and would be lost with it"
            return Repaired(damage, "left", kept, why)
        self.store.delete(damage.path)
        return Repaired(damage, "set aside", kept)

    def _keep(self, path: str) -> tuple[tuple[str, ...], list[str]]:
        """The files as they are; and the parts that could not be had, though they may be there."""
        raw = self.store.meta(path)
        stage = ""
        with suppress(CheckpointError):
            stage = str(parse(path, raw, f".{META}").get("stage", ""))
        base = base_of(path.rpartition("/")[2])
        kept, lacking = [self._write(f"{base}.{META}", [raw])], []
        for part in PARTS:
            if part == META:
                continue
            try:
                kept.append(self._write(f"{base}.{part}", self._pieces(path, part, stage)))
            except CheckpointCorrupt:
                lacking.append(part)  # gone, or it belongs to another meta
        for name in contents_in_order(raw):
            try:
                kept.append(self._write(f"{base}.{name}.content", self._content(path, name, stage)))
            except CheckpointCorrupt:
                lacking.append(f"content {name}")
        return tuple(kept), lacking

    def _content(self, path: str, name: str, stage: str) -> Iterator[bytes]:
        if self.store.contents is None:
            raise CheckpointCorrupt(f"Content {name} of {path} is in another store.", path=path)
        return _read(self.store.contents.open(path, name, stage))

    def _pieces(self, path: str, part: str, stage: str) -> Iterator[bytes]:
        return _read(self.store.open(path, part, stage))

    def _write(self, name: str, pieces: Iterator[bytes] | list[bytes]) -> str:
        """A new file in the folder for what is kept, on the disk when this returns."""
        with refusing("make the folder", self.aside):
            os.makedirs(self.aside, mode=0o700, exist_ok=True)
        number = 0
        while True:
            file = f"{self.aside}/{name}{f'.{number}' if number else ''}"
            try:
                with refusing("create", file):
                    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except CheckpointError:
                if not os.path.lexists(file):
                    raise
                number += 1  # kept once before: neither takes the place of the other
                continue
            break
        disk = Disk()
        try:
            with refusing("write", file), open(fd, "wb") as kept:
                for piece in pieces:
                    kept.write(piece)
                kept.flush()
                disk.sync(fd)
        except BaseException:
            os.unlink(file)
            raise
        disk.sync_folder(self.aside)
        return file

    # --- journals ----------------------------------------------------------------------

    def _salvage(self, session: str) -> None:
        """Read all of it; what is damaged raises."""
        after, found = self._newest(session)
        for _ in history.records(self.store, self.keyring, after, found, session, closed=True):
            pass

    def _newest(self, session: str) -> tuple[int, archive.Found | None]:
        for _, found in history.newest(self.store, self.keyring, session):
            if isinstance(found, archive.Found):
                return int(found.facts["transition"]), found
        return 0, None

    def _mend_journal(self, damage: Damage) -> Repaired:
        session = damage.session
        lease = self.store.acquire(session)
        try:
            kept = tuple(
                self._write(f"{session}.{epoch}.{after}.journal", [raw])
                for epoch, after, raw in self.store.segments(session)
            )
            after, found = self._newest(session)
            good: list[bytes] = []
            with suppress(JournalDamaged):
                for payload, _ in history.records(
                    self.store, self.keyring, after, found, session, closed=True
                ):
                    good.append(payload)
            write_segment(self.store, self.keyring, lease, after, good)
            self.store.drop_segments(session, _EVERYTHING)  # all but the one that was just written
        finally:
            lease.release()
        return Repaired(damage, "set aside", kept, records=len(good))


def _read(source: Source) -> Iterator[bytes]:
    """As it is: what is damaged is what is to be kept."""
    try:
        while True:
            piece = bytearray(_PIECE)
            count = source.readinto(memoryview(piece))
            if not count:
                return
            yield bytes(piece[:count])
    finally:
        source.close()


def meant(store: CheckpointStore, paths: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """All checkpoints and sessions of a store, or those that are named."""
    known = inventory(store)
    everything = (*known.cuts, *known.unreadable)
    chosen = [cut for cut in everything if not paths or cut.path in paths]
    return [cut.path for cut in chosen], sorted({cut.session for cut in chosen if cut.session})


def copy_of(store: CheckpointStore) -> Callable[[str], str]:
    """What a checkpoint is called in a store with good copies."""
    return lambda name: target_path(store, name)
