"""The announcer: tells observers and the log what has happened to a session, after the commit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from graflow_ckpt.core.events import Event, Kind, Observer
from graflow_ckpt.core.facts import Claim, Failed, Outcome
from graflow_ckpt.sessions.memory import MemorySession

log = logging.getLogger("graflow_ckpt.engine")


class Announcer:
    """One per run; keeps the exception that failed the session."""

    def __init__(self, session: MemorySession, observers: Sequence[Observer]) -> None:
        self.failure: BaseException | None = None
        self._session = session
        self._observers = observers

    def emit(self, kind: Kind, task: str = "", **facts: Any) -> None:
        """Tell the observers; one that fails is logged and asked again next time."""
        state = self._session.state
        event = Event(kind, state.session, self._session.clock(), state.steps, task, facts)
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
        pending = len(self._session.state.specs)
        self.emit("task_ended", task, outcome=type(outcome).__name__.lower(), pending=pending)

    def _failed(self, claim: Claim, outcome: Failed) -> None:
        state, key = self._session.state, claim.spec.key
        if state.status in ("failing", "failed") and self.failure is None:
            self.failure = outcome.exception
        again = key in state.specs and key not in state.dead
        log.warning(
            "task %s failed%s: %s",
            claim.spec.task_id,
            ", it runs again" if again else "",
            outcome.error,
            extra={
                "session": state.session,
                "task": claim.spec.task_id,
                "attempt": claim.spec.retry_count + 1,
            },
        )
