"""Seals: which key sealed a checkpoint, a record or a cell, and that no byte of it has changed since.

Of a checkpoint only meta is sealed; it holds the digests of the other parts and the place (session, sequence,
epoch, schema). The seal is a keyed blake3 digest over the canonical JSON of all of meta but the
seal itself. Journal records are chained: each seal covers the one before it, so that no record
can be changed, moved, or left out in the middle. Seals of meta, of journals and of anything else
cannot stand in for each other: each purpose has a key of its own, derived from the same secret.

Sealed cells: values on a server that others can write to.

    plain   the codec bytes as they are: decoding them runs no code, and takes no more than the budget
    live    0xC1  length of the key's id  the id  mac:16  pickle      (0xC1 begins no msgpack)

The mac is keyed and covers the session, the place in it, and the pickle: a pickle is opened only if a holder
of a key of the ring has made it for that place. Without a key nothing live is stored or opened.

    place     =NAME a value or an item of a list    *ID a bundle    result  of any task    data TASK  rng
              task NAME  program, proof: what fleet/programs.py keeps

Not here: where keys come from (around/keys.py), what the parts are digested with (digest.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from graflow_ckpt.checkpoint.model import Document, document_of
from graflow_ckpt.checkpoint.values.codec import CERTAIN, check_budget
from graflow_ckpt.checkpoint.values.pickles import live_bytes, load_live
from graflow_ckpt.core import errors
from graflow_ckpt.core.facts import RESULT, Cell, Live
from graflow_ckpt.stores.around.keys import Keyring, local_key_path, uses_local_key
from graflow_ckpt.stores.files.disk import TABLE, file_system, kind_at, mounted

__all__ = ["MAC_SIZE", "Chain", "Keyring", "canonical", "seal", "verify"]

MAC_SIZE: Final = 16

_META: Final = "graflow_ckpt 2025 seal of meta"
_JOURNAL: Final = "graflow_ckpt 2025 seal of journal records"

_PASSING: Final = frozenset({"tmpfs", "ramfs", "overlay", "aufs", "rootfs", "squashfs"})
"""File systems that end with a container or a boot."""

# Any: whatever JSON can hold.
Meta = Mapping[str, Any]


def canonical(meta: Meta) -> bytes:
    """Write a meta without its seal in the one way: sorted keys, no spaces, ASCII."""
    unsealed = {key: value for key, value in meta.items() if key != "seal"}
    # ASCII, so that the lone surrogates of a file name that is no UTF-8 survive.
    return json.dumps(unsealed, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def seal(meta: Meta, keyring: Keyring) -> dict[str, Any]:
    """Return the meta as JSON decodes it, with "key_id" and "seal"."""
    key_id, secret = keyring.signing
    # Through JSON once: a tuple or an integer key would otherwise be sealed as what no reader ever sees.
    sealed: dict[str, Any] = json.loads(canonical({**meta, "key_id": key_id}))
    sealed["seal"] = _seal_of(sealed, secret)
    return sealed


def verify(meta: Meta, keyring: Keyring) -> None:
    """Check that the meta was sealed with a key of the ring and is unchanged; raise if not."""
    key_id, found = meta.get("key_id"), meta.get("seal")
    if not isinstance(key_id, str) or not isinstance(found, str) or not found.isascii():
        raise errors.UnsafeCheckpoint(
            "This checkpoint has no seal: any program could have written it, so it is not opened.",
            hint="If you know where it comes from: graflow-ckpt trust PATH shows it and seals it.",
        )
    secret = keyring.secret(key_id)
    if secret is None:
        host = meta.get("host")
        made = f" on {host}" if isinstance(host, str) and host else ""
        raise errors.UnknownKey(
            f"This checkpoint was sealed with key {key_id}{made}, which is not among the keys here.",
            hint="Either carry that key over (GRAFLOW_CKPT_KEY or GRAFLOW_CKPT_KEY_FILE),"
            " or look at it and seal it with yours: graflow-ckpt trust PATH",
            key_id=key_id,
            host=host,
        )
    try:
        expected = _seal_of(meta, secret)
    except (ValueError, TypeError) as error:
        raise errors.CheckpointCorrupt(
            f"The meta of this checkpoint is not what was written: {error}."
        ) from error
    if not compare_digest(found, expected):
        raise errors.UnsafeCheckpoint(
            f"The seal of this checkpoint does not fit: its meta was changed after key {key_id} sealed it.",
            hint=errors.NOT_OPENED,
            key_id=key_id,
        )


META_LIMIT = 32 << 20
"""Bytes of a meta at most: readers take no more than twice as many, and a tenant's is longer."""


