"""Leases and journals in Redis: one owner per session, by the server's clock, and the frames of the owner.

    graflow:ck:{id}:lease    hash: epoch, owner (as JSON), until (milliseconds), nonce (of the claim)

Promise: of several who acquire a session at once exactly one gets it, and who has lost it finds out
at the next write, which is refused by its epoch and claim: by both, since a server that was put back to an
older state, or a replica that took over, gives an epoch out once more. A thread renews the lease every
third of its time. A dead owner of this machine is told by its process and taken over at once. A process of
another machine shows that it lives by renewing; if it does not, its lease runs out, and `acquire` waits.

Journal segments in Redis: lists that frames are appended to, one after each cut.

    graflow:ck:{id}:journal                  set of epoch:after
    graflow:ck:{id}:journal:{epoch}:{after}  list of frames

Promise: a frame has been confirmed when `append` returns, once, and it was appended by the session's
owner. After a failure nothing more is appended, ever.
Not here: that what is confirmed is on a disk (redis.py asks), what is in a frame, and which frames
count (checkpoint/journal.py).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from graflow_ckpt.core.errors import Fenced
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.links.processes import is_gone, myself
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.links.wire import Argument
from graflow_ckpt.stores import claims
from graflow_ckpt.stores.claims import busy
from graflow_ckpt.stores.fencing import FencedLease, FencedSegment, Watch, used
from graflow_ckpt.stores.redis_names import NAMED, Keys
from graflow_ckpt.stores.redis_scripts import Scripts

LEASE = 15.0

_WAITED = 4  # lease times: an end that is further off comes of a clock that was wrong, or of somebody else


class RedisLease(FencedLease):
    """One in Redis."""

    def __init__(
        self,
        link: RedisLink,
        scripts: Scripts,
        session: str,
        epoch: int,
        claim: str,
        taken_from: Owner | None,
        seconds: float,
    ) -> None:
        self.keys = Keys(session)
        self._scripts = scripts
        super().__init__(link.address, session, epoch, claim, taken_from, seconds)

    @property
    def fenced(self) -> list[str | int]:
        """What a script has to find in the lease."""
        return [self.epoch, self.claim]

    def check(self) -> None:
        self.not_released()
        held = self._scripts["hold"]([self.keys.lease], [*self.fenced, ""])
        if not held[0]:
            raise self.lost(held[1], held[2])

    def lost(self, epoch: bytes = b"", owner: bytes = b"") -> Fenced:
        """What to raise when a script has refused the claim."""
        return self.lost_to(claims.number(epoch, self.keys.lease) if epoch else None, owner_of(owner))

    def _let_go(self) -> None:
        self._scripts["release"]([self.keys.lease], self.fenced)

    def _renew(self) -> bool:
        args: list[Argument] = [*self.fenced, int(self._seconds * 1000)]
        return bool(self._scripts["hold"]([self.keys.lease], args)[0])


class Leases:
    """The leases of the sessions in one store."""

    def __init__(self, link: RedisLink, scripts: Scripts, seconds: float) -> None:
        self._link = link
        self._scripts = scripts
        self._seconds = seconds

    def acquire(self, session: str, *, take_over: bool, floor: int) -> RedisLease:
        """Become the owner. `floor`: the highest epoch known from elsewhere, if the lease was lost."""
        keys, nonce, watch = Keys(session), uuid.uuid4().hex, Watch(session)
        how = "take" if take_over else "ask"
        taken: list[Owner | None] = []  # from whom, once it was granted
        me = json.dumps(asdict(myself()), separators=(",", ":"))
        while True:
            args: list[Argument] = [nonce, me, int(self._seconds * 1000), how, floor]
            granted, epoch, held, *until = self._scripts.sure("claim", [keys.lease], args)
            owner = owner_of(held)
            if granted:
                taken.append(owner)
                # before the lease counts as ours: checkpoints under other names are under another tag
                known = self._scripts.sure("raise", Keys(NAMED).fences(session), [session, epoch, nonce])
                if not known:
                    break
                how, nonce, floor = str(epoch), uuid.uuid4().hex, known  # that tag remembers a later owner
                continue
            how = "ask"
            if owner is None or is_gone(owner):
                how = str(epoch)  # not "take": somebody else may have found out, too, and be the owner now
                continue
            if watch.silent(owner, until[0], _WAITED * self._seconds):
                raise busy(session, owner)
        return RedisLease(self._link, self._scripts, session, int(epoch), nonce, taken[0], self._seconds)

    def owner(self, session: str) -> Owner | None:
        """The living owner, without taking anything."""
        key = Keys(session).lease
        with translated(self._link.address):
            client: Any = self._link.client  # its types allow replies that never come here
            held, until = client.hmget(key, ["owner", "until"])
            seconds, micros = client.time()
        owner = owner_of(held)
        if owner is None or int(until or 0) <= seconds * 1000 + micros // 1000 or is_gone(owner):
            return None
        return owner

    def known(self, session: str) -> bool:
        """Whether the server remembers an epoch."""
        key = Keys(session).lease
        with translated(self._link.address):
            return bool(self._link.client.hexists(key, "epoch"))


def owner_of(said: bytes | None) -> Owner | None:
    return claims.owner_in(said, "the lease of a session in Redis")


# --- journals ------------------------------------------------------------------------------


_PAGE = 1000  # frames that are read at once


class RedisSegment(FencedSegment):
    """One in Redis."""

    def __init__(self, lease: RedisLease, scripts: Scripts, after: int) -> None:
        super().__init__(lease, lease.keys.segment(lease.epoch, after))
        self._lease, self._scripts = lease, scripts

    def _write(self, frame: bytes) -> bool:
        keys = [self._lease.keys.lease, self.key]
        found = self._scripts.sure("append", keys, [*self._lease.fenced, self._count, frame])
        if found == 0:
            self._lease.check()
        return bool(found == 1)


def open_segment(lease: RedisLease, scripts: Scripts, after: int) -> RedisSegment:
    """A new segment for the records after `after`."""
    lease.not_released()
    keys, key = lease.keys, lease.keys.segment(lease.epoch, after)
    args: list[Argument] = [*lease.fenced, f"{lease.epoch}:{after}"]
    begun = scripts.sure("begin", [keys.lease, keys.journal, key], args)
    if begun == 0:
        lease.check()
    if begun != 1:
        raise used(lease.session, key)
    return RedisSegment(lease, scripts, after)


def read_segments(link: RedisLink, session: str) -> Iterator[tuple[int, int, bytes]]:
    """(epoch, after, bytes) in that order."""
    keys = Keys(session)
    for epoch, after in _segments(link, session):
        frames: list[bytes] = []
        key = keys.segment(epoch, after)
        with translated(link.address):
            client: Any = link.client
            while page := client.lrange(key, len(frames), len(frames) + _PAGE - 1):
                frames += page
        yield epoch, after, b"".join(frames)


def drop_segments(link: RedisLink, scripts: Scripts, session: str, before: int) -> None:
    """Remove those that end at or before `before`: where the next one begins is where one ends."""
    keys = Keys(session)
    gone = [segment for segment, (_, ended) in pairwise(_segments(link, session)) if ended <= before]
    if gone:
        names = [keys.segment(*segment) for segment in gone]
        scripts.sure("drop", [keys.journal, *names], [f"{epoch}:{after}" for epoch, after in gone])


def _segments(link: RedisLink, session: str) -> list[tuple[int, int]]:
    key = Keys(session).journal
    with translated(link.address):
        client: Any = link.client  # its types allow replies that never come here
        found = client.smembers(key)
    pairs = (member.decode().split(":") for member in found)
    return sorted((int(epoch), int(after)) for epoch, after in pairs)
