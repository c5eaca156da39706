"""The trio in Redis: chunks that a record points at, and one script that makes it point there.

    graflow:ck:{tag}:metas     hash name -> meta.json          what a reader believes
    graflow:ck:{tag}:records   hash name -> {nonce, parts: {pkl: {nonce, stage, size, count}, …}}, and
                               holds: {nonce, stage} if its meta names contents (redis_contents.py)
    graflow:ck:{tag}:index     zset name -> microseconds of the commit
    graflow:ck:{tag}:staging   hash nonce -> {session, epoch, at}
    graflow:ck:{tag}:chunk:{nonce}:{part}:{n}

    W1 announce the nonce, if there is a chunk to write before the commit   W2 write those chunks, which
    expire   W3 commit: epoch and claim are checked, all chunks are there or come along, and stay, meta and
    record are set, the chunks of the former record go. What is left of W1 and W2 goes in the same round trip
    W4 what the former record held alone goes, if it held contents

Promise: before W3 a reader finds the previous checkpoint, after it this one, whole. A reader whose chunks
go while it reads finds out, and that meta has changed. Each put has a nonce of its own, so that no put
writes into another's chunks, and a commit that is asked for again changes nothing. Chunks have at most
CHUNK bytes, are written in order, and each expires unless a commit makes it stay. The last one is kept for
the commit, so that a small checkpoint is one round trip. A chunk that is gone when it is read is
`CheckpointCorrupt`: a newer checkpoint may have taken its place.
Not here: who may write (redis_lease.py), and what a path names (redis_names.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from graflow_ckpt.core.errors import (
    CheckpointError,
    CheckpointNotFound,
    GraflowError,
    SaveOutcomeUnknown,
    ServerGone,
)
from graflow_ckpt.core.protocols import PartWriter
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.links.wire import Argument, Step
from graflow_ckpt.stores.names import (
    PARTS,
    Collected,
    check_parts,
    contents_in,
    gone,
    lacks,
    not_found,
    not_its,
    path_of,
    replaced,
    unconfirmed,
)
from graflow_ckpt.stores.pieces import ChunkSink, ChunkSource
from graflow_ckpt.stores.redis_lease import RedisLease
from graflow_ckpt.stores.redis_names import NAMED, Keys, Target
from graflow_ckpt.stores.redis_scripts import Scripts, Seen, parts_in

CHUNK = 4 << 20
LIFE = 3600  # seconds; a save that takes longer fails, and what a dead writer has left is gone by then


class RedisSink(ChunkSink):
    """`prefix`: what comes before the number of a chunk. `first` is called before one is written."""

    __slots__ = ("_first", "_link", "_prefix")

    def __init__(self, link: RedisLink, prefix: str, first: Callable[[], None]) -> None:
        super().__init__(CHUNK, self._set)
        self._link, self._prefix, self._first = link, prefix, first

    def key(self, number: int) -> str:
        return f"{self._prefix}{number}"

    def _set(self, number: int, chunk: bytearray) -> None:
        self._first()
        with translated(self._link.address):
            self._link.client.set(self.key(number), bytes(chunk), ex=LIFE)


class RedisSource(ChunkSource):
    """A part, or a content, in Redis."""

    __slots__ = ("_link", "_prefix")

    def __init__(self, link: RedisLink, prefix: str, size: int, path: str, first: bytes = b"") -> None:
        super().__init__(size, -(-size // CHUNK), path, first)
        self._link, self._prefix = link, prefix

    def _read(self, number: int) -> bytes:
        key = f"{self._prefix}{number}"
        with translated(self._link.address):
            found = self._link.client.get(key)
        if not isinstance(found, bytes):
            raise lacks(
                self.path, f"chunk {number} of a part", "the server has dropped keys (maxmemory-policy)"
            )
        return found


# --- trios ---------------------------------------------------------------------------------


SYNCS = ("CONFIG", "GET", "*append*")

_ALONG = 64 << 10  # bytes of a last chunk that go into the script with the commit; larger ones before it
_SMALL = 16 << 10  # bytes of a part that comes along with its meta
_PAGE = 200  # metas that are read at once
_STEP = 1000  # keys of contents that one script takes away
_Sinks = dict[str, RedisSink]


@dataclass(frozen=True, slots=True)
class Put:
    """One write: of what, by whom, and under which names of its own."""

    target: Target
    lease: RedisLease | None
    stage: str
    nonce: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def fence(self) -> str:
        """Where they stand."""
        return self.target.keys.fence(self.lease.session if self.lease else "")

    @property
    def fenced(self) -> list[str | int]:
        """The epoch and the claim that the fence must have; nothing without a lease."""
        return ["", ""] if self.lease is None else self.lease.fenced

    def lost(self) -> NoReturn:
        assert self.lease is not None  # without one there is no fence
        self.lease.check()
        raise self.lease.lost()  # the tag of the other names has forgotten it


class Trios:
    """The checkpoints of one store. `folder`: what their paths start with."""

    def __init__(self, link: RedisLink, scripts: Scripts, folder: str) -> None:
        self._link = link
        self._scripts = scripts
        self._folder = folder
        self._seen = Seen()

    # --- writing -----------------------------------------------------------------------

    def write(self, put: Put, parts: Sequence[tuple[str, PartWriter]]) -> bool:
        """Write a trio; the last of `parts` is its meta. Whether it is on the server's disk."""
        names = [part for part, _ in parts]
        check_parts(names)
        announced: list[bool] = []

        def announce() -> None:
            if not announced:
                self._announce(put)
                announced.append(True)

        sinks = {
            part: RedisSink(self._link, put.target.keys.chunks(put.nonce, part), announce)
            for part in names[:-1]
        }
        try:
            for part, writer in parts[:-1]:
                writer(sinks[part])
            meta = Collected()
            parts[-1][1](meta)
            return self._commit(put, sinks, bytes(meta.data))
        except SaveOutcomeUnknown:
            raise  # it may stand: nothing of it is to be taken away
        except BaseException:
            if announced or any(len(sink.tail) > _ALONG for sink in sinks.values()):
                with suppress(GraflowError):
                    self._withdraw(put, sinks)
            raise

    def sweep(self, keys: Keys, session: str = NAMED, epoch: int = 0) -> int:
        """Clear away what dead writers have left: former owners of the session, and the very slow.

        How many contents went.
        """
        args: list[Argument] = [keys.chunks(), LIFE, session, epoch, *PARTS]
        _, more = self._scripts["sweep"]([keys.staging, keys.contents, keys.over], args)
        return self.free(keys) if more else 0

    def free(self, keys: Keys, save: str = "") -> int:
        """Take away what only those held who are over, and `save` with them: how many contents."""
        count, more = 0, 1
        while more:
            names = [keys.contents, keys.over, keys.staging]
            went, more = self._scripts.sure("free", names, [_STEP, save])
            count += went
        return count

    def name(self, put: Put) -> None:
        """Write down that the session has keys."""
        names = Keys(NAMED)
        with translated(self._folder):
            self._client.sadd(names.sessions, put.target.keys.tag)

    def _announce(self, put: Put) -> None:
        """W1."""
        self.name(put)
        keys, session = put.target.keys, put.lease.session if put.lease else ""
        if not self._scripts["stage"]([put.fence, keys.staging], [*put.fenced, put.nonce, session]):
            put.lost()

    def _commit(self, put: Put, sinks: _Sinks, meta: bytes) -> bool:
        """What is left to do, in one round trip."""
        keys, steps = put.target.keys, list[Step]()
        steps.append((None, (), SYNCS))
        steps.append((None, (), ["SADD", Keys(NAMED).sessions, keys.tag]))
        large = {part: sink for part, sink in sinks.items() if len(sink.tail) > _ALONG}
        for sink in large.values():  # NX: sent again, it would make a chunk expire that is committed
            steps.append((None, (), ["SET", sink.key(sink.staged), bytes(sink.tail), "NX", "EX", LIFE]))
        held = sorted(contents_in(meta))
        args: list[Argument] = [*put.fenced, put.target.base, put.nonce, meta, keys.chunks(), put.stage]
        args += [len(held), *held]
        for part, sink in sinks.items():
            args += [part, sink.size, sink.count, b"" if part in large else bytes(sink.tail)]
        names = [put.fence, keys.metas, keys.records, keys.index, keys.staging, keys.contents, keys.over]
        steps.append((self._scripts["commit"], names, args))
        path = path_of(self._folder, put.target.base)
        try:
            how, *between, said = self._scripts.sure_together(steps)
        except ServerGone as error:
            raise unconfirmed(path, error) from error
        for reply in (*between, said):
            if isinstance(reply, Exception):
                raise reply
        if said == b"FENCED":
            put.lost()
        if said == b"OTHER":
            raise replaced(path)
        if isinstance(said, list):
            raise gone(path, [name.decode() for name in said])
        if said == b"FREE":
            with suppress(GraflowError):  # the checkpoint stands; the next one, or a sweep, lets go
                self.free(keys)
        elif said != b"OK":
            raise CheckpointError(
                f"The checkpoint {path} was not written: chunks of its {said.decode()} are gone.",
                hint=f"Writing took more than {LIFE} seconds, or the server drops keys (maxmemory-policy).",
                path=path,
            )
        return syncs(how)

    def _withdraw(self, put: Put, sinks: _Sinks) -> None:
        """Take away what a failed write has staged. After Ctrl-C nobody knows whether it was committed."""
        keys = [put.target.keys.records, put.target.keys.staging]
        # also the one that is not staged: a write whose reply was lost is withdrawn, too
        written = [sink.key(number) for sink in sinks.values() for number in range(sink.staged + 1)]
        for at in range(0, max(1, len(written)), _PAGE):
            self._scripts["withdraw"](keys, [put.target.base, put.nonce, *written[at : at + _PAGE]])

    # --- reading -----------------------------------------------------------------------

    def open_part(self, target: Target, part: str, stage: str) -> RedisSource:
        path = path_of(self._folder, target.base)
        found = self._seen.take(target, part, stage)
        if found is None:
            with translated(self._folder):
                raw = self._client.hget(target.keys.records, target.base)
            if raw is None:
                raise self._not_found(target)
            found = parts_in(raw).get(part)
        if found is None or found.stage != stage:
            raise not_its(path, part)
        prefix = target.keys.chunks(found.nonce, part)
        return RedisSource(self._link, prefix, found.size, path, found.first)

    def meta(self, target: Target) -> bytes:
        """Whoever sees it goes on to the parts: what is small comes along, in one round trip."""
        keys = target.keys
        found = self._scripts["look"]([keys.metas, keys.records], [target.base, keys.chunks(), _SMALL])
        if found is None:
            raise self._not_found(target)
        raw, record, *small = found
        parts = parts_in(record)
        for name, data in zip(small[::2], small[1::2], strict=True):
            parts[name.decode()] = replace(parts[name.decode()], first=data)
        self._seen.remember(target, parts)
        return bytes(raw)

    def metas(self, keys: Keys) -> Iterator[tuple[str, bytes]]:
        """Names and metas, the last committed first."""
        client = self._client
        with translated(self._folder):
            names = client.zrevrange(keys.index, 0, -1)
        for at in range(0, len(names), _PAGE):
            page = names[at : at + _PAGE]
            with translated(self._folder):
                found = client.hmget(keys.metas, page)
            for name, raw in zip(page, found, strict=True):
                if raw is not None:  # else deleted meanwhile
                    yield name.decode(), raw

    def tags(self) -> list[Keys]:
        """Of everything that is or was here."""
        keys = Keys(NAMED)
        with translated(self._folder):
            found = self._client.smembers(keys.sessions)
        return [Keys(tag) for tag in sorted(tag.decode() for tag in found)]

    # --- deleting ----------------------------------------------------------------------

    def delete(self, targets: Iterable[Target]) -> int:
        """One after the other, and then the contents that nobody holds any more; how many there were."""
        count, left = 0, dict[str, Keys]()
        try:
            for target in targets:
                keys = target.keys
                names = [keys.metas, keys.records, keys.index, keys.over]
                there, more = self._scripts["delete"](names, [target.base, keys.chunks()])
                count += there
                left |= {keys.tag: keys} if more else {}
        finally:
            with suppress(GraflowError):  # they are gone; the next one, or a sweep, lets go
                for keys in left.values():
                    self.free(keys)
        return count

    # --- within ------------------------------------------------------------------------

    @property
    def _client(self) -> Any:  # a redis.Redis, whose types allow replies that never come here
        return self._link.client

    def _not_found(self, target: Target) -> CheckpointNotFound:
        return not_found(path_of(self._folder, target.base))


def syncs(reply: Any) -> bool:
    """Whether what the server confirms is on its disk, by its answer to SYNCS.

    WAITAOF is not asked: from Redis 7.4 to its mending in 2025, and in Valkey 9.1 still, it confirms
    under `everysec` what no sync has reached.
    """
    if not isinstance(reply, list):
        return False  # hosted servers commonly do not let anybody look
    found = dict(zip(reply[::2], reply[1::2], strict=True))
    kept = [found.get(name) for name in (b"appendonly", b"appendfsync", b"no-appendfsync-on-rewrite")]
    return kept == [b"yes", b"always", b"no"]
