"""Worker threads of one run.

They are daemons and few: a body that does not come back after its deadline keeps its thread,
and must keep neither the run nor the interpreter from ending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue

Job = Callable[[], None]


class Threads:
    """Hands jobs to idle threads and starts a thread when none is idle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0

    def submit(self, job: Job) -> None:
        with self._lock:
            start = self._idle == 0
            if start:
                self._count += 1
                number = self._count
            else:
                self._idle -= 1
        self._jobs.put(partial(copy_context().run, job))  # as in the caller's thread
        if start:
            threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True).start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job()
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """Idle threads end now, busy ones after their job."""
        for _ in range(self._count):
            self._jobs.put(None)
