"""The inbox of a run: outcomes of bodies, and word of signals."""

from __future__ import annotations

from queue import Empty, SimpleQueue

from graflow_ckpt.core.facts import Outcome
from graflow_ckpt.engine.invoke import Running

TICK = 0.5
"""Seconds between looks at signals: one that comes right before a wait does not end it."""

Message = tuple[Running, Outcome | BaseException]


class Inbox:
    """Filled by any thread and by signal handlers, emptied by the run's."""

    def __init__(self) -> None:
        self._messages: SimpleQueue[Message | BaseException | None] = SimpleQueue()

    def post(self, message: Message) -> None:
        """A body has ended."""
        message[0].posted = True  # it was in time, however long the message lies here
        self._messages.put(message)

    def knock(self) -> None:
        """Whoever waits has to look around."""
        self._messages.put(None)

    def leave(self, error: BaseException) -> None:
        """Whoever waits has to give up."""
        self._messages.put(error)

    def get(self, patience: float) -> Message | None:
        """The next message, None for a knock; `Empty` after so many seconds."""
        while True:
            try:
                message = self._messages.get(timeout=min(patience, TICK))
            except Empty:
                if patience <= TICK:
                    raise
                patience -= TICK
                continue
            if isinstance(message, BaseException):
                raise message
            return message