def sealed_bytes(meta: Meta, keyring: Keyring, path: str) -> bytes:
    """Return a meta as it is stored, sealed. Refuse one that no reader would take."""
    found = json.dumps(seal(meta, keyring), separators=(",", ":")).encode()
    if len(found) > META_LIMIT:
        raise errors.CheckpointError(
            f"Checkpoint {path} was not written: its metadata have {len(found)} bytes, and the limit is "
            f"{META_LIMIT}.",
            hint="Keep large values in the session (set, or a task's result), and only short ones here.",
            path=path,
            size=len(found),
        )
    return found


def sealed_in(raw: bytes, keyring: Keyring, session: str | None = None) -> Document | None:
    """Return the meta of these bytes; None if they are damaged, no seal of it holds, or it is of another
    session."""
    meta = document_of(raw)
    with suppress(errors.CheckpointError):
        if meta is not None and session in (None, meta.get("session_id")):
            verify(meta, keyring)
            return meta
    return None


class Chain:
    """The seals of one run of journal records. `start` says which: session, epoch, place."""

    __slots__ = ("_key", "last")

    def __init__(self, key: bytes, start: bytes) -> None:
        self._key = _derived(key, _JOURNAL)
        self.last = blake3(b"start" + start, key=self._key).digest(MAC_SIZE)

    def next(self, payload: bytes) -> bytes:
        """Return the seal of the next record."""
        self.last = self._after(payload)
        return self.last

    def check(self, payload: bytes, mac: bytes) -> bool:
        """Return whether this is the next record. Only then the chain continues."""
        expected = self._after(payload)
        if not compare_digest(expected, mac):
            return False
        self.last = expected
        return True

    def follows(self, before: bytes, payload: bytes, mac: bytes) -> bool:
        """Return True if a record comes right after the one with the seal `before`."""
        return compare_digest(blake3(before + payload, key=self._key).digest(MAC_SIZE), mac)

    def _after(self, payload: bytes) -> bytes:
        return blake3(self.last + payload, key=self._key).digest(MAC_SIZE)


def _seal_of(meta: Meta, secret: bytes) -> str:
    return blake3(canonical(meta), key=_derived(secret, _META)).hexdigest()


def _derived(secret: bytes, purpose: str) -> bytes:
    return blake3(secret, derive_key_context=purpose).digest()


# --- cells -----------------------------------------------------------------------------

LIVE: Final = b"\xc1"
RESULT_PLACE: Final = "result"
LIMIT: Final = 64 << 20
"""What one value may take: every command that carries it holds the server up."""

_OF_CLASSES: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)

_CELLS: Final = "graflow_ckpt 2026 seal of values in their place in a shared store"


def sealed_by(data: bytes) -> str:
    """Return the id of the key that bytes claim to be sealed with; the beginning is enough."""
    return data[2 : 2 + data[1]].decode(errors="replace") if data[:1] == LIVE and len(data) > 2 else ""


