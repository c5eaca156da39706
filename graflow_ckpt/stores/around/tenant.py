"""A tenant: one of several that share a store. Each finds its own; those of others do not exist for it.

    Tenant(store, "acme")              tenant.acme+postgresql://host/database

    what the tenant says                        what the store below has
    session s                                   session acme-s: its lease, lines and journal
    session_s_step_4_1700000000-9.pkl           session_acme-s_step_4_1700000000-9.pkl
    best                                        acme-best

Promise: whatever a tenant names, what it reaches begins with its own word and a hyphen. Words have no
hyphens, so no two tenants meet, whatever they call their sessions. Metas are in an envelope that names the
tenant, and the session as the store below has it; so retention or a listing of the whole store keeps
sessions of two tenants apart that have the same name.
Not here: which tenant a program may name. A program that opens the store below without this wrapper sees all
of it, so the address belongs to the operators of the service; and keys: to keep tenants from reading a
stolen disk, encrypt (`tenant.acme+encrypted+…`).
"""

from __future__ import annotations

import glob
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from typing import Unpack

from graflow_ckpt.core import errors
from graflow_ckpt.core.facts import check_session_id
from graflow_ckpt.core.protocols import CheckpointStore, Drops, Journal, Lease, Owner, Parts, PartWriter, Sink
from graflow_ckpt.stores.around.wrapper import Wrapper
from graflow_ckpt.stores.names import META, Collected, base_of, facts_in, session_of
from graflow_ckpt.stores.prefixes import unwrapped
from graflow_ckpt.stores.store import Filters

_WORD = re.compile(r"[a-z0-9]{1,20}\Z")
_FIELDS = (
    "schema_version", "session_id", "workflow", "status", "cause", "epoch", "sequence", "created_at", "stage",
)  # fmt: skip
_OWN = "session_"
_LONGEST = 64
_MOST = 2**62  # a caller that wants all of them asks for so many; databases count no further


class TenantLease:
    """A lease of the store below, of the session as the tenant calls it."""

    __slots__ = ("epoch", "inner", "session", "taken_from", "tenant")

    def __init__(self, tenant: str, session: str, inner: Lease) -> None:
        self.tenant, self.session, self.inner = tenant, session, inner
        self.epoch, self.taken_from = inner.epoch, inner.taken_from

    def check(self) -> None:
        self.inner.check()

    def release(self) -> None:
        self.inner.release()


