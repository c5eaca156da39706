"""The archive of one session: its trios and its journal in a store, sealed and verified.

Saving streams values, control facts and metadata, in this order, encoding them as the store wants it and
digesting what goes by; the metadata holds the digests and is sealed. Loading goes the other way: nothing is
decoded or parsed that the seal does not cover, and no pickle is opened that has not been verified chunk by
chunk.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from graflow_ckpt import __version__, _restore
from graflow_ckpt._restore import written_by
from graflow_ckpt.checkpoint.model import (
    CheckpointMetadata,
    Document,
    check_needs,
    check_schema,
    named,
    now_iso,
    parse,
    upgrade,
)
from graflow_ckpt.checkpoint.program.program import Program
from graflow_ckpt.checkpoint.retention import PERIOD
from graflow_ckpt.checkpoint.seals import Keyring, sealed_bytes, verify
from graflow_ckpt.checkpoint.snapshot import Snapshot
from graflow_ckpt.checkpoint.values import pickles
from graflow_ckpt.checkpoint.values.contents import Depositor, alone, put_together
from graflow_ckpt.checkpoint.values.digest import Digest, DigestingSink, VerifyingSource, fill
from graflow_ckpt.core import errors
from graflow_ckpt.core.protocols import Buffer, CheckpointStore, Lease, PartWriter, Readable, Sink, Source
from graflow_ckpt.stores.around.encodings import Encoding, Metas, encoding_of

log = logging.getLogger("graflow_ckpt.checkpoint")
_STAGE = re.compile(r"[A-Za-z0-9_-]{0,64}")


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint whose seal holds, its control facts read, its values not."""

    path: str
    meta: Document
    facts: Document
    stage: str
    encoding: Encoding | None = None

    @property
    def metadata(self) -> CheckpointMetadata:
        return CheckpointMetadata.from_document(self.path, self.meta)


class _Payload:
    """Pickles as a call of `_restore.context`."""

    def __init__(self, payload: dict[str, Any]) -> None:
        self.payload = payload

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore.context, (self.payload,)


def auto_path(store: CheckpointStore, session: str, steps: int, sequence: int) -> str:
    """Return the path of a checkpoint for which none was given."""
    return os.path.join(store.folder, f"session_{session}_step_{steps}_{int(time.time())}-{sequence}.pkl")


# --- saving ----------------------------------------------------------------------------


def metadata_of(
    snapshot: Snapshot, program: Program, *, path: str, sequence: int, cause: str, user: dict[str, Any] | None
) -> CheckpointMetadata:
    """Return the metadata of a cut that is about to be written."""
    facts = snapshot.facts
    return CheckpointMetadata(
        checkpoint_id=f"chk_{uuid.uuid4().hex}",
        session_id=facts["session_id"],
        created_at=now_iso(),
        steps=facts["steps"],
        start_node=facts["start_node"],
        backend=dict(facts["backend"]),
        user_metadata=dict(user or {}),
        path=path,
        workflow=program.workflow,
        sequence=sequence,
        epoch=facts["epoch"],
        status=facts["status"],
        cause=cause,
        python=platform.python_version(),
        library=__version__,
        argv=list(program.argv),
        file=program.file,
        cwd=program.cwd,
        program=program.defined or None,
        transition=facts["transition"],
        needs=["rounds"] if any("rounds" in spec for spec in facts["pending_tasks"]) else [],
        graph=program.facts.get("digest", ""),
        inputs=dict(program.inputs or {}),
        options=dict(program.options or {}),
        settings=program.settings,
        run=facts.get("run"),
    )


