"""The tasks of a checkpoint and those of the program, side by side.

`Comparison` finds what differs and what follows from it for a resume; the rules are the ones of
plan.py, which says the same in words. Predecessors count as sets.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from graflow_ckpt.checkpoint.fingerprint import Fingerprint, compare

State = Literal["completed", "running", "pending", "failed", "skipped", "waiting", "unreached"]
Changed = Literal["reuse", "rerun"] | None


class SavedTask(NamedTuple):
    """A task as the checkpoint knows it. `unreached`: in the graph then, and never enqueued."""

    name: str
    state: State
    fingerprint: Fingerprint | None = None
    after: tuple[str, ...] = ()


class CurrentTask(NamedTuple):
    """A task of the program now; `after` are its predecessors on forward edges, loop edges are not."""

    name: str
    fingerprint: Fingerprint | None = None
    after: tuple[str, ...] = ()


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
        """have not run, and stand now before the completed task that is named"""
        self.recalled: set[str] = set()
        self.moved: list[CurrentTask] = []
        for task in current:
            was = self.saved.get(task.name)
            if was is not None and (was.fingerprint, was.after) != (task.fingerprint, task.after):
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
        if was.fingerprint is task.fingerprint is None:  # a group: no body, nothing to compare
            pass
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
        """What differs among the completed tasks, and what depends on that."""
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
        """New tasks all of whose successors keep their results or are left out themselves."""
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
    """Whether something would be lost with it."""
    return orphan.state not in ("skipped", "unreached")
