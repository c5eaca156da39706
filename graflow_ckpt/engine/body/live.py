"""The live values of an attempt: what it has of them, whether it has changed them, and who has them back.

A live value is on loan to the attempt that has got it, or, in Redis and in a child process, a copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from graflow_ckpt.checkpoint.values.codec import decode
from graflow_ckpt.checkpoint.values.pickles import live_bytes, live_digest, load_live
from graflow_ckpt.checkpoint.values.sharing import bundles
from graflow_ckpt.core import errors
from graflow_ckpt.core.facts import RESULT, Cell, Claim, Failed, Live, Op, Version
from graflow_ckpt.core.graph import TaskGraph
from graflow_ckpt.engine.settings import OnFailure
from graflow_ckpt.sessions.protocol import Session, Values

if TYPE_CHECKING:
    from graflow_ckpt.engine.body.attempt import Attempt


class Got:
    """A value that the attempt has in hand, and what it was when it got it."""

    __slots__ = ("before", "value", "version")

    def __init__(self, value: Any, before: Cell | None, version: Version) -> None:
        self.value = value
        self.before = before
        self.version = version


class LiveValues:
    """The live values among those that an attempt has got: on loan, or in Redis copies, which may share.

    Each is digested when it is got, if it has to be known later whether the body has changed it.
    """

    __slots__ = ("looked", "seen", "_clean", "_digests", "_got", "_kept", "_resting", "_values")

    def __init__(self, values: Values, got: dict[str, Got]) -> None:
        self.looked: dict[str, Got] = {}  # parameters: what is made of them shares with them
        self.seen: set[str] = set()  # without a loan
        self._values = values
        self._got = got
        self._digests: dict[str, bytes] = {}
        self._kept: set[str] = set()  # what loops keep, on loan
        self._clean = False  # nothing can have changed since a round was committed
        self._resting: list[str] = []  # counted as returned

    def keep(self, name: str) -> None:
        """Have on loan what a loop keeps: the body changes the objects that were committed."""
        if self._values.shares and name not in self._kept:
            self._values.lend(name)
            self._kept.add(name)

    def touched(self) -> None:
        """Note that the body works on: it may change what it has."""
        self._clean = False

    def committed(self, name: str, value: Any) -> None:
        """Note that the value is committed as it is now."""
        self._clean = True
        self._digests.pop(name, None)
        if not self._values.shares:
            self.digest(name, value, digest_or_none)

    def rest(self) -> None:
        """Count all as returned, until `work`: the body waits between two rounds."""
        self._clean = True
        self._resting = self.on_loan()
        self._values.give_back(self._resting)

    def work(self) -> None:
        """Have on loan again what was counted as returned."""
        resting, self._resting = self._resting, []
        for name in resting:
            self._values.lend(name)

    def digest(self, name: str, value: Any, digest: Callable[[Any], bytes]) -> None:
        """Keep what a value is now."""
        if before := digest(self._whole(name, value)):  # else it counts as changed
            self._digests[name] = before

    def changed(self, name: str, value: Any) -> bool:
        """Return True if a value may differ from what it was when it was lent."""
        return name not in self._digests or digest_or_none(self._whole(name, value)) != self._digests[name]

    def _whole(self, name: str, value: Any) -> Any:
        """Return the value, and all that came with it in one pickle: changing one may change another."""
        beside = [m for m in self._values.together(name).items() if m[0] != name]
        return [value, *(from_cells(m, f[0], f[2]) for m, f in beside)] if beside else value

    def on_loan(self) -> list[str]:
        if not self._values.shares:
            return []
        # a list: a body that is past its deadline may be getting one more right now
        got = [name for name, got in list(self._got.items()) if isinstance(got.before, Live)]
        return [*got, *self._kept]

    def torn(self) -> list[str]:
        """Return the names of those that this attempt may have changed in place."""
        if self._clean:
            return []
        return [n for n in self.on_loan() if n in self._kept or self.changed(n, self._got[n].value)]

    def leave(self, session: Session) -> list[str]:
        """Leave them to a body that still runs; return the names of those that it may have changed.

        It keeps its objects. If those are as they were, the session takes copies of them and of what
        shares with them; not if siblings work on one, which they would put back.
        """
        if self._clean:
            return []
        if self._kept:
            return self.on_loan()
        held = {name: self._got[name].value for name in self.on_loan()}
        if held and held.keys() <= self._digests.keys():
            with suppress(errors.CheckpointError):  # it is being changed right now
                return self._copied(session, held)
        return [*held]

    def _copied(self, session: Session, held: dict[str, Any]) -> list[str]:
        """Have the session keep copies of what the body holds, and of all that shares with it."""
        live = session.live()
        roots = {name: [cell.value for cell in cells] for name, cells in live.items()}
        bound = next(names for names in bundles({"": [*held.values()]} | roots) if "" in names)
        beside = [name for name in bound if name and session.on_loan_beside(name, int(name in held))]
        if beside:
            return beside
        members = [cell for name in bound if name for cell in live[name]]
        copies = load_live(live_bytes(([cell.value for cell in members], [*held.values()])))
        changed = [name for name, copy in zip(held, copies[1], strict=True) if self.changed(name, copy)]
        if not changed:
            session.replace_live(dict(zip(members, map(Live, copies[0]), strict=True)))
        return changed

    def give_back(self, *names: str) -> None:
        """Give back these loans, or all."""
        if self._resting:
            self.work()
        for name in names or self.on_loan():
            if self._got.pop(name, None) is not None:  # once, whichever thread comes first
                self._values.give_back([name])
        if not names and self._kept:
            kept, self._kept = self._kept, set()
            self._values.give_back([*kept])

    def bundled(self, ops: list[Op], written: Set[str], task: str, result: Cell) -> list[Op]:
        """Add to what is written the values that share with it; `written`: what the body has set."""
        cells: dict[str, Live] = {op[1]: op[2] for op in ops if op[0] == "put" and isinstance(op[2], Live)}
        due = {*cells}
        for name, got in self._got.items():
            if isinstance(got.before, Live) and (name in due or self.changed(name, got.value)):
                due |= self._values.together(name).keys() - written
        if isinstance(result, Live):
            name = task + RESULT
            cells[name] = result
            due.add(name)
        if not due:
            return ops
        versions = self._take_along(cells, written)
        for number, names in enumerate(bundles({name: [cell.value] for name, cell in cells.items()}), 1):
            if due.isdisjoint(names):
                continue
            for name in names:
                cells[name].join(number if len(names) > 1 else 0)
            ops += [("put", name, cells[name], versions[name]) for name in names if name in versions]
        return ops

    def _take_along(self, cells: dict[str, Live], written: Set[str]) -> dict[str, Version]:
        """Add what was read and not written; the versions at which that was."""
        versions: dict[str, Version] = {}
        for name, got in [*self._got.items(), *self.looked.items()]:
            if not isinstance(got.before, Live):
                continue
            found = {m: (from_cells(m, f[0], f[2]), f[1]) for m, f in self._values.together(name).items()}
            for member, (value, version) in ({name: (got.value, got.version)} | found).items():
                known = self._got.get(member)
                if known is not None:
                    value, version = known.value, known.version
                if member not in cells and member not in written:
                    cells[member], versions[member] = Live(value), version
        return versions


def has_live(cell: Cell, items: Sequence[Cell]) -> bool:
    """Return True if the value of a cell, or one of the items appended to it, is live."""
    return not isinstance(cell, bytes) or (bool(items) and any(isinstance(item, Live) for item in items))


def as_list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{name!r} is a {type(value).__name__}; only lists can be appended to.")
    return value


def from_cells(name: str, cell: Cell, items: Sequence[Cell]) -> Any:
    """Return the value of a cell and of what was appended to it."""
    value = decode(cell) if isinstance(cell, bytes) else cell.value
    if items:
        value = [*as_list(name, value), *(decode(i) if isinstance(i, bytes) else i.value for i in items)]
    return value


def checking() -> bool:
    """Return True if GRAFLOW_CKPT_CHECK=1: a task that changes a live read-only value is named."""
    return os.environ.get("GRAFLOW_CKPT_CHECK", "") not in ("", "0")


class Watch:
    """The live values that one attempt may look at and must not change.

    Digested when the body gets one and when the body has ended, so this is for tests: it reads every such
    value twice. A value that a task has on loan meanwhile, or commits, is left alone.
    """

    def __init__(self, values: Values, task: str) -> None:
        self._values = values
        self._task = task
        self._given: dict[str, tuple[Any, Version, bytes]] = {}

    def given(self, name: str, value: Any, version: Version) -> None:
        if name not in self._given and name not in self._values.on_loan():
            digest = digest_or_none(value)
            if digest:
                self._given[name] = (value, version, digest)

    def lent(self, name: str) -> None:
        """Stop watching a value: the attempt has got it itself and may change it."""
        self._given.pop(name, None)

    def check(self, cause: BaseException | None = None) -> errors.ReadOnlyChanged | None:
        """Return the error of the first value that has changed; `cause`: what the body has raised."""
        for name, (value, version, before) in self._given.items():
            found = self._values.read(name)
            settled = found is not None and found[1] == version and name not in self._values.on_loan()
            if settled and digest_or_none(value) != before:
                error = errors.ReadOnlyChanged(
                    f"Task {self._task!r} changed {name!r}, which it had read-only: that would be lost.",
                    hint="Work on a copy, or get it from the channel without readonly=True.",
                    task=self._task,
                    name=name,
                )
                error.__cause__ = cause
                return error
        return None


def digest_or_none(value: Any) -> bytes:
    try:
        return live_digest(value)
    except errors.NotStorable:  # durability="none": nothing that can be compared
        return b""


class GoBack(Exception):
    """The session has to go back to its newest cut: a failed attempt changed a live value."""

    def __init__(self, claim: Claim, outcome: Failed, names: list[str]) -> None:
        super().__init__(names)
        self.claim = claim
        self.outcome = outcome
        self.names = names


class TornValues:
    """The live values that failed attempts may have left changed: docs/guarantees.md, loans."""

    def __init__(self, graph: TaskGraph, session: Session, on_failure: OnFailure) -> None:
        self._graph, self._session, self._on_failure = graph, session, on_failure

    def note(self, attempt: Attempt | None) -> list[str]:
        """Note those of an attempt that has failed, or is over; return their names."""
        if attempt is None or attempt.live is None:
            return []
        gone = isinstance(attempt.over, errors.GraflowError)  # else it has left its loops, or ended
        names = attempt.live.leave(self._session) if gone else attempt.live.torn()
        self._session.tear(names)  # before they are given back: no checkpoint may come in between
        return names

    def check(self, claim: Claim, names: list[str], outcome: Failed) -> None:
        """Raise what such values of a failed attempt lead to: the session goes back, or it ends."""
        if isinstance(outcome.exception, errors.ReadOnlyChanged):
            names.append(outcome.exception.ids["name"])
            self._session.tear(names[-1:])
        if not names:
            return
        route = self._graph.routes[claim.spec.task_id]
        if outcome.is_tried_again(claim.spec):
            raise GoBack(claim, outcome, names)
        if route.lenient or self._on_failure == "continue":
            raise errors.ValueTorn(
                f"Task {claim.spec.task_id!r} failed after it may have changed {names[0]!r} in place.",
                hint="The last checkpoint stands; resume goes on from it.",
                task=claim.spec.task_id,
                name=names[0],
            ) from outcome.exception