def save(
    store: CheckpointStore,
    keyring: Keyring,
    lease: Lease | None,
    snapshot: Snapshot,
    program: Program,
    metadata: CheckpointMetadata,
    allowance: Allowance | None = None,
    going: Callable[[bytes], Iterable[str]] = lambda meta: (),
) -> CheckpointMetadata:
    """Write one trio at `metadata.path`; it is there as a whole when this returns. `going`: gets the meta,
    returns what is deleted with the same commit."""
    stage = uuid.uuid4().hex
    meter = (allowance or Allowance()).meter(metadata.session_id, metadata.path, metadata.cause)
    metadata.home = metadata.home or store.url
    metadata.synced = store.synced  # as the preflight found it: a listing asks no store
    shown = metadata.redacted()
    payload = _payload(snapshot, program, metadata, shown)
    facts = json.dumps(snapshot.facts, separators=(",", ":")).removesuffix("}")
    state = f'{facts},"graph":{program.graph}}}'.encode()
    digests: dict[str, Digest] = {}
    drops: list[str] = []
    encoding = encoding_of(store, keyring)
    depositor = Depositor(store, metadata.path, lease, stage, meter.takes, encoding)

    def meta(sink: Sink) -> None:
        document = _document(shown, stage, store.synced, digests) | depositor.listed()
        document = encoding.concealed(document) if encoding is not None else document
        sealed = sealed_bytes(document, keyring, metadata.path)
        drops[:] = going(sealed)
        sink.write(sealed)

    def part(name: str, write: PartWriter) -> tuple[str, PartWriter]:
        def metered(sink: Sink) -> None:
            digests[name] = digested(meter.sink(sink), name, write, encoding)
            meter.check()

        return name, metered

    parts = [
        part("pkl", partial(depositor.write, _Payload(payload))),
        part("state.json", lambda sink: sink.write(state)),
        ("meta.json", meta),
    ]
    try:
        store.put(metadata.path, parts, lease=lease, stage=stage, drops=lambda: drops)
    finally:
        depositor.end()
    meter.done()
    return replace(metadata, synced=store.synced, size=sum(digest.size for digest in digests.values()))


def _document(shown: CheckpointMetadata, stage: str, synced: bool, digests: Mapping[str, Digest]) -> Document:
    """Return the meta but for its contents and its seal."""
    return shown.document() | {
        "stage": stage,
        "host": platform.node(),
        "synced": synced,  # by now it may have turned out that it goes somewhere else
        "parts": {part: digest.document() for part, digest in digests.items()},
    }


def _payload(
    snapshot: Snapshot, program: Program, metadata: CheckpointMetadata, shown: CheckpointMetadata
) -> dict[str, Any]:
    """Return what the pickle holds: the session, its program's code, and what the meta does not show."""
    payload = snapshot.payload() | {
        "session_id": metadata.session_id,
        "workflow": program.workflow,
        "starts": snapshot.facts["starts"],
        "code": program.code,
    }
    if (shown.user_metadata, shown.argv) != (metadata.user_metadata, metadata.argv):
        payload["secret"] = {"user_metadata": metadata.user_metadata, "argv": metadata.argv}
    return payload


def digested(sink: Sink, part: str, write: PartWriter, encoding: Encoding | None) -> Digest:
    """Write a part as it is encoded; return the digest of what was stored."""
    with DigestingSink(sink) as digesting:
        if encoding is None:
            write(digesting)
            return digesting.finish()
        size = encoding.write(digesting, part, write)
        return replace(digesting.finish(), plain=size)


def _digest_of(path: str, meta: Document, part: str) -> Digest:
    try:
        found = meta["parts"][part]
        return Digest(int(found["size"]), tuple(found["chunks"]), found.get("plain"))
    except (KeyError, TypeError, ValueError) as error:
        raise errors.CheckpointCorrupt(
            f"Checkpoint {path} does not say what its {part} is.", path=path
        ) from error


def _stage_in(path: str, meta: Document) -> str:
    """Return the staging id; it becomes part of names and keys, so it has to look like one."""
    stage = meta.get("stage", "")
    if not isinstance(stage, str) or not _STAGE.fullmatch(stage):
        raise errors.CheckpointCorrupt(f"Checkpoint {path} names a staging id that is none.", path=path)
    return stage


# --- loading ---------------------------------------------------------------------------


def find(store: Readable, keyring: Keyring, path: str, raw: bytes | None = None) -> Found:
    """Verify a checkpoint's seal and read its control facts; no pickle is opened."""
    return _settled(store, path, lambda meta: _find(store, keyring, path, meta), raw)


T = TypeVar("T")


def _settled(store: Readable, path: str, read: Callable[[bytes], T], raw: bytes | None = None) -> T:
    """Read something of a checkpoint again if a newer one was written over it meanwhile."""
    for _ in range(5):
        try:
            meta = store.meta(path) if raw is None else raw
        except errors.CheckpointNotFound as error:
            raise expired(store, path) or error from None
        try:
            return read(meta)
        except errors.CheckpointCorrupt as error:
            if store.meta(path) == meta:
                opening = f"Checkpoint {path} is corrupted or uses an incompatible schema version."
                if error.message.startswith(opening):
                    raise
                raise errors.CheckpointCorrupt(opening, hint=str(error), path=path) from error
            raw = None
    raise errors.CheckpointCorrupt(f"Checkpoint {path} changes faster than it can be read.", path=path)


