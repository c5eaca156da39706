"""Progress: what `run` and `resume` show while a session runs. Observers of the engine.

    a terminal    one line that is kept for the start, a live block, one line for the end
    a pipe        plain lines: start, checkpoints, now and then how far it is, end
    --json        one JSON document per event, and one for the end

All but JSON goes to stderr: stdout belongs to the program.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from graflow_ckpt.cli import lazy, words
from graflow_ckpt.cli.terminal import Document, Manner
from graflow_ckpt.core.events import Event

if TYPE_CHECKING:
    from rich.live import Live

PERIOD = 5.0  # seconds between two progress lines on a pipe
SAVES = 1.0  # seconds between two lines about checkpoints


class Tally:
    """The sum of one session's events; made of the one with which it starts.

    Shows nothing by itself.
    """

    def __init__(self, event: Event) -> None:
        self.session = event.session
        self.workflow: str = event.facts["workflow"]
        self.store: str = event.facts["store"]
        self.status = ""  # as it ended
        self.step = self.first_step = event.step
        self.pending: int = event.facts["pending"]  # running ones included
        self.running: dict[str, int] = {}
        self.bars: dict[str, tuple[float, float | None]] = {}
        self.saved = 0
        self.last_save: tuple[float, int] | None = None  # when, and at which step
        self.saved_path: str | None = event.facts["path"]
        self.failed_saves = 0
        self.unsaved = ""  # why the end is not durable
        self.began = monotonic()

    def add(self, event: Event) -> None:
        self.step = event.step
        facts = event.facts
        match event.kind:
            case "task_started":
                self.running[event.task] = self.running.get(event.task, 0) + 1
            case "task_ended":
                self._left(event.task)
                self.pending = facts["pending"]
            case "task_progress":
                self.bars[event.task] = facts["done"], facts["total"]
            case "checkpoint_saved":
                self.saved += 1
                self.last_save, self.saved_path = (monotonic(), event.step), facts["path"]
            case "checkpoint_failed":
                self.failed_saves += 1
            case "session_started":
                self.pending = facts["pending"]
                self.running.clear()
            case "session_finished":
                self.status = "completed"
            case "session_ended":
                self.status, self.unsaved = facts["status"], facts.get("unsaved", "")
                self.running.clear()

    def _left(self, task: str) -> None:
        left = self.running.get(task, 0) - 1
        if left > 0:
            self.running[task] = left
            return
        self.running.pop(task, None)
        done, total = self.bars.get(task, (0, None))
        if total is None or done >= total:  # else it reports the progress of a loop, and runs again
            self.bars.pop(task, None)

    @property
    def seconds(self) -> float:
        return monotonic() - self.began

    @property
    def rate(self) -> float:
        """Steps per second of this run."""
        return max(0, self.step - self.first_step) / max(self.seconds, 1e-6)

    @property
    def counts(self) -> str:
        running = sum(self.running.values())
        waiting = max(0, self.pending - running)
        return f"{self.step} done, {running} running, {waiting} pending, {self.rate:.3g}/s"

    def document(self) -> Document:
        return {
            "session": self.session, "workflow": self.workflow, "status": self.status, "steps": self.step,
            "pending": self.pending, "checkpoints": self.saved, "last_checkpoint": self.saved_path,
            "seconds": round(self.seconds, 3),
        }  # fmt: skip


Mention = Callable[[Tally], None]


class Reporter:
    """Keeps a tally per session, and says how they start and end."""

    def __init__(self, manner: Manner, mention: Mention) -> None:
        self.manner = manner
        self.tallies: dict[str, Tally] = {}
        self.taken: dict[str, str] = {}  # what to say of a session whose owner was ended, once it is ours
        self._mention = mention

    def __call__(self, event: Event) -> None:
        tally = self.tallies.get(event.session)
        fresh = tally is None or bool(tally.status)  # a session may be executed again
        if tally is None or fresh:
            if event.kind not in ("session_started", "session_finished"):
                return
            tally = self.tallies[event.session] = Tally(event)
        tally.add(event)
        if taken := self.taken.pop(event.session, ""):
            self.manner.note(taken)
        if self.manner.json:
            return
        match event.kind:
            case "session_finished":
                self.manner.note(event.facts.get("line", ""))
            case "session_started" if fresh:  # else it has gone back and starts from there
                self.started(event, tally)
            case "session_ended":
                self.ended(event, tally)
            case _:
                self.went_on(event, tally)

    def started(self, event: Event, tally: Tally) -> None:
        begins = f"session {tally.session} ({tally.workflow}): {opening(event, tally)}"
        self.manner.note(event.facts.get("line") or begins)
        if not event.facts["resumed"]:
            self._mention(tally)

    def went_on(self, event: Event, tally: Tally) -> None:
        pass

    def ended(self, event: Event, tally: Tally) -> None:
        if tally.status != "interrupted":  # the engine itself says from where that continues
            self.manner.note(f"session {tally.session}: {closing(event, tally)}")

    def close(self) -> None:
        pass


def opening(event: Event, tally: Tally) -> str:
    """Return what a new session will be, with a command to resume it if that would find something."""
    if lazy.stores.backend_of(tally.store) == "memory":
        return "new; its store ends with this process"
    if event.facts.get("saved") or event.facts.get("recorded"):
        return f"new; if it is interrupted: {words.resume_command(tally.session, tally.store)}"
    if event.facts["kept"]:
        return "new; nothing is saved before its first checkpoint"
    return "new; a checkpoint is made only if it is stopped or fails (--every, --session)"


def closing(event: Event, tally: Tally) -> str:
    """Return how it ended, and what to do next."""
    command = event.facts.get("resume", "")
    own = f"{tally.step - tally.first_step} in this run, {tally.seconds:.3g} s"
    steps = f"after {words.counted(tally.step, 'step')} ({own})"
    failed = tally.failed_saves
    lost = f"; {words.counted(failed, 'checkpoint')} could not be saved" if failed else ""
    match tally.status:
        case "completed":
            return f"completed {steps}{lost}"
        case "stopped":
            larger = f"{command} --max-steps {2 * max(1, tally.step)}"
            again = f"; go on with a larger one: {larger}" if command else ""
            return f"{event.facts.get('reason') or 'stopped'} {steps}{again}{lost}"
        case status:
            again = f"; go on with: {command}" if status in ("failed", "stalled") and command else ""
            return f"{status} {steps}{again}{lost}"


class PlainLines(Reporter):
    """For a pipe, a log, a user with --no-progress."""

    def __init__(self, manner: Manner, mention: Mention, *, progress: bool = True) -> None:
        super().__init__(manner, mention)
        self._progress = progress
        self._told = monotonic()
        self._told_save = 0.0
        self._untold = 0

    def went_on(self, event: Event, tally: Tally) -> None:
        now = monotonic()
        if event.kind == "checkpoint_saved" and self._progress:
            if now - self._told_save < SAVES:
                self._untold += 1
                return
            more = f" (and {self._untold} before it)" if self._untold else ""
            self.manner.note(f"checkpoint at step {event.step}: {event.facts['path']}{more}")
            self._told_save, self._untold, self._told = now, 0, now
        elif event.kind == "session_went_back":
            self.manner.note(f"session {tally.session} went back to step {event.facts['step']}")
        elif self._progress and now - self._told >= PERIOD:
            self._told = now
            self.manner.note(f"session {tally.session}: {tally.counts}{_bars(tally)}")


def _bars(tally: Tally) -> str:
    parts = [f"{task} {done:g}{f'/{total:g}' if total else ''}" for task, (done, total) in tally.bars.items()]
    return f"; {', '.join(parts)}" if parts else ""


class JsonLines(Reporter):
    """One document per event."""

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        self.manner.document({
            "event": event.kind, "session": event.session, "time": event.time, "step": event.step,
            **({"task": event.task} if event.task else {}), **event.facts,
        })  # fmt: skip


class LiveBlock(Reporter):
    """For a terminal: what runs now is below what the program prints."""

    def __init__(self, manner: Manner, mention: Mention) -> None:
        super().__init__(manner, mention)
        self._doors = lazy.live.Doors()
        self._live: Live | None = None
        self._shown: Tally | None = None

    def started(self, event: Event, tally: Tally) -> None:
        self.close()
        super().started(event, tally)
        self._shown = tally
        draw = partial(lazy.live.block, tally)
        self._live = lazy.live.block_on(self._doors.err.real, draw, redirect=False)
        self._doors.lead_above(self._live.console)
        self._live.start()

    def ended(self, event: Event, tally: Tally) -> None:
        if tally is self._shown:
            self.close()
        super().ended(event, tally)

    def close(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()
            self._doors.open()


def reporter_for(manner: Manner, mention: Mention, *, progress: bool) -> Reporter:
    if manner.json:
        return JsonLines(manner, mention)
    if progress and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return LiveBlock(manner, mention)
    return PlainLines(manner, mention, progress=progress)
