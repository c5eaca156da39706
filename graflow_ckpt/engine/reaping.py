"""Leases: kept by the process that works; what a dead worker held is given to the others.

The first worker that notices does it, in one transition that is refused if the token is alive after all,
or if another worker was quicker. What becomes of each claim: under the crash budget it runs again, by the
task's `on_interrupted` if that says otherwise; at the budget it is set aside and the session pauses.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from graflow_ckpt.core.errors import Fenced, GraflowError
from graflow_ckpt.core.facts import Op, TaskSpec
from graflow_ckpt.engine.run import CRASH_BUDGET
from graflow_ckpt.links.processes import is_gone
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.facts import RedisFacts
from graflow_ckpt.sessions.redis.ops import Cells
from graflow_ckpt.sessions.redis.sender import PATIENCE
from graflow_ckpt.sessions.redis.session import RedisSession

log = logging.getLogger("graflow_ckpt.engine")

GRACE = 2.0
"""Seconds for which a lease goes on that was found over, so that its worker can renew it.

What kept the worker from it may have been the server, which was away, or full, or took no writes.
"""


def lasts(lease: float) -> float:
    """Return for how many seconds a lease is renewed; the rest is its GRACE, which is more for short ones."""
    return max(lease - GRACE, lease / 2)


LEASE_OVER = "its lease ran out: it was stopped, cut off, or a task kept the interpreter to itself"

Emitted = tuple[str, str]
"""A token, and the queue on which a worker has to be given it."""


def release(
    link: RedisLink,
    session: str,
    cells: Cells,
    token: str,
    why: str,
    *,
    forced: bool,
    crashed: bool = True,
    patience: float = PATIENCE,
    also: Sequence[Op] = (),
) -> list[Emitted] | None:
    """Take a token from a worker that is dead (`forced`) or whose lease is over; None if it may not be taken.

    The first time that a lease is found over, it gets its GRACE, and the token may not be taken yet.
    `crashed`: whether the worker died of what it ran, which counts against the task. `patience`: seconds to
    wait for a server that is away. `also`: ops of the same transition.
    """
    facts = RedisFacts(link, session)
    holds, asks = facts.held(token, cells), facts.parsed("io")
    ops = [_op(spec, asks, why, crashed) for spec in holds]
    sender, how = RedisSession(link, session, cells, patience=patience), f"~{GRACE * 1000:.0f}"
    try:
        sender.commit([*also, *ops, ("claim", 0)], mode=f"T{token}{'!' if forced else how}")
    except Fenced:
        return None
    finally:
        sender.close()
    for op, spec in zip(ops, holds, strict=True):
        if op[0] == "quarantine":
            text = "session %s pauses: %s"
            log.error(text, session, op[2], extra={"session": session, "task": spec.task_id, "token": token})
    return sender.emitted


def release_the_dead(link: RedisLink, session: str, cells: Cells, *, patience: float = PATIENCE) -> bool:
    """Release all tokens of a session whose owners are gone, on this machine or by their leases.

    False if there is one whose owner may still renew its lease.
    """
    released = True
    for token, owner, left in RedisFacts(link, session).holders():
        gone = owner is not None and is_gone(owner)
        if gone or (left is not None and left < 0):
            why = "its process is gone" if gone else LEASE_OVER
            taken = release(link, session, cells, token, why, forced=gone, patience=patience)
            released &= gone or taken is not None
    return released


def _op(spec: TaskSpec, asks: dict[str, str], why: str, crashed: bool) -> Op:
    crashes = spec.crashes + crashed
    if crashed and crashes >= CRASH_BUDGET:
        error = f"WorkerDied: task {spec.task_id!r} has taken its worker down {crashes} times; at last {why}"
        return ("quarantine", spec.key, error)
    if spec.execution_strategy == "direct" and spec.task_id.partition("[")[0] in asks:
        return ("doubt", spec.key, crashes)
    return ("release", spec.key, crashes)


HELP_AFTER = 0.003
"""Seconds for which work waits in a session before another worker is asked for: what a token costs."""

NEWS = 1.0
"""Seconds after which a slice knows that its session was cancelled, at the latest."""

LOOK = 0.01
"""Seconds between looks at a slice that runs."""

REST = 0.5
"""Seconds until a server that was away, or a session that was frozen, is asked again."""


@dataclass(slots=True)
class Kept:
    """A lease that is kept."""

    session: RedisSession
    on_news: Callable[[str], None]  # "fenced", "gone", or the session's status if it is not running
    help_with: Callable[[], object]
    look_around: Callable[[], object] = lambda: None  # each time the lease has been renewed
    renew_at: float = 0.0
    rests_until: float = 0.0  # after a pass that failed
    asked: float = 0.0  # as of when another worker was asked for help

    def renew_in(self, seconds: float) -> None:
        self.renew_at = monotonic() + seconds

    def rest(self) -> None:
        self.rests_until = self.renew_at = monotonic() + REST

    def helped(self, since: float) -> None:
        self.asked = since


class Keeper:
    """A thread that renews the lease of the slice that its process runs, on another connection than that.

    One per process; it starts with the first lease. It also learns first that a token is void or that the
    session was cancelled, and calls for help where work waits while a long body runs: the slice itself could
    only say so with its next commit.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._often = min(lease / 3, NEWS)
        self._kept: Kept | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._look: Callable[[], None] = lambda: None

    def looks(self, look: Callable[[], None]) -> None:
        """Have this called at each look: for what cannot wait for a body."""
        self._look = look

    def keep(self, kept: Kept) -> None:
        """Keep it from now on, until `forget`."""
        with self._changed:
            kept.renew_in(self._often)
            kept.helped(monotonic())
            self._kept = kept
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="graflow-keeper", daemon=True)
                self._thread.start()
            self._changed.notify()

    def forget(self) -> None:
        with self._changed:
            self._kept = None

    def close(self) -> None:
        with self._changed:
            self._closed, self._kept = True, None
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._kept is None and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                self._changed.wait(LOOK)
                kept = self._kept
            if kept is not None:
                try:
                    self._look()
                    self._look_after(kept)
                except GraflowError as error:  # the server is away: the slice waits for it, too
                    log.warning("keeper: %s", error, extra={"session": kept.session.id})
                    kept.rest()
                except Exception:
                    log.exception("keeper: a pass failed", extra={"session": kept.session.id})
                    kept.rest()

    def _look_after(self, kept: Kept) -> None:
        now, session, since = monotonic(), kept.session, kept.session.answered
        if now < kept.rests_until:
            return
        if now >= kept.renew_at:
            kept.renew_in(self._often)
            status = session.renew(lasts(self._lease))
            if status != "running" and self._kept is kept:
                kept.on_news(status)
            kept.look_around()
        if session.ready and kept.asked < since < now - HELP_AFTER:
            kept.help_with()
            kept.helped(since)
