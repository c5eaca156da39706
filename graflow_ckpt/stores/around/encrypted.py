"""An encrypted store: whoever can read the place reads neither values nor metadata.

    Encrypted(store, keyring)          keyring: None, and the keys of the environment are taken
    encrypted+postgresql://host/db     the same, by an address
    EncryptedCheckpointStore(db_path, encryption_key)     the same, in SQLite, with a Fernet key

Promise: values, control facts, metadata and journal frames are encrypted with AES-256-GCM and bound to
their place (encryption.py, encryption.py). What is not encrypted, or with a part of another trio, or
cut off, or with fields that were changed outside, is refused with an error that names it. Several keys: the
first one encrypts, all open. A meta that is put alone keeps the key of its trio, so that changing to a new
key rewrites metas and no values.
In clear, since stores look for it: names, session ids, owners, and of the metadata what envelope.py copies
(status, workflow, times, numbers); sizes can be told, too. Not here: whether an older trio was put
back (history.py looks at epochs and sequences), and keys that were lost.

The keys that seal are enough: what encrypts is derived from the same secrets for that purpose alone, and
neither key says anything about the other. A Fernet key (`GRAFLOW_CKPT_FERNET_KEY`, or an argument; several,
divided by commas or white space) comes before the others, as a secret of 32 bytes; tokens of Fernet are not
written.
"""

from __future__ import annotations

import os
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final

from blake3 import blake3

from graflow_ckpt.core.errors import (
    NOT_OPENED,
    CheckpointCorrupt,
    CheckpointError,
    NoKey,
    SchemaUnsupported,
    UnknownKey,
    UnsafeCheckpoint,
)
from graflow_ckpt.core.protocols import CheckpointStore, Journal, Lease, PartWriter, Sink, Source
from graflow_ckpt.stores.around import encryption, envelope
from graflow_ckpt.stores.around.encryption import (
    EncryptedSegment,
    EncryptingSink,
    InvalidTag,
    OpeningSource,
    derived,
    read_segment,
)
from graflow_ckpt.stores.around.keys import SIZE, Keyring
from graflow_ckpt.stores.around.wrapper import Wrapper
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.names import document_in

_KEY = 32
_VERSION = 1


class Encrypted(envelope.Enveloping[bytes]):
    """What is noted of a trio is its key. `fernet`: keys of that kind, before those of the ring."""

    word = "encrypted"

    def __init__(
        self, inner: CheckpointStore, keyring: Keyring | None = None, *, fernet: str | bytes = ""
    ) -> None:
        super().__init__(inner)
        text = fernet.decode("ascii", "replace") if isinstance(fernet, bytes) else fernet
        if text:
            self._given: Keyring | None = with_fernet(text, keyring)
        else:
            self._given = keyring

    @cached_property
    def keyring(self) -> Keyring:
        """Looked for when the first thing is encrypted or opened: to name a store takes no key."""
        return self._given or of_environment(self.inner)

    def _prepare(self) -> None:
        _ = self.keyring  # or all would count as unreadable, and it is the key that is missing

    def acquire(self, session: str, *, take_over: bool = False) -> Lease:
        self._prepare()  # before the first task, and not with every save
        return super().acquire(session, take_over=take_over)

    # --- metas -------------------------------------------------------------------------

    def _new_note(self) -> bytes:
        return os.urandom(_KEY)

    def _close_meta(self, raw: bytes, stage: str, note: bytes) -> bytes:
        key_id, secret = self.keyring.signing
        body = {"version": _VERSION, "stage": stage, "key_id": key_id}
        document = {**envelope.copied(raw), self.word: body}
        box = encryption.seal_box(_meta_key(secret), note + raw, envelope.written(document))
        return envelope.written({**document, self.word: {**body, "meta": envelope.packed(box)}})

    def _open_meta(self, path: str, raw: bytes) -> tuple[bytes, str, bytes]:
        found = envelope.opened(self.word, raw)
        if found is None:
            raise _stripped(path, raw)
        fields, body = found
        if body.get("version") != _VERSION:
            raise SchemaUnsupported(
                f"Checkpoint {path} is encrypted in a way that this version does not know.",
                hint="Use the version of graflow_ckpt that wrote it, or a newer one.",
                path=path,
            )
        key_id = body.get("key_id")
        secret = self.keyring.secret(key_id) if isinstance(key_id, str) else None
        if secret is None:
            raise UnknownKey(
                f"Checkpoint {path} is encrypted with key {key_id}, which is not among the keys here.",
                hint=f"Carry that key over (GRAFLOW_CKPT_KEY, GRAFLOW_CKPT_KEY_FILE or {FERNET_VARIABLE}).",
                key_id=key_id,
                path=path,
            )
        try:
            box = envelope.unpacked(body.pop("meta", None))
            opened = encryption.open_box(
                _meta_key(secret), box, envelope.written({**fields, self.word: body})
            )
        except (InvalidTag, ValueError, RecursionError):
            raise CheckpointCorrupt(
                f"The metadata of checkpoint {path} were changed after they were encrypted.",
                hint=NOT_OPENED,
                path=path,
            ) from None
        return opened[_KEY:], body["stage"], opened[:_KEY]

    # --- parts -------------------------------------------------------------------------

    def _write_part(self, part: str, stage: str, note: bytes, writer: PartWriter, sink: Sink) -> None:
        encrypting = EncryptingSink(sink, note, stage, part)
        writer(encrypting)
        encrypting.finish()

    def _read_part(self, path: str, part: str, stage: str, note: bytes, source: Source) -> Source:
        return OpeningSource(source, note, stage, part, path)

    # --- journal -----------------------------------------------------------------------

    def journal(self, lease: Lease, after: int) -> Journal:
        inner = self.inner.journal(lease, after)
        key_id, secret = self.keyring.signing
        return EncryptedSegment(inner, key_id, secret, (lease.session, lease.epoch, after))

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        for epoch, after, raw in self.inner.segments(session):
            yield epoch, after, read_segment(self.keyring, (session, epoch, after), raw)


