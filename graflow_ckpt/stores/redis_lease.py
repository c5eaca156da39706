"""Leases in Redis: one owner per session, under an epoch that only grows, by the server's clock.

    graflow:ck:{id}:lease    hash: epoch, owner (as JSON), until (milliseconds), nonce (of the claim)

Promise: of several who acquire a session at once exactly one gets it, and who has lost it finds out
at the next write, which is refused by its epoch and claim: by both, since a server that was put back to an
older state, or a replica that took over, gives an epoch out once more. A thread renews the lease every
third of its time. A dead owner of this machine is told by its process and taken over at once. A process of
another machine shows that it lives by renewing; if it does not, its lease runs out, and `acquire` waits.
Not here: what the epoch guards (redis.py).
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from dataclasses import asdict
from typing import Any

from graflow_ckpt.core.errors import Fenced, GraflowError
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.links.processes import is_gone, is_near, myself, named
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.links.wire import Argument
from graflow_ckpt.stores import claims
from graflow_ckpt.stores.claims import busy, forgotten, released
from graflow_ckpt.stores.claims import lost as lost_to
from graflow_ckpt.stores.redis_names import NAMED, Keys
from graflow_ckpt.stores.redis_scripts import Scripts

LEASE = 15.0

_POLL = 0.1
_WAITED = 4  # lease times: an end that is further off comes of a clock that was wrong, or of somebody else
_logger = logging.getLogger(__name__)


class RedisLease:
    """A session that this process owns until it releases it, dies, or is fenced."""

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
        self.session = session
        self.epoch = epoch
        self.claim = claim
        self.taken_from = taken_from
        self.keys = Keys(session)
        self._link = link
        self._scripts = scripts
        self._seconds = seconds
        self._process = os.getpid()
        self._released = False
        self._over = threading.Event()  # nothing is left to renew
        self._keeper = threading.Thread(target=self._keep, name=f"lease-{session}", daemon=True)
        self._keeper.start()

    @property
    def fenced(self) -> list[str | int]:
        """What a script has to find in the lease."""
        return [self.epoch, self.claim]

    def check(self) -> None:
        """Raise `Fenced` unless the session is still ours: the server is asked."""
        self.not_released()
        held = self._scripts["hold"]([self.keys.lease], [*self.fenced, ""])
        if not held[0]:
            raise self.lost(held[1], held[2])

    def release(self) -> None:
        """Let the session go. What cannot be written then does not matter: the lease runs out."""
        if self._process != os.getpid() or self._released:
            return
        self._released = True
        self._over.set()
        try:
            self._scripts["release"]([self.keys.lease], self.fenced)
        except GraflowError as error:
            _logger.info("session %s let go without a word: %s", self.session, error)

    def not_released(self) -> None:
        if self._released or self._process != os.getpid():
            raise released(self.session, self.epoch)

    def lost(self, epoch: bytes = b"", owner: bytes = b"") -> Fenced:
        """What to raise when a script has refused the claim."""
        self._over.set()
        if not epoch:
            return forgotten(self._link.address, self.session, self.epoch)
        return lost_to(self.session, self.epoch, claims.number(epoch, self.keys.lease), owner_of(owner))

    def _keep(self) -> None:
        """The keeper's thread: whatever goes wrong in one pass, the next one tries again."""
        args: list[Argument] = [*self.fenced, int(self._seconds * 1000)]
        while not self._over.wait(self._seconds / 3):
            try:
                held = self._scripts["hold"]([self.keys.lease], args)
            except Exception as error:  # noqa: BLE001  a keeper's pass
                _logger.warning("cannot renew session %s: %s", self.session, error)
                continue
            if not held[0]:
                return  # the next write says so, where somebody can hear it


class Leases:
    """The leases of the sessions in one store."""

    def __init__(self, link: RedisLink, scripts: Scripts, seconds: float) -> None:
        self._link = link
        self._scripts = scripts
        self._seconds = seconds

    def acquire(self, session: str, *, take_over: bool, floor: int) -> RedisLease:
        """Become the owner. `floor`: the highest epoch known from elsewhere, if the lease was lost."""
        keys, nonce, since = Keys(session), uuid.uuid4().hex, 0.0
        how, seen = ("take" if take_over else "ask"), b""
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
            if is_near(owner) or (seen and until[0] != seen):
                raise busy(session, owner)
            if not seen:
                _logger.info("waiting to see whether %s is alive", named(owner), extra={"session": session})
                since = time.monotonic()
            elif time.monotonic() - since > _WAITED * self._seconds:
                raise busy(session, owner)
            seen = until[0]
            time.sleep(_POLL)
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
