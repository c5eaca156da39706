"""The estate: what children of a pool left to be settled with Redis when they died.

The parent does it itself, since it alone knows how they died, and at once, since others wait for it.
It never waits: what cannot be settled now is settled when the server is back, and whatever is
forgotten on the way a steward finds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from redis import RedisError

from graflow_ckpt.core.errors import GraflowError, KeyTaken, ServerFull, ServerGone, SessionBusy
from graflow_ckpt.fleet.asking import asked
from graflow_ckpt.fleet.board import Run
from graflow_ckpt.fleet.health import sign_off
from graflow_ckpt.fleet.reaping import Hands, take
from graflow_ckpt.fleet.tokens import Carrier
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.sessions.layout import keys_of

log = logging.getLogger("graflow_ckpt.fleet")

TIMEOUT = 1.0  # seconds of silence after which the server is taken to be away
AGAIN = 0.25


@dataclass(frozen=True, slots=True)
class Debt:
    """A token that a dead child held."""

    run: Run
    why: str
    crashed: bool


class Estate:
    """What is still to be settled."""

    def __init__(self, url: str, rq_url: str, queues: Sequence[str]) -> None:
        self._urls = url, rq_url
        self._queues = queues
        self._hands: Hands | None = None
        self._debts: list[Debt] = []
        self._names: list[str] = []  # under which RQ knows the dead
        self._left = False  # somebody has ended who may just have taken a token
        self._not_before = 0.0
        self._said = False

    def owes(self, run: Run, why: str, *, crashed: bool) -> None:
        self._debts.append(Debt(run, why, crashed))

    def leaves(self, name: str, *, listed: bool) -> None:
        """A worker has ended. `listed`: it did not tell RQ so."""
        self._left = True
        if listed:
            self._names.append(name)

    @property
    def patience(self) -> float:
        """Seconds until it has to be tried again."""
        return max(0.0, self._not_before - monotonic()) if self._owing else 60.0

    @property
    def _owing(self) -> bool:
        return bool(self._debts or self._names or self._left)

    def settle(self) -> None:
        """As much as can be done now."""
        if not self._owing or monotonic() < self._not_before:
            return
        try:
            hands = self._open()
            while self._debts:
                self._pay(hands, self._debts[0])
                del self._debts[0]
            while self._left:
                _return(hands, self._queues)
                self._left = False
            while self._names:
                hands.carrier.bury(self._names[0], self._queues)
                del self._names[0]
            self._said = False
        except (ServerGone, ServerFull, SessionBusy, RedisError) as error:
            self._not_before = monotonic() + AGAIN
            if not self._said:
                log.warning("what a dead process held waits: %s", error)
            self._said = True
            self._debts.append(
                self._debts.pop(0)
            ) if self._debts else None  # a frozen one does not hold up others
        except GraflowError as error:
            log.warning("what a dead process held is left to the stewards: %s", error)
            del self._debts[:1]

    def _pay(self, hands: Hands, debt: Debt) -> None:
        take(hands, debt.run.session, debt.run.token, debt.why, forced=True, crashed=debt.crashed)

    def _open(self) -> Hands:
        if self._hands is None:
            link, rq = (open_link(url, timeout=TIMEOUT) for url in self._urls)
            self._hands = Hands(link, Carrier(rq.client))
        return self._hands

    def forget(self) -> None:
        """In a child: the connections are its parent's."""
        self._debts.clear()
        self._names.clear()
        self._left, self._hands = False, None

    def close(self, pool: str) -> None:
        """The pool has ended; one last try."""
        self._not_before = 0.0
        self.settle()
        try:
            sign_off(self._open().link, pool)
        except (GraflowError, RedisError) as error:
            log.info("the end of pool %s was not noted: %s", pool, error)


def _return(hands: Hands, queues: Sequence[str]) -> None:
    """Tokens that a worker had taken from RQ's queue when it ended, before it could begin on them.

    One that another worker is about to begin on is posted twice then; the second time it is refused.
    """
    client: Any = hands.link.client
    for queue in queues:
        try:
            for session, token in hands.carrier.taken_by_nobody(queue):
                own, tok = f"{keys_of(session)}own", f"{keys_of(session)}tok"
                with asked(hands.link, **{own: "hash", tok: "zset"}):
                    lost = client.zscore(tok, token) is not None and not client.hexists(own, token)
                if lost:
                    hands.carrier.post_again(session, token, queue)
        except KeyTaken as error:  # the stewards look at each session by itself
            log.warning("what a dead process had taken is left to the stewards: %s", error)