def _find(store: Readable, keyring: Keyring, path: str, raw: bytes) -> Found:
    unsafe = store.unsafe(path)
    if unsafe is not None:
        raise errors.UnsafeCheckpoint(
            f"Checkpoint {path} is not opened: {unsafe}.",
            hint="Take the permission away (chmod o-w), after making sure that no other user has used it.",
            path=path,
        )
    meta = parse(path, raw, ".meta.json")
    check_schema(path, meta.get("schema_version"))
    try:
        verify(meta, keyring)
    except errors.UnsafeCheckpoint as error:
        raise type(error)(
            f"Checkpoint {path}: {error.message}", hint=error.hint, path=path, **error.ids
        ) from None
    check_needs(path, meta)
    found = _said(store, keyring, path, meta)
    facts = parse(path, _read(store, found, "state.json"), ".state.json")
    check_schema(path, facts.get("schema_version"))
    meta, facts = upgrade(found.meta, facts)
    return replace(found, meta=meta, facts=facts)


def _said(store: Readable, keyring: Keyring | None, path: str, meta: Document) -> Found:
    """Return what a meta says, also of what is private in it."""
    meta, encoding = Metas(store, keyring).revealed(path, meta)
    return Found(path, meta, {}, _stage_in(path, meta), encoding)


def _open(store: Readable, found: Found, part: str) -> Source:
    """Open a part, verified and then decoded."""
    digest = _digest_of(found.path, found.meta, part)
    source: Source = store.open(found.path, part, found.stage)
    try:
        source = VerifyingSource(source, digest)
        return (
            source if found.encoding is None else found.encoding.read(source, digest.plain, part, found.path)
        )
    except BaseException:  # of another size: no other code will close it
        source.close()
        raise


def _read(store: Readable, found: Found, part: str) -> bytes:
    with closing(_open(store, found, part)) as source:
        buffer = bytearray(source.size)
        return bytes(memoryview(buffer)[: fill(source, memoryview(buffer))])


def load(store: Readable, keyring: Keyring, path: str) -> tuple[Found, Any]:
    """Verify a checkpoint and open it: control facts, and its ExecutionContext."""

    def read(meta: bytes) -> tuple[Found, Any]:
        found = _find(store, keyring, path, meta)
        payload = open_values(store, found)
        return unredacted(found, payload), _restore.context_of(payload)

    return _settled(store, path, read)


def unredacted(found: Found, payload: Document) -> Found:
    """Return a checkpoint whose values were opened with what its metadata do not show."""
    secret = payload.get("secret")
    return replace(found, meta=found.meta | secret) if isinstance(secret, dict) else found


def check(store: Readable, keyring: Keyring, path: str) -> tuple[Found, int]:
    """Verify all of a checkpoint without opening it; return the size of its values."""

    def read(meta: bytes) -> tuple[Found, int]:
        found = _find(store, keyring, path, meta)
        return found, check_values(store, found)

    return _settled(store, path, read)


def taken(
    store: Readable,
    keyring: Keyring | None,
    path: str,
    take: Callable[[Document, Callable[[str], Source]], T],
    *,
    shares: bool = False,
) -> T:
    """Pass the meta of a checkpoint and its parts to `take`, and again if a newer one was written over it
    meanwhile. The seal has been verified (without a keyring: has not); what is read of a part is verified
    while it is read. Unless `shares` is set, it comes without contents. It is never encoded."""

    def read(raw: bytes) -> T:
        meta = parse(path, raw, ".meta.json")
        if keyring is None:
            check_needs(path, meta)
        else:
            _find(store, keyring, path, raw)
        found = _said(store, keyring, path, meta)
        opened: dict[str, Callable[[], Source]] = {
            "pkl": partial(whole_values, store, found),
            "state.json": partial(_open, store, found, "state.json"),
        }
        if found.encoding is not None:
            return take(alone(found.meta, keyring, opened), lambda part: opened[part]())
        if meta.get("contents") and not shares:
            return take(alone(meta, keyring, {"pkl": opened["pkl"]}), lambda part: opened[part]())
        return take(meta, partial(_open, store, found))

    return _settled(store, path, read)


def described(store: Readable, path: str) -> Document:
    """Return the meta of a checkpoint, whatever key sealed it; its other files are what it says they are."""

    def read(raw: bytes) -> Document:
        meta = parse(path, raw, ".meta.json")
        check_needs(path, meta)
        found = _said(store, None, path, meta)
        _read(store, found, "state.json")
        check_values(store, found)
        return meta

    return _settled(store, path, read)


def whole_values(store: Readable, found: Found) -> Source:
    """Return the pickle of a checkpoint, as a stream of verified bytes, wherever they are stored."""
    inline = _open(store, found, "pkl")
    return put_together(store, found.path, found.meta, found.stage, inline, found.encoding)


