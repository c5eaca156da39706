"""The plan of a resume: what is reused, what runs, and whether the program still fits.

`make_plan` compares the tasks that a checkpoint knows with the ones that the program has now. It
sees plain values only: no pickle is opened for it and nothing is run. The rules:

- A task that has not completed may change as it likes: the new code runs, and the plan says so.
- A completed task that changed, a task with state that the program no longer has, and a task that
  was put before a completed one without having run are refused, unless `changed` says what to do:
  "reuse" keeps what there is, "rerun" runs these and all that depends on them again.
- A fingerprint that cannot be compared counts as unchanged, with a note. So does what a
  fingerprint cannot see; it is named.

Besides the rows for the reader a plan says what the session has to do: `rerun`, `recalled`,
`arrivals`, `absorbed`, `left_out` and `dropped`. Not here: doing it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from graflow_ckpt.checkpoint.comparison import (
    Changed,
    Comparison,
    CurrentTask,
    SavedTask,
    State,
    at_stake,
)
from graflow_ckpt.core.errors import GraphChanged

Verdict = Literal["reuse", "run", "run again", "new", "orphaned", "changed"]

__all__ = ["COLUMNS", "Changed", "CurrentTask", "Plan", "PlanRow", "SavedTask", "State", "make_plan"]

COLUMNS = ("task", "verdict", "state", "note")
HINT = (
    "Restore these tasks, or resume with --changed=reuse to keep their results, "
    "or --changed=rerun to run them and what depends on them again."
)


class PlanRow(NamedTuple):
    task: str
    verdict: Verdict
    state: str
    """as saved; empty for a task that the checkpoint does not know"""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    rows: tuple[PlanRow, ...]
    changed: Changed
    offending: tuple[PlanRow, ...] = ()
    """why it is refused"""
    rerun: frozenset[str] = frozenset()
    """start over: result, counts and waiting specs are given up, and the gate is emptied"""
    recalled: frozenset[str] = frozenset()
    """not completed, and their predecessors are others now: spec and gate start over, too"""
    arrivals: tuple[tuple[str, str], ...] = ()
    """(source, target): the source is done and stays so, and the target has no arrival from it"""
    absorbed: tuple[tuple[str, str], ...] = ()
    """(source, target): the source will run, and the target is done without it and stays so"""
    left_out: frozenset[str] = frozenset()
    """new tasks that do not run, because all that follows them keeps its result"""
    dropped: frozenset[str] = frozenset()
    """orphans whose state is given up"""

    @property
    def refused(self) -> bool:
        return bool(self.offending)

    def raise_if_refused(self, session: str) -> None:
        if not self.offending:
            return
        named = [f"{row.task} ({row.verdict}: {row.note})" for row in self.offending[:5]]
        more = len(self.offending) - len(named)
        raise GraphChanged(
            f"Session {session}: the program differs from the checkpoint where results exist: "
            f"{', '.join(named)}{f' and {more} more' if more else ''}.",
            hint=HINT,
            session=session,
            table=self.offending,
            tasks=tuple(row.task for row in self.offending),
        )

    def counts(self) -> dict[str, int]:
        """How many tasks have each verdict, in the order in which they first occur."""
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row.verdict] = counts.get(row.verdict, 0) + 1
        return counts

    def as_rows(self) -> list[tuple[str, ...]]:
        return [tuple(row) for row in self.rows]

    def as_json(self) -> dict[str, object]:
        return {
            "refused": self.refused,
            "changed": self.changed,
            "rerun": sorted(self.rerun),
            "counts": self.counts(),
            "tasks": [row._asdict() for row in self.rows],
        }


def make_plan(saved: Iterable[SavedTask], current: Iterable[CurrentTask], changed: Changed = None) -> Plan:
    comparison = Comparison(tuple(saved), tuple(current), changed)
    rows, offending = _Rows(comparison).make()
    return Plan(
        rows=rows,
        changed=changed,
        offending=offending if changed is None else (),
        rerun=frozenset(comparison.rerun),
        recalled=frozenset(comparison.recalled),
        arrivals=comparison.arrivals(),
        absorbed=comparison.absorbed(),
        left_out=comparison.left_out,
        dropped=comparison.dropped,
    )


class _Rows:
    """The comparison in words."""

    def __init__(self, comparison: Comparison) -> None:
        self.of = comparison

    def make(self) -> tuple[tuple[PlanRow, ...], tuple[PlanRow, ...]]:
        rows: list[PlanRow] = []
        offending: list[PlanRow] = []
        for task in self.of.current:
            was = self.of.saved.get(task.name)
            if was is None:
                row = PlanRow(task.name, "new", "", self._note_of_new(task))
            elif was.state in ("completed", "skipped"):
                row = self._row_of_done(was, task)
            else:
                row = PlanRow(task.name, "run", was.state, self._note_of_open(was))
            rows.append(row)
            if row.verdict == "changed" or task.name in self.of.intruders:
                offending.append(row)
        for orphan in self.of.orphans:
            row = PlanRow(orphan.name, "orphaned", orphan.state, self._note_of_orphan(orphan))
            rows.append(row)
            if at_stake(orphan):
                offending.append(row)
        return tuple(rows), tuple(offending)

    def _row_of_done(self, was: SavedTask, task: CurrentTask) -> PlanRow:
        name = task.name
        not_seen = task.fingerprint.not_seen if task.fingerprint is not None else ()
        if not (
            not_seen or name in self.of.differing or name in self.of.unknown or self.of.moved or self.of.rerun
        ):
            return PlanRow(name, "reuse", was.state)
        verdict: Verdict = "reuse"
        notes: list[str] = []
        differs = name in self.of.differing and was.state == "completed"
        if name in self.of.rerun:
            verdict = "run again"
            cause = self.of.rerun[name]
            if cause != name:
                notes.append(f"after {cause}, which runs again")
        elif differs and self.of.changed is None:
            verdict = "changed"
        if differs:
            notes.append(
                "changed since it completed" + ("; its result is kept" if verdict == "reuse" else "")
            )
        elif name in self.of.differing:
            notes.append("changed since; it stays skipped" if verdict == "reuse" else "changed since")
        if name in self.of.unknown and verdict == "reuse":
            notes.append(_why_unknown(was, task))
        if was.after != task.after and set(was.after) != set(task.after):
            notes.append(_moved(was, task))
        if not_seen and verdict != "run again":
            notes.append(f"not seen: {', '.join(not_seen)}")
        return PlanRow(name, verdict, was.state, "; ".join(notes))

    def _note_of_open(self, was: SavedTask) -> str:
        """A task that has not completed: it runs, whatever became of it."""
        notes = [note] if (note := _OPEN.get(was.state)) else []
        if was.name in self.of.differing:
            notes.append("changed since: the new code runs")
        if was.name in self.of.recalled:
            notes.append(_moved(was, self.of.now[was.name]))
        if was.name in self.of.rerun:
            notes.append(f"after {self.of.rerun[was.name]}, which runs again")
        if was.name in self.of.intruders:
            notes.append(self._note_of_intruder(was.name))
        return "; ".join(notes)

    def _note_of_new(self, task: CurrentTask) -> str:
        if task.name in self.of.intruders:
            return self._note_of_intruder(task.name)
        if not task.after:
            return "runs as the start, or when a task asks for it"
        open_ones = [name for name in task.after if not self.of.done(name) or name in self.of.rerun]
        if open_ones:
            return f"runs after {_listed(open_ones)}"
        return f"runs at once: {_listed(task.after)} completed before it was there"

    def _note_of_intruder(self, name: str) -> str:
        completed = self.of.intruders[name]
        if self.of.changed is None:
            return f"stands before {completed}, which has completed"
        if self.of.changed == "rerun":
            return f"runs, and {completed} after it again"
        return f"{'left out' if name in self.of.left_out else 'runs'}: {completed} keeps its result"

    def _note_of_orphan(self, orphan: SavedTask) -> str:
        if not at_stake(orphan):
            return "gone from the program; it had not run"
        what = "its result" if orphan.state == "completed" else "its work"
        if self.of.changed is None:
            return f"gone from the program, {what} is not"
        return f"gone from the program; {what} is {'dropped' if orphan.name in self.of.dropped else 'kept'}"


_OPEN = {"failed": "failed before", "running": "was interrupted", "waiting": "waits for other tasks"}


def _why_unknown(was: SavedTask, task: CurrentTask) -> str:
    if was.fingerprint is None or task.fingerprint is None:
        return f"no fingerprint {'saved' if was.fingerprint is None else 'now'}: taken as unchanged"
    minor, older, _ = was.fingerprint.python.partition("/")
    kind = f"older fingerprint (Python {minor})" if older else f"fingerprint of Python {minor}"
    return f"{kind}, not comparable: taken as unchanged"


def _moved(was: SavedTask, task: CurrentTask) -> str:
    return f"stood after {_listed(was.after)}, now after {_listed(task.after)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
