"""The witness: which cut of a session this machine has seen last, where the store's writers cannot write.

A seal proves who made a checkpoint, not that there was none after it: whoever can write into a store
can put an older one back, with its own good seal. Nothing in the store could tell, since all of it can
be put back. So the newest cut of each session is also written down beside the user's local key.

    seen    SLOTS records of 64 bytes, little endian:
            place:16  epoch:u64  sequence:u64  zeros:24  digest:8

A session has the slot that its place (store and id) hashes to; another one there takes it over. The
file has a bound, is never synced, and a record that was torn or forgotten proves nothing: the witness
may miss something, and never makes something up. A home that cannot be written has none.

Not here: machines that have never seen the session, a store that is emptied altogether, and journal
records after a cut.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Mapping
from typing import Final

from blake3 import blake3

from graflow_ckpt.checkpoint.keys import local_key_path
from graflow_ckpt.core.errors import RolledBack
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.names import base_of, session_of

log = logging.getLogger("graflow_ckpt.checkpoint")

SLOTS: Final = 1 << 14
_RECORD: Final = struct.Struct("<16sQQ24x8s")
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC

At = tuple[int, int]
"""Epoch and sequence: of two cuts of a session the higher one is the newer."""


def saw(store: CheckpointStore, session: str, path: str, at: At) -> None:
    """From here on the session goes on from this cut. A path that was given by hand may be written over."""
    if _lasts(store) and session_of(base_of(os.path.basename(path))) == session:
        _write(_place(store, session), at)


def went_back(store: CheckpointStore, session: str, at: At) -> None:
    """Somebody has gone back to that cut on purpose."""
    if _lasts(store):
        _write(_place(store, session), at)


def deleted(store: CheckpointStore, session: str, at: At) -> None:
    """Somebody has deleted cuts on purpose, this one the newest of them."""
    if _lasts(store) and (seen := _read(place := _place(store, session))) is not None and at >= seen:
        _write(place, None)


def check(store: CheckpointStore, session: str, path: str, at: At, *, passed: bool) -> None:
    """RolledBack if the session went on from a later cut than this, which is the newest that is there.

    `passed`: later ones are there, and damaged. That, and a server that may lose what it has accepted, is
    reason enough to go back; then it is only said.
    """
    seen = _read(_place(store, session)) if _lasts(store) else None
    if seen is None or at >= seen:
        return
    if store.shared and any(
        line.epoch > seen[0] and line.sequence < seen[1] for line in store.lines(session)
    ):
        return  # on purpose, on another machine
    message = (
        f"Session {session} had come to cut {seen[1]} (epoch {seen[0]}) in {store.url}, as this machine has "
        f"seen, and the newest that is there now is cut {at[1]} (epoch {at[0]}): {path}."
    )
    if passed or not store.synced:
        log.warning("%s It goes on from there.", message, extra={"session": session})
        return
    raise RolledBack(
        message,
        hint="Somebody has deleted or replaced the later ones, or a backup was put back. If that is meant: "
        f"graflow-ckpt resume {path} --rewind goes on from it.",
        session=session,
        path=path,
        seen=seen,
        found=at,
    )


def _lasts(store: CheckpointStore) -> bool:
    """Whether what is there can be there in the next process, too."""
    return store.synced or store.shared


def _place(store: CheckpointStore, session: str) -> bytes:
    return blake3(f"{store.url}\0{session}".encode(errors="surrogateescape")).digest(16)


# --- the file --------------------------------------------------------------------------


def _file(env: Mapping[str, str] = os.environ) -> str:
    return str(local_key_path(env).with_name("seen"))


def _offset(place: bytes) -> int:
    return int.from_bytes(place[:4], "little") % SLOTS * _RECORD.size


def _read(place: bytes) -> At | None:
    try:
        fd = os.open(_file(), _FLAGS)
        try:
            raw = os.pread(fd, _RECORD.size, _offset(place))
        finally:
            os.close(fd)
    except OSError:
        return None
    if len(raw) != _RECORD.size:
        return None
    whose, epoch, sequence, digest = _RECORD.unpack(raw)
    return (epoch, sequence) if whose == place and digest == _digest(whose, epoch, sequence) else None


def _write(place: bytes, at: At | None) -> None:
    """Nobody waits for it, and nothing fails for it."""
    record = bytes(_RECORD.size)
    if at is not None:
        record = _RECORD.pack(place, *at, _digest(place, *at))
    try:
        fd = _opened()
        try:
            os.pwrite(fd, record, _offset(place))
        finally:
            os.close(fd)
    except OSError as error:
        log.debug("what was seen of a session is not written down: %s", error)


def _opened() -> int:
    file = _file()
    try:
        return os.open(file, _FLAGS)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(file), 0o700, exist_ok=True)
        return os.open(file, _FLAGS | os.O_CREAT, 0o600)


def _digest(place: bytes, epoch: int, sequence: int) -> bytes:
    return blake3(b"%b/%d/%d" % (place, epoch, sequence)).digest(8)
