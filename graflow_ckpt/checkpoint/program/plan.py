"""The plan of a resume: what is reused, what runs, and whether the program still fits.

`make_plan` compares the tasks that a checkpoint knows with the ones that the program has now. It
sees plain values only: no pickle is opened for it and nothing is run. The rules:

- A task that has not completed may change as it likes: the new code runs, and the plan says so.
- A completed task that changed, a task with state that the program no longer has, and a task that
  was put before a completed one without having run are refused, unless `changed` says what to do:
  "reuse" keeps what there is, "rerun" runs these and all that depends on them again.
- A fingerprint that cannot be compared counts as unchanged, with a note. So does what a
  fingerprint cannot see; it is named.

`Comparison` finds what differs and what follows from it, a `Plan` says the same in words. Predecessors count
as sets.

Besides the rows for the reader a plan says what the session has to do: `rerun`, `recalled`,
`arrivals`, `absorbed`, `left_out` and `dropped`. Not here: doing it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from graflow_ckpt.checkpoint.program.program import CurrentTask, SavedTask, compare
from graflow_ckpt.core.errors import GraphChanged

Verdict = Literal["reuse", "run", "run again", "new", "orphaned", "changed"]
Changed = Literal["reuse", "rerun"] | None

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
    """start over: result, counts and waiting specs are dropped, and the gate is emptied"""
    recalled: frozenset[str] = frozenset()
    """not completed, and their predecessors are others now: spec and gate start over, too"""
    arrivals: tuple[tuple[str, str], ...] = ()
    """(source, target): the source is done and stays so, and the target has no arrival from it"""
    absorbed: tuple[tuple[str, str], ...] = ()
    """(source, target): the source will run, and the target is done without it and stays so"""
    left_out: frozenset[str] = frozenset()
    """new tasks that do not run, because all that follows them keeps its result"""
    dropped: frozenset[str] = frozenset()
    """orphans whose state is dropped"""
    judged: frozenset[str] = frozenset()
    """groups that have another policy now: it counts where they still wait"""

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
        """Count how many tasks have each verdict, in the order in which they first occur."""
        return dict(Counter(row.verdict for row in self.rows))

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
        judged=frozenset(comparison.judged) - comparison.rerun.keys() - comparison.recalled,
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
            or name in self.of.judged
        ):  # fmt: skip
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
        if name in self.of.judged:
            notes.append(f"{self.of.judged[name]}, since it has passed")
        if not_seen and verdict != "run again":
            notes.append(f"not seen: {', '.join(not_seen)}")
        return PlanRow(name, verdict, was.state, "; ".join(notes))

    def _note_of_open(self, was: SavedTask) -> str:
        """Return the note on a task that has not completed: it runs, whatever happened to it."""
        notes = [note] if (note := _OPEN.get(was.state)) else []
        if was.at:
            notes.append(f"continues at {was.at}")
        if was.name in self.of.differing:
            notes.append("changed since: the new code runs")
        if was.name in self.of.recalled:
            notes.append(_moved(was, self.of.now[was.name]))
        if was.name in self.of.judged:
            notes.append(self.of.judged[was.name])
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


# --- the two sides ----------------------------------------------------------------------


class Comparison:
    """The two sides, and what follows from their differences."""

    def __init__(
        self, saved: tuple[SavedTask, ...], current: tuple[CurrentTask, ...], changed: Changed
    ) -> None:
        self.changed = changed
        self.current = current
        self.saved = {task.name: task for task in saved}
        self.now = {task.name: task for task in current}
        self.orphans = [task for task in saved if task.name not in self.now]
        self.differing: set[str] = set()
        """have other code now"""
        self.unknown: set[str] = set()
        self.intruders: dict[str, str] = {}
        """have not run, and are now before the completed task that is named"""
        self.recalled: set[str] = set()
        self.judged: dict[str, str] = {}
        """groups under another policy, and which"""
        self.moved: list[CurrentTask] = []
        for task in current:
            was = self.saved.get(task.name)
            if was is not None and was.of_the_program() != task[1:]:
                self._compare(was, task)
        self._intrude()
        self.rerun: dict[str, str] = self._rerun() if changed == "rerun" else {}
        """and the task because of which it runs again; its own name if it is the cause"""
        self.left_out = self._left_out() if changed == "reuse" else frozenset[str]()
        lost = {task.name for task in self.orphans if at_stake(task)}
        kept = {task.name for task in self.orphans if task.state == "completed" and changed == "reuse"}
        self.dropped = frozenset(lost - kept) if changed else frozenset[str]()

    def _compare(self, was: SavedTask, task: CurrentTask) -> None:
        outcome = compare(was.fingerprint, task.fingerprint)
        if was.fingerprint is task.fingerprint is None:  # a group: no body
            if was.policy and was.policy != task.policy:
                self.judged[task.name] = f"its policy was {was.policy} and is {task.policy}"
        elif outcome == "changed":
            self.differing.add(task.name)
        elif outcome == "unknown":
            self.unknown.add(task.name)
        if was.after != task.after and set(was.after) != set(task.after):
            self.moved.append(task)

    def _intrude(self) -> None:
        for task in self.moved:
            was = self.saved[task.name]
            added = [name for name in task.after if name not in was.after and not self.done(name)]
            if was.state == "completed":
                self.intruders.update((name, task.name) for name in added)
            elif was.state != "skipped" and (added or was.state in ("unreached", "waiting")):
                self.recalled.add(task.name)  # else it would not wait for these, or for others too
        pending = list(self.intruders)
        while pending:  # and new tasks before those
            name = pending.pop()
            for before in self.now[name].after if name in self.now else ():
                if before not in self.saved and before not in self.intruders:
                    self.intruders[before] = self.intruders[name]
                    pending.append(before)

    def done(self, name: str) -> bool:
        was = self.saved.get(name)
        return was is not None and was.state in ("completed", "skipped")

    def _rerun(self) -> dict[str, str]:
        """Return what differs among the completed tasks, and what depends on that."""
        gone = {task.name for task in self.orphans if at_stake(task)}
        rerun = {
            name: name
            for name in self.now
            if name in self.differing and self.saved[name].state == "completed"
        }
        rerun |= {name: name for name in self.intruders.values()}
        for task in self.current:
            was = self.saved.get(task.name)
            if was is not None and was.state == "completed" and not gone.isdisjoint(was.after):
                rerun[task.name] = task.name
        follow: dict[str, list[str]] = {}
        for task in self.current if rerun else ():
            for before in task.after:
                follow.setdefault(before, []).append(task.name)
        pending = list(rerun)
        while pending:
            name = pending.pop()
            for after in follow.get(name, ()):
                if after not in rerun and after in self.saved:
                    rerun[after] = name
                    pending.append(after)
        return rerun

    def _left_out(self) -> frozenset[str]:
        """Return new tasks all of whose successors keep their results or are left out themselves."""
        follow: dict[str, list[str]] = {name: [] for name in self.intruders if name not in self.saved}
        for task in self.current if follow else ():
            for before in task.after:
                if before in follow:
                    follow[before].append(task.name)
        out = set(follow)
        while True:
            needed = {name for name in out if not all(n in out or self.done(n) for n in follow[name])}
            if not needed:
                return frozenset(out)
            out -= needed

    def arrivals(self) -> tuple[tuple[str, str], ...]:
        if not (self.rerun or self.recalled or len(self.now) + len(self.orphans) > len(self.saved)):
            return ()
        return tuple(
            (before, task.name)
            for task in self.current
            if self._waits_anew(task.name)
            for before in task.after
            if self.done(before) and before not in self.rerun
        )

    def absorbed(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            (before, task.name)
            for task in self.moved
            if self.done(task.name) and task.name not in self.rerun
            for before in task.after
            if before not in self.saved[task.name].after
            and before not in self.left_out
            and not self.done(before)
        )

    def _waits_anew(self, name: str) -> bool:
        if name in self.saved:
            return name in self.rerun or name in self.recalled
        return name not in self.left_out


def at_stake(orphan: SavedTask) -> bool:
    """Return whether something would be lost with it."""
    return orphan.state not in ("skipped", "unreached")
