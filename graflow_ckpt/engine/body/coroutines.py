"""The loops of `async def` bodies: the caller's loop under `aexecute`, else one of our own.

asyncio is imported here and nowhere else, when the first coroutine is met.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

_TICK = 0.5  # seconds between looks at signals: one that comes right before a wait does not end it
_PATIENCE = 1.0  # seconds that cancelled coroutines are given to clean up


async def on_a_thread(call: Callable[[], Any], stop: Callable[[], bool]) -> Any:
    """Run a blocking call beside the loop. Cancelled, it is asked to stop and waited for, once.

    The thread is a daemon, unlike those of an executor: a task that hangs must not keep the
    interpreter from ending.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def work() -> None:
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = call(), None
        except BaseException as error:  # noqa: BLE001  it is raised again in the waiting task
            outcome = None, error
        with suppress(RuntimeError):  # the loop was closed: nothing waits any more
            loop.call_soon_threadsafe(ended.set_result, outcome)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name="graflow-run", daemon=True).start()
    try:
        while not ended.done():
            await asyncio.wait([ended], timeout=_TICK)
    except asyncio.CancelledError:
        if stop():
            await asyncio.wait([ended])
        raise
    result, error = ended.result()
    if error is not None:
        raise error
    return result


class Leaving(Exception):
    """Carries a SystemExit or a KeyboardInterrupt of a body out of its loop."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(reason)
        self.reason = reason


class Loop:
    """An event loop that coroutines are handed to from other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        if loop is None:
            self._thread = threading.Thread(target=self._run, name="graflow-loop", daemon=True)
            self._thread.start()

    def submit(
        self, coroutine: Coroutine[Any, Any, Any], done: Callable[[Any, BaseException | None], None]
    ) -> Callable[[], None]:
        """Start a coroutine; `done(result, error)` is called when it has ended. Returns its cancel."""
        context = contextvars.copy_context()
        task: list[asyncio.Task[Any]] = []

        async def body() -> Any:
            try:
                return await coroutine
            except (SystemExit, KeyboardInterrupt) as leaving:  # as it is, it would end the loop instead
                raise Leaving(leaving) from None

        def start() -> None:
            task.append(self._loop.create_task(body(), context=context))
            task[0].add_done_callback(finished)

        def finished(ended: asyncio.Task[Any]) -> None:
            if ended.cancelled():
                done(None, asyncio.CancelledError())
            else:
                error = ended.exception()
                if isinstance(error, Leaving):
                    error = error.reason
                done(None if error else ended.result(), error)

        def cancel() -> None:
            with suppress(RuntimeError):  # the loop has been closed, and all its tasks were cancelled
                self._loop.call_soon_threadsafe(lambda: task[0].cancel())

        self._loop.call_soon_threadsafe(start)
        return cancel

    def close(self) -> None:
        """End a loop of our own, with all that still runs on it."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(2 * _PATIENCE)  # a body that blocks its loop is left behind with the thread

    def _run(self) -> None:
        loop = self._loop
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_PATIENCE))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