def open_values(store: Readable, found: Found, load: Callable[[Source], Any] = pickles.load) -> Any:
    """Open the pickle of a verified checkpoint; return its payload."""
    with closing(whole_values(store, found)) as source, written_by(str(found.meta.get("python", ""))):
        return load(source)


def check_values(store: Readable, found: Found) -> int:
    """Read the pickle against its digest without opening it; return its size."""
    buffer = memoryview(bytearray(8 << 20))
    size = 0
    with closing(whole_values(store, found)) as source:
        while count := source.readinto(buffer[: min(len(buffer), source.size - size)]):
            size += count
    return size


# --- what has expired -------------------------------------------------------------------


def expired(store: Readable, path: str) -> errors.CheckpointExpired | None:
    """Return the error for a path at which nothing is; None: nothing is known of it.

    Known by the path alone, which has the time in it, and only where others of its session are: in another
    folder than meant nothing has expired. Whether it went with its age or by hand is not known any more,
    so the hint says both.
    """
    own = named(path)
    if own is None:
        return None
    ends = int(own["made"]) + PERIOD.period
    if ends > time.time() or next(iter(store.list(own["session"])), None) is None:
        return None
    return errors.CheckpointExpired(
        f"Checkpoint {path} expired at {datetime.fromtimestamp(ends, UTC).isoformat()}. "
        f"Automatic checkpoints expire after {PERIOD.period:.0f} seconds.",
        hint="That is the default; keep= of its workflow or a user by hand may have deleted it earlier. "
        f"What is there: graflow-ckpt checkpoints list {own['session']}.",
        path=path,
        session=own["session"],
    )


# --- what a checkpoint may take ---------------------------------------------------------

MB: Final = 1_000_000
_NEAR: Final = 0.8
_PAUSES: Final = frozenset({"failure", "signal", "pause"})


@dataclass(slots=True)
class Allowance:
    """The size that a checkpoint may have: `max_checkpoint_size_mb`. `limit`: bytes, None for no limit.

    Promise: one that takes more is refused as a whole, with its size, and the former one stays; nothing is
    left out of it, and none is passed over in silence. From 80 % on there is one warning for each session.
    What a session pauses with is kept whatever its size: there would be nothing to resume from.
    """

    limit: int | None = None
    warned: bool = field(default=False, init=False)

    def meter(self, session: str, path: str, cause: str) -> Meter:
        """Return the meter for one checkpoint."""
        return Meter(self, session, path, spared=cause in _PAUSES)


@dataclass(slots=True)
class Meter:
    """Counts what is written of one checkpoint, and writes no more of it than is allowed."""

    allowance: Allowance
    session: str
    path: str
    spared: bool
    size: int = 0

    def takes(self, size: int) -> bool:
        """Count so many bytes; return whether to write them. Past the limit the rest is counted only, so
        that the refusal can say how much it would have been."""
        self.size += size
        return self.spared or not self.over

    def sink(self, sink: Sink) -> Sink:
        return sink if self.allowance.limit is None else _Metered(self, sink)

    @property
    def over(self) -> bool:
        limit = self.allowance.limit
        return limit is not None and self.size > limit

    def check(self) -> None:
        """Raise TooLarge after a part, if it was one too many."""
        if self.over and not self.spared:
            size, limit = self._mb(self.size), self._mb(self.allowance.limit)
            raise errors.TooLarge(
                f"Checkpoint size ({size} MB) exceeds limit ({limit} MB). "
                "Consider reducing context size or increasing limit.",
                hint="It is max_checkpoint_size_mb. What is large can be kept in a file, and its path here.",
                path=self.path,
                session=self.session,
                size=self.size,
                limit=self.allowance.limit,
            )

    def done(self) -> None:
        """Warn, now that it was saved, before the next one is refused."""
        limit = self.allowance.limit
        if limit is not None and self.size >= _NEAR * limit and not self.allowance.warned:
            self.allowance.warned = True
            log.warning(
                "Checkpoint size (%s MB) %s limit (%s MB).%s",
                self._mb(self.size),
                "exceeds" if self.over else "approaches",
                self._mb(limit),
                " It is kept, since the session pauses with it." if self.over else "",
                extra={"session": self.session},
            )

    @staticmethod
    def _mb(size: int | None) -> str:
        return f"{(size or 0) / MB:.4g}"


class _Metered:
    """A sink behind the count."""

    __slots__ = ("_meter", "_sink")

    def __init__(self, meter: Meter, sink: Sink) -> None:
        self._meter, self._sink = meter, sink

    def write(self, data: Buffer, /) -> int:
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if self._meter.takes(size):
            self._sink.write(data)
        return size
