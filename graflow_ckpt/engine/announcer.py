"""The announcer: tells observers and the log what has happened to a session, after the commit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from graflow_ckpt.core.events import Event, Kind, Observer
from graflow_ckpt.core.facts import Claim, Failed, Outcome
from graflow_ckpt.sessions.protocol import Session

log = logging.getLogger("graflow_ckpt.engine")


class Announcer:
    """One per run; keeps the exception that failed the session."""

    def __init__(self, session: Session, observers: Sequence[Observer]) -> None:
        self.failure: BaseException | None = None
        self.open = False  # observers know that an execution has begun, and not yet that it has ended
        self._session = session
        self._observers = observers

    def emit(self, kind: Kind, task: str = "", **facts: Any) -> None:
        """Tell the observers; one that fails is logged and asked again next time."""
        session = self._session
        if kind in ("session_started", "session_ended"):
            self.open = kind == "session_started"
        event = Event(kind, session.id, session.clock(), session.steps, task, facts)
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                log.exception("observer %r failed on %s", observer, kind)

    def ended(self, claim: Claim, outcome: Outcome) -> None:
        """An attempt has been committed, or has failed."""
        task = claim.spec.task_id
        if isinstance(outcome, Failed):
            self._failed(claim, outcome)
        pending = self._session.pending
        self.emit("task_ended", task, outcome=type(outcome).__name__.lower(), pending=pending)

    def _failed(self, claim: Claim, outcome: Failed) -> None:
        session, spec = self._session, claim.spec
        if session.status in ("failing", "failed") and self.failure is None:
            self.failure = outcome.exception
        again = outcome.retry and spec.retry_count < spec.max_retries
        log.warning(
            "task %s failed%s: %s",
            claim.spec.task_id,
            ", it runs again" if again else "",
            outcome.error.partition("\n")[0],  # the rest is a traceback
            extra={
                "session": session.id,
                "task": claim.spec.task_id,
                "attempt": claim.spec.retry_count + 1,
            },
        )
