"""A live value, tasks that do nothing, and an observer to wait for."""

from __future__ import annotations

import threading
from typing import Any

from graflow_ckpt import Event, task

LONG = 20.0  # seconds: only a hang takes so long


class Box:
    """A live value."""

    def __init__(self, *items: Any) -> None:
        self.items = list(items)


def idle(*names: str) -> list[Any]:
    """Tasks that do nothing."""
    return [task(id=name)(lambda: None) for name in names]


class Seen(list[Event]):
    """An observer; `first(kind)` is set when the first event of that kind has come."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[str, threading.Event] = {}

    def __call__(self, event: Event) -> None:
        self.append(event)
        self.first(f"{event.kind} {event.task}").set()
        self.first(event.kind).set()

    def first(self, what: str) -> threading.Event:
        return self._first.setdefault(what, threading.Event())

    def kinds(self, *kinds: str) -> list[str]:
        return [f"{e.kind} {e.task}".strip() for e in self if e.kind in kinds]