class SealedCells:
    """Cells of one session as bytes, and back."""

    def __init__(self, session: str, keyring: Keyring | None, limit: int = LIMIT) -> None:
        self._session = session.encode()
        self._keyring = keyring
        self._limit = limit
        self._keys: dict[str, bytes] = {}

    def pack(self, name: str, cell: Cell, place: str = "") -> bytes:
        """Return the bytes of a cell; TooLarge if they are too many. No place: the value of that name."""
        if isinstance(cell, bytes):
            data = cell
        else:
            data = self.seal(live_bytes(cell.value, name), place or _place_of(name))
        if len(data) > self._limit:
            raise errors.TooLarge(
                f"{name} takes {_size(len(data))}; a value of this session may take {_size(self._limit)}.",
                hint="Keep it in a file or an object store and pass its address on, or submit with a larger "
                "value_limit (bytes).",
                path=name,
                size=len(data),
                limit=self._limit,
            )
        if isinstance(cell, bytes):
            check_budget(name, cell)
        return data

    def unpack(self, name: str, data: bytes, place: str = "") -> Cell:
        """Return the cell of bytes; a pickle is opened only if its seal holds."""
        if data[:1] != LIVE:
            if len(data) > CERTAIN:
                check_budget(f"{name} of session {self._session.decode()}", data)
            return data
        pickle = self.open(name, data, place or _place_of(name))
        try:
            return Live(load_live(pickle))
        except _OF_CLASSES as error:
            if isinstance(error, errors.GraflowError):
                raise
            raise errors.CheckpointError(
                f"{name} of session {self._session.decode()} cannot be restored: {error!r}.",
                hint="Its class has raised that when the value was put together again.",
                path=name,
            ) from error

    def seal(self, pickle: bytes, place: str) -> bytes:
        """Return a pickle with the proof of its maker."""
        if self._keyring is None:
            session = self._session.decode()
            raise errors.UnsafeCheckpoint(
                f"Session {session} is to keep a pickle in Redis, and no key is set to seal it with.",
                hint="Make one (graflow-ckpt key new) and set GRAFLOW_CKPT_KEY everywhere, or _KEY_FILE.",
                session=session,
            )
        key_id, secret = self._keyring.signing
        name = key_id.encode()
        return b"%b%c%b%b%b" % (LIVE, len(name), name, self._mac(key_id, secret, place, pickle), pickle)

    def open(self, name: str, data: bytes, place: str) -> bytes:
        """Return the pickle behind a seal that holds."""
        if data[:1] != LIVE:
            raise errors.UnsafeCheckpoint(
                f"{name} of session {self._session.decode()} is not opened: it has no seal.",
                hint="A program without the key has written it.",
                session=self._session.decode(),
            )
        end = 2 + data[1] if len(data) > 2 else 2
        key_id, mac, pickle = (
            data[2:end].decode(errors="replace"),
            data[end : end + MAC_SIZE],
            data[end + MAC_SIZE :],
        )
        secret = self._keyring.secret(key_id) if self._keyring is not None else None
        if secret is None:
            raise errors.UnknownKey(
                f"{name} of session {self._session.decode()} is sealed with key {key_id}, which is not here.",
                hint="Carry that key over: GRAFLOW_CKPT_KEY or GRAFLOW_CKPT_KEY_FILE.",
                key_id=key_id,
                session=self._session.decode(),
            )
        if not compare_digest(self._mac(key_id, secret, place, pickle), mac):
            raise errors.UnsafeCheckpoint(
                f"{name} of session {self._session.decode()} is not opened: its seal does not hold.",
                hint="A program without the key has written it, it was moved from elsewhere, or a version of "
                "graflow-ckpt has made it that sealed no places.",
                session=self._session.decode(),
            )
        return pickle

    def _mac(self, key_id: str, secret: bytes, place: str, pickle: bytes) -> bytes:
        key = self._keys.get(key_id)
        if key is None:
            key = self._keys[key_id] = _derived(secret, _CELLS)
        where = place.encode(errors="surrogatepass")
        head = b"%c%b%b%b" % (len(self._session), self._session, len(where).to_bytes(4, "big"), where)
        return blake3(head + pickle, key=key).digest(MAC_SIZE)


def _place_of(name: str) -> str:
    # the packer of a result knows the key of its spec, not yet its name
    return RESULT_PLACE if name.endswith(RESULT) else f"={name}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count} bytes"


# --- where keys live --------------------------------------------------------------------


def key_storage_warning(
    target: str | os.PathLike[str], env: Mapping[str, str] = os.environ, table: Path = TABLE
) -> str | None:
    """Return what to tell the user if the local key will be gone before the checkpoints at `target`.

    In a container the home is often an overlay or in memory while the checkpoints go to a volume. Answers
    only where /proc/mounts is; elsewhere nothing is known and nothing is said.
    """
    if not uses_local_key(env):
        return None
    try:
        mounts = mounted(table.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return None
    key = local_key_path(env)
    key_on, target_on = kind_at(key, mounts), kind_at(Path(target), mounts)
    if key_on not in _PASSING or target_on is None or target_on in _PASSING:
        return None
    return (
        f"The key that seals checkpoints is in {key.parent} on {key_on}, which ends with this container or"
        f" boot; the checkpoints in {target} are on {target_on} and stay, but could not be verified then."
        " Set GRAFLOW_CKPT_KEY or GRAFLOW_CKPT_KEY_FILE to a key that stays (graflow-ckpt key new)."
    )


def passing_warning(
    target: str | os.PathLike[str], env: Mapping[str, str] = os.environ, table: Path = TABLE
) -> str | None:
    """Return what to say where there is no home, as in a container, and `target` ends with it."""
    kind = None if env.get("HOME") else file_system(target, table)
    if kind not in _PASSING:
        return None
    return (
        f"The checkpoints in {target} are on {kind}, which ends with this container or boot."
        " Name a folder of a volume: --store or GRAFLOW_CKPT_STORE."
    )
