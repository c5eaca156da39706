"""Watching: a worker's own observers, which are told of each slice that it runs.

A program's observers stay in its process. Those of a worker are made here, of what `--observers` names: a
function without parameters, or a class, `MODULE:NAME`. It is called once in each worker,
so that whatever it starts is there.

Promise: to an observer a slice is an execution, from `session_started` to `session_ended`, whose status is
that of the session then: `running` if others go on. One that cannot be made or fails costs the tasks
nothing. A tracer's spans are linked to the session's trace.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from graflow_ckpt.core.errors import GraflowError, PackageMissing
from graflow_ckpt.core.events import Observer

if TYPE_CHECKING:
    from graflow_ckpt.engine.run import Run
    from graflow_ckpt.engine.shared_home import SharedHome

log = logging.getLogger("graflow_ckpt.fleet")


class Observers:
    """Of one worker."""

    def __init__(self, makers: Sequence[str] = ()) -> None:
        self._makers = tuple(makers)
        self._made: tuple[Observer, ...] | None = None

    def here(self) -> tuple[Observer, ...]:
        """Those of this process."""
        if self._made is None:
            self._made = tuple(_made(self._makers))
        return self._made


def maker_of(name: str) -> Callable[[], Observer]:
    """What `MODULE:NAME` means."""
    module, _, attribute = name.partition(":")
    try:
        found: Callable[[], Observer] = getattr(import_module(module), attribute)
    except PackageMissing:
        raise
    except (ImportError, AttributeError) as error:
        raise GraflowError(
            f"The observer {name!r} cannot be had: {error}.", hint="Check --observers and PYTHONPATH."
        ) from error
    return found


@contextmanager
def watched(run: Run, home: SharedHome) -> Iterator[None]:
    """The slice that runs inside, as its observers see it."""
    home.trace.follow(run.settings.observers)
    if home.trace.traces:
        home.trace.goes_on_from_text(home.kept_trace())
    run.announcer.emit(
        "session_started",
        **_facts(run, home),
        trace_context=home.trace.former,
        original_trace_id=home.trace.original,
    )
    if home.trace.traces and home.trace.former is None:  # nobody who has submitted it traces: it begins here
        home.keep_trace()
    status = "broken"
    try:
        yield
        status = run.session.status
    finally:
        run.announcer.emit("session_ended", status=status, reason="")


def _facts(run: Run, home: SharedHome) -> dict[str, Any]:  # Any: what events hold
    return {
        "workflow": run.settings.workflow, "resumed": True, "path": None, "replayed": 0, "completed": 0,
        "pending": run.session.pending, "max_steps": None, "kept": True, "store": home.link.address,
    }  # fmt: skip


def _made(makers: Sequence[str]) -> Iterator[Observer]:
    for name in makers:
        try:
            yield maker_of(name)()
        except Exception:
            log.exception("the observer %s could not be made; nothing is told to it here", name)