class Tenant(Wrapper):
    """The part of a store that belongs to one tenant."""

    word, argued = "tenant", True

    def __init__(self, inner: CheckpointStore, name: str) -> None:
        if not _WORD.match(name):
            raise errors.CheckpointError(
                f"{name!r} cannot be the name of a tenant.",
                hint="It is 1 to 20 small letters and digits, as in tenant.acme+postgresql://host/database.",
                tenant=name,
            )
        super().__init__(inner, name)
        self.name = name
        self._mark = f"{name}-"

    # --- ownership ---------------------------------------------------------------------

    def acquire(self, session: str, *, take_over: bool = False) -> TenantLease:
        mine = self._session(session)
        try:
            return TenantLease(self.name, session, self.inner.acquire(mine, take_over=take_over))
        except errors.SessionBusy as busy:
            said = busy.message.replace(mine, session), busy.hint.replace(mine, session)
            raise errors.SessionBusy(said[0], hint=said[1], **{**busy.ids, "session": session}) from None

    def owner(self, session: str) -> Owner | None:
        return self.inner.owner(self._session(session))

    # --- checkpoints -------------------------------------------------------------------

    def put(self, path: str, parts: Parts, *, lease: Lease | None, stage: str, drops: Drops = tuple) -> None:
        kept = [
            (part, self._in_envelope(writer, stage) if part == META else writer) for part, writer in parts
        ]
        mine = None if lease is None else self._own(lease)
        along = partial(self._drops, drops)
        self.inner.put(self._inner(path), kept, lease=mine, stage=stage, drops=along)

    def meta(self, path: str) -> bytes:
        path = self._inner(path)
        return self._opened(path, self.inner.meta(path))

    def list(self, session: str | None = None, pattern: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Yield this tenant's. What cannot be opened is listed as what cannot be read: with no bytes."""
        wanted = None if pattern is None else base_of(pattern.rpartition("/")[2])
        if session is not None:
            found = self.inner.list(self._session(session))
        else:
            folder = _globbed(self._stem) if pattern is None else super()._inner(pattern).rpartition("/")[0]
            names = (f"{_OWN}{self._mark}*", f"{self._mark}*")  # what may be this tenant's
            below = [f"{folder}/{name}" if folder else name for name in names]
            found = chain.from_iterable(self.inner.list(None, each) for each in below)
        for path, raw in found:
            name = self._outer_name(path.rpartition("/")[2])
            if name is None or (wanted is not None and not fnmatchcase(base_of(name), wanted)):
                continue
            yield self._outer(path), self._listed(path, raw)

    def newest(self, limit: int, **wanted: Unpack[Filters]) -> Sequence[tuple[str, bytes]]:
        """Return the newest of this tenant; of all, so many are asked for that this tenant's are enough."""
        if (session := wanted.get("session")) is not None:
            wanted["session"] = self._session(session)
        asked = max(limit, 0)
        while True:
            asked = max(min(asked * 4 + 16, _MOST), limit)
            found = self.inner.newest(asked, **wanted)
            its = [each for each in found if self._outer_name(each[0].rpartition("/")[2]) is not None]
            if len(its) >= limit or len(found) < asked:
                return [(self._outer(path), self._listed(path, raw)) for path, raw in its[: max(limit, 0)]]

    # --- journal -----------------------------------------------------------------------

    def journal(self, lease: Lease, after: int) -> Journal:
        return self.inner.journal(self._own(lease), after)

    def segments(self, session: str) -> Iterator[tuple[int, int, bytes]]:
        return self.inner.segments(self._session(session))

    def drop_segments(self, session: str, before: int) -> None:
        self.inner.drop_segments(self._session(session), before)

    # --- names -------------------------------------------------------------------------

    def takes(self, path: str) -> str | None:
        folder, slash, name = path.rpartition("/")
        try:
            return super().takes(f"{folder}{slash}{self._inner_name(name)}")
        except errors.BadSessionId:
            return None  # no session of this tenant has so long a name

    def _session(self, session: str) -> str:
        """Return the session's name in the store below."""
        longest = _LONGEST - len(self._mark)
        if len(check_session_id(session)) > longest:
            raise errors.BadSessionId(
                f"The session id {session!r} is too long for tenant {self.name}.",
                hint=f"Here it may have {longest} characters: the name of the tenant stands before it.",
                session=session,
            )
        return self._mark + session

    def _inner_name(self, name: str) -> str:
        own = session_of(base_of(name))
        if own is not None:
            return _OWN + self._session(own) + name[len(_OWN) + len(own) :]
        return self._mark + name if base_of(name) else name  # no name is none for the store below, either

    def _outer_name(self, name: str) -> str | None:
        """Return the tenant's name of what the store below calls `name`; None: it is not this tenant's."""
        own = session_of(base_of(name))
        before, rest = (_OWN, name[len(_OWN) :]) if own is not None else ("", name)
        return before + rest[len(self._mark) :] if rest.startswith(self._mark) else None

    def _inner(self, path: str) -> str:
        folder, slash, name = super()._inner(path).rpartition("/")
        return f"{folder}{slash}{self._inner_name(name)}"

    def _outer(self, path: str) -> str:
        folder, slash, name = super()._outer(path).rpartition("/")
        return f"{folder}{slash}{self._outer_name(name) or name}"

    # --- within ------------------------------------------------------------------------

    def _own(self, lease: Lease) -> Lease:
        if not isinstance(lease, TenantLease) or lease.tenant != self.name:
            raise TypeError(f"a lease of this tenant is needed, not {type(lease).__name__}")
        return lease.inner

    def _in_envelope(self, writer: PartWriter, stage: str) -> PartWriter:
        def write(sink: Sink) -> None:
            collected = Collected()
            writer(collected)
            raw = bytes(collected.data)
            body = {"stage": stage, "name": self.name, "meta": b64encode(raw).decode("ascii")}
            document = {**_fields(raw, self._mark), self.word: body}
            sink.write(json.dumps(document, separators=(",", ":")).encode())

        return write

    def _listed(self, path: str, raw: bytes) -> bytes:
        try:
            return self._opened(path, raw)
        except errors.CheckpointError:
            return b""

    def _opened(self, path: str, raw: bytes) -> bytes:
        fields = facts_in(raw)
        body = fields.pop(self.word, None)
        if not isinstance(body, dict) or body.get("name") != self.name:
            raise errors.UnsafeCheckpoint(
                f"Checkpoint {path} was not written by tenant {self.name}.",
                hint="It is not opened. Copy checkpoints to a tenant by its own address.",
                path=path,
            )
        try:
            meta = b64decode(body["meta"], validate=True)
        except (KeyError, TypeError, ValueError):
            meta = None
        if meta is None or _fields(meta, self._mark) != fields:
            raise errors.CheckpointCorrupt(
                f"The metadata of checkpoint {path} were changed.",
                hint="Use another checkpoint of the session.",
                path=path,
            )
        return meta


def _globbed(folder: str) -> str:
    """Return a folder as a pattern has it. That of files is one for the whole path."""
    prefix, files, path = folder.partition("file://")
    return prefix + files + glob.escape(path) if unwrapped(folder).startswith("file://") else folder


def _fields(raw: bytes, mark: str) -> dict[str, str | int]:
    """Return what stores look at, as far as it is text or a whole number."""
    found = facts_in(raw)
    fields = {name: found[name] for name in _FIELDS if type(found.get(name)) in (str, int)}
    if isinstance(fields.get("session_id"), str):
        fields["session_id"] = mark + fields["session_id"]
    return fields
