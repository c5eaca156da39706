"""Where `async def` bodies run: on the caller's loop under `aexecute`, else on one of our own.

asyncio is imported here and nowhere else, when the first coroutine is met.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any


class Loop:
    """An event loop that coroutines are handed to from other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._own = loop is None
        self._loop = loop or asyncio.new_event_loop()
        if self._own:
            ready = threading.Event()
            self._loop.call_soon(ready.set)
            threading.Thread(target=self._loop.run_forever, name="graflow-loop", daemon=True).start()
            ready.wait()

    def submit(
        self, coroutine: Coroutine[Any, Any, Any], done: Callable[[Any, BaseException | None], None]
    ) -> Callable[[], None]:
        """Start a coroutine; `done(result, error)` is called when it has ended. Returns its cancel."""
        context = contextvars.copy_context()
        task: list[asyncio.Task[Any]] = []

        def start() -> None:
            task.append(self._loop.create_task(coroutine, context=context))
            task[0].add_done_callback(finished)

        def finished(ended: asyncio.Task[Any]) -> None:
            if ended.cancelled():
                done(None, asyncio.CancelledError())
            else:
                error = ended.exception()
                done(None if error else ended.result(), error)

        def cancel() -> None:
            self._loop.call_soon_threadsafe(lambda: task[0].cancel() if task else None)

        self._loop.call_soon_threadsafe(start)
        return cancel

    def close(self) -> None:
        if self._own:
            self._loop.call_soon_threadsafe(self._loop.stop)
