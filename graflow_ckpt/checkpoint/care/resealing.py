"""Resealing: checkpoints of older keys get the newest one. Metas are written again, values are not read.

Promise: nothing is sealed whose seal did not hold under a key of the ring, and no checkpoint changes
its order or its parts. A session that is running is left alone; it is owned while its checkpoints are
done, so that no retention deletes one in that moment. A pass that was killed is continued by the next.
The same writes encrypt the keys of encrypted trios again, so that old ones can be deleted.
Not here: journals. A segment keeps its key until the next cut; `usage` counts them, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from graflow_ckpt.checkpoint import journal
from graflow_ckpt.checkpoint.model import Document, document_of, parse
from graflow_ckpt.checkpoint.seals import Keyring, sealed_bytes, verify
from graflow_ckpt.core.errors import CheckpointCorrupt, GraflowError, SessionBusy
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import CheckpointStore, Lease
from graflow_ckpt.stores.around.encodings import AEAD, Metas, key_in
from graflow_ckpt.stores.names import META

_ALL = 2**62


@dataclass(slots=True)
class Usage:
    """Counts of the uses of each key, by its id. `unreadable`: checkpoints whose key is not known."""

    seals: Counter[str] = field(default_factory=Counter)
    encrypts: Counter[str] = field(default_factory=Counter)
    journals: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0

    @property
    def ids(self) -> set[str]:
        return {key_id for counted in (self.seals, self.encrypts, self.journals) for key_id in counted} - {""}


@dataclass(frozen=True, slots=True)
class Resealed:
    """The number of those that have the newest key now, and those that stay as they are, with the reason."""

    done: int
    stays: tuple[tuple[str, str], ...] = ()


def usage(store: CheckpointStore) -> Usage:
    """Read metas, and the beginnings of journals."""
    found, sessions = Usage(), set()
    for _, raw in store.list():
        meta = document_of(raw)
        key_id = key_in(meta or {})
        if meta is not None and (key_id or AEAD in store.encoding):
            found.encrypts[key_id] += 1
        if meta is None or (AEAD in store.encoding and not key_id):
            found.unreadable += 1
            continue
        found.seals[str(meta.get("key_id") or "")] += 1
        sessions.add(str(meta.get("session_id")))
    for session in sorted(sessions):
        with suppress(GraflowError):  # nothing is decrypted, so no key is missed
            for _, _, raw in store.segments(session):
                found.journals.update(journal.keys_of(raw))
    return found


def reseal(
    store: CheckpointStore, keyring: Keyring, seen: Callable[[int, int], object] = lambda done, count: None
) -> Resealed:
    """Reseal all of a store that have an older key. `seen` gets how many are done, and of how many."""
    todo = _outdated(store, keyring)
    at, done, stays = 0, 0, []
    for session, group in groupby(todo, key=itemgetter(1)):  # one lease for those that follow each other
        with ExitStack() as owning:
            paths = [path for path, _ in group]
            lease, why = _owned(store, session, owning)
            for path in paths:
                seen(at, len(todo))
                at += 1
                error = _resealed(store, keyring, path, lease) if lease is not None else why
                done += not error
                stays += [(path, error)] if error else []
    seen(at, len(todo))
    return Resealed(done, tuple(stays))


def put_sealed(
    store: CheckpointStore,
    keyring: Keyring,
    path: str,
    meta: Document,
    lease: Lease | None,
    changes: Document | None = None,
) -> None:
    """Write a meta, as it is stored, with a seal of the newest key, and encrypted for the newest one; the
    parts stay as they are. `changes`: fields that have another value from now on."""
    metas = Metas(store, keyring)
    document, encoding = metas.revealed(path, meta)
    document |= changes or {}
    if encoding is not None:
        document = encoding.under(metas.keyring).concealed(document)
    sealed = sealed_bytes(document, keyring, path)
    store.put(path, [(META, lambda sink: sink.write(sealed))], lease=lease, stage=str(meta["stage"]))


def _outdated(store: CheckpointStore, keyring: Keyring) -> list[tuple[str, str]]:
    """Return paths and sessions, the oldest first: what is put last is listed first."""
    found, encrypting = [], ("", keyring.around(store).encrypting[0])
    for path, raw in store.newest(_ALL):
        meta = document_of(raw)
        sealed = meta is None or meta.get("key_id") == keyring.signing[0]
        if meta is not None and not (sealed and key_in(meta) in encrypting):
            found.append((path, str(meta.get("session_id"))))
    return found[::-1]


def _owned(store: CheckpointStore, session: str, owning: ExitStack) -> tuple[Lease | None, str]:
    """Own the session until the stack is left; or return why not."""
    try:
        lease = store.acquire(check_session_id(session))
    except SessionBusy:
        return None, f"session {session} is being run"
    except (GraflowError, OSError) as error:
        return None, str(error)
    owning.callback(lease.release)
    return lease, ""


def _resealed(store: CheckpointStore, keyring: Keyring, path: str, lease: Lease) -> str:
    """Reseal a checkpoint; return why it was not, or ""."""
    try:
        meta = parse(path, store.meta(path), f".{META}")
        if meta.get("session_id") != lease.session:
            return f"Checkpoint {path} was written anew meanwhile."
        verify(meta, keyring)
        put_sealed(store, keyring, path, meta, lease)
        check_parts(store, path, str(meta["stage"]))
    except (GraflowError, OSError) as error:
        return str(error)
    return ""


def check_parts(store: CheckpointStore, path: str, stage: str) -> None:
    """Delete what has come back without parts: it was deleted between the look and the write."""
    try:
        store.open(path, "state.json", stage).close()
    except CheckpointCorrupt:
        store.delete(path)
        raise