class EncryptedCheckpointStore(Encrypted):
    """A database of one file, encrypted with a key of `Fernet.generate_key()`, for those who have one."""

    def __init__(self, db_path: str | os.PathLike[str], encryption_key: str | bytes) -> None:
        if not encryption_key:
            raise NoKey("An encrypted store needs a key.", hint="Fernet.generate_key() makes one; keep it.")
        super().__init__(SqliteStore(db_path), fernet=encryption_key)


def within(store: CheckpointStore) -> Encrypted | None:
    """The encrypted store that this one is or is wrapped around, if any."""
    while isinstance(store, Wrapper) and not isinstance(store, Encrypted):
        store = store.inner
    return store if isinstance(store, Encrypted) else None


def keys_by_path(store: CheckpointStore) -> dict[str, str]:
    """With which key each checkpoint is encrypted; "": with none, or there is nothing that encrypts."""
    if isinstance(store, Encrypted):
        found = ((path, envelope.opened(store.word, raw)) for path, raw in store.inner.list())
        return {store._outer(path): str(each[1].get("key_id")) if each else "" for path, each in found}
    if isinstance(store, Wrapper):
        return {store._outer(path): key_id for path, key_id in keys_by_path(store.inner).items()}
    return {}


def _meta_key(secret: bytes) -> bytes:
    return derived(secret, "graflow_ckpt 2026 encryption of metadata")


def _stripped(path: str, raw: bytes) -> CheckpointCorrupt | UnsafeCheckpoint:
    if document_in(raw) is not None:
        return UnsafeCheckpoint(
            f"Checkpoint {path} {encryption.PLAIN}",
            hint="It is not opened. If you know where it comes from, name the store without encrypted+.",
            path=path,
        )
    return CheckpointCorrupt(
        f"The metadata of checkpoint {path} cannot be read.",
        hint="Use another checkpoint of the session.",
        path=path,
    )


FERNET_VARIABLE: Final = "GRAFLOW_CKPT_FERNET_KEY"


def fernet_keys(text: str, origin: str = FERNET_VARIABLE) -> dict[str, bytes]:
    """Keys as `Fernet.generate_key()` writes them, by ids that are digests of them."""
    keys: dict[str, bytes] = {}
    for number, word in enumerate(re.split(r"[\s,]+", text.strip()), 1):
        try:
            secret = urlsafe_b64decode(word)
        except ValueError:
            secret = b""
        if len(secret) != SIZE:  # the message must not hold the word: it may be a secret
            raise CheckpointError(
                f"Key {number} of {origin} is no Fernet key: {SIZE} bytes in URL-safe base64.",
                hint="Fernet.generate_key() makes one.",
                origin=origin,
            )
        digest = blake3(secret, derive_key_context="graflow_ckpt 2026 fernet id").hexdigest(6)
        keys[f"fernet-{digest}"] = secret
    return keys


def of_environment(store: CheckpointStore, env: Mapping[str, str] = os.environ) -> Keyring:
    """What this environment has for a store: Fernet keys first, then those that seal."""
    text = env.get(FERNET_VARIABLE, "").strip()
    if not text:
        return Keyring.for_store(store, env)
    return with_fernet(text, _sealing(store, env))


def with_fernet(text: str, keyring: Keyring | None) -> Keyring:
    """Fernet keys, and after them the keys of a ring."""
    keys = fernet_keys(text)
    for key_id in keyring.ids if keyring is not None else ():
        secret = keyring.secret(key_id) if keyring is not None else None
        if secret is not None:
            keys.setdefault(key_id, secret)
    return Keyring(keys)


def _sealing(store: CheckpointStore, env: Mapping[str, str]) -> Keyring | None:
    try:
        return Keyring.for_store(store, env)
    except NoKey:
        return None  # whoever seals says so; to encrypt there is enough
