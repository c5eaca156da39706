"""The keeper: a thread that renews the lease of the slice that its process runs, on a connection of its own.

It also hears first that a token is void or that the session was cancelled, and calls for help where
work waits while a long body runs: the slice itself could only say so with its next commit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic

from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.layout import RENEW, keys_of
from graflow_ckpt.sessions.redis import RedisSession

log = logging.getLogger("graflow_ckpt.fleet")

PATIENCE = 0.003
"""Seconds for which work waits in a session before another worker is asked for: what a token costs."""

NEWS = 1.0
"""Seconds after which a slice knows that its session was cancelled, at the latest."""

LOOK = 0.01
"""Seconds between looks at a slice that runs."""


class Kept:
    """A lease that is kept."""

    def __init__(
        self, session: RedisSession, on_news: Callable[[str], None], help_with: Callable[[], None]
    ) -> None:
        self.session = session
        self.on_news = on_news  # called with "fenced", "gone" or the session's status, if it is not running
        self.help_with = help_with
        self.look_around: Callable[[], None] = lambda: None  # each time the lease has been renewed
        self.renew_at = 0.0
        self.asked = 0.0


class Keeper:
    """One per process; its thread starts with the first lease."""

    def __init__(self, link: RedisLink, lease: float) -> None:
        self._link = link
        self._lease = lease
        self._renew = link.script(RENEW)
        self._kept: Kept | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.look: Callable[[], None] = lambda: None  # at each look: for what cannot wait for a body

    def keep(self, kept: Kept) -> None:
        """From now on, until `forget`."""
        with self._changed:
            kept.renew_at = monotonic() + min(self._lease / 3, NEWS)
            kept.asked = monotonic()
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
                    self.look()
                    self._look_after(kept)
                except GraflowError as error:  # the server is away: the slice waits for it, too
                    log.warning("keeper: %s", error, extra={"session": kept.session.id})
                    kept.renew_at = monotonic() + 0.5
                except Exception:
                    log.exception("keeper: a pass failed", extra={"session": kept.session.id})
                    kept.renew_at = monotonic() + 0.5

    def _look_after(self, kept: Kept) -> None:
        now, session = monotonic(), kept.session
        if now >= kept.renew_at:
            kept.renew_at = now + min(self._lease / 3, NEWS)
            key = keys_of(session.id) + "c"
            status = self._renew([key], [session.token, session.sender, int(self._lease * 1000)]).decode()
            if status != "running" and self._kept is kept:
                kept.on_news(status)
            kept.look_around()
        if session.ready and kept.asked < session.answered < now - PATIENCE:
            kept.asked = session.answered
            kept.help_with()
