"""The tally: what the events of one session add up to. Shows nothing by itself."""

from __future__ import annotations

from time import monotonic

from graflow_ckpt.core.events import Event
from graflow_ckpt.interfaces.cli.manner import Document


class Tally:
    """How far a session is. Made of the event with which it starts."""

    def __init__(self, event: Event) -> None:
        self.session = event.session
        self.workflow: str = event.facts["workflow"]
        self.store: str = event.facts["store"]
        self.line: str = event.facts.get("line", "")  # how it begins, if it is not simply new
        self.status = ""  # as it ended
        self.reason = ""
        self.step = self.first_step = event.step
        self.pending: int = event.facts["pending"]  # running ones included
        self.running: dict[str, int] = {}
        self.bars: dict[str, tuple[float, float | None]] = {}
        self.saved = 0
        self.saved_at: float | None = None
        self.saved_step = 0
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
                self.saved_at, self.saved_step, self.saved_path = monotonic(), event.step, facts["path"]
            case "checkpoint_failed":
                self.failed_saves += 1
            case "session_started":
                self.pending = facts["pending"]
                self.running.clear()
            case "session_finished":
                self.status = "completed"
            case "session_ended":
                self.status, self.reason = facts["status"], facts.get("reason", "")
                self.unsaved = facts.get("unsaved", "")
                self.running.clear()

    def _left(self, task: str) -> None:
        left = self.running.get(task, 0) - 1
        if left > 0:
            self.running[task] = left
            return
        self.running.pop(task, None)
        done, total = self.bars.get(task, (0, None))
        if total is None or done >= total:  # else it tells the progress of a loop, and comes again
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
