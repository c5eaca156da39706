"""One attempt of a task: what it has read, changed and asked for, until it is committed.

Nothing of it is in the session before the commit. What was got and changed in place counts as
set; what was got before it is set is written with the version it was got at, so that a sibling
that committed meanwhile is noticed and nothing is lost.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

from graflow_ckpt.checkpoint.cells import check_storable, to_cell
from graflow_ckpt.checkpoint.codec import decode, is_atom
from graflow_ckpt.checkpoint.pickles import live_digest
from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.core.facts import Claim, Effects, Next, Op, Request, Spawned
from graflow_ckpt.core.values import Cell, Live
from graflow_ckpt.engine.bind import MISSING


class Values(Protocol):
    """Where an attempt reads from: the session, or the parent process."""

    def read(self, name: str) -> tuple[Cell, int, tuple[Cell, ...]] | None: ...

    def names(self) -> list[str]: ...

    def lend(self, name: str) -> None: ...

    def give_back(self, names: Sequence[str]) -> None: ...


class Got:
    """A value that the attempt has in hand, and what it was when it got it."""

    __slots__ = ("before", "value", "version")

    def __init__(self, value: Any, before: Cell | None, version: int) -> None:
        self.value = value
        self.before = before
        self.version = version


class Attempt:
    """The buffer between a body and its session."""

    __slots__ = (
        "again", "appends", "claim", "digests", "got", "nexts", "over", "request", "spawned", "terminate",
        "checks", "values", "written", "_digest",
    )  # fmt: skip

    def __init__(self, values: Values, claim: Claim, *, check: bool = True, digest: bool = False) -> None:
        self.values = values
        self.claim = claim
        self.got: dict[str, Got] = {}
        self.written: dict[str, Any] = {}
        self.appends: list[Op] = []
        self.digests: dict[str, bytes] = {}  # live values on loan, as they were
        self.nexts: list[Next] = []
        self.spawned: list[Spawned] = []
        self.again: Cell | None = None
        self.terminate: str | None = None
        self.request: Request | None = None
        self.over: GraflowError | None = None  # fenced: every further call of the body is refused
        self.checks = check  # refuse what cannot be pickled, when it is set
        self._digest = digest  # a retry has to know whether a live value was changed

    # --- what a body calls -------------------------------------------------------------

    def get(self, name: str, default: Any, readonly: bool) -> Any:
        self.still_running()
        if name in self.written:
            return self.written[name]
        if name in self.got:
            return self.got[name].value
        found = self.values.read(name)
        own = [op[2] for op in self.appends if op[1] == name]
        if found is None and not own:
            if not readonly:
                self.got[name] = Got(default, None, 0)
            return default
        cell, version, items = found or (b"\x90", 0, ())
        if isinstance(cell, Live) and not items and not own:
            return self._lend(name, cell, version, readonly)
        value = from_cells(name, cell, (*items, *own))
        if not readonly:
            before = b"" if own else to_cell(value) if items else cell
            self.got[name] = Got(value, before, version)
            if own:
                self.appends = [op for op in self.appends if op[1] != name]
        return value

    def _lend(self, name: str, cell: Live, version: int, readonly: bool) -> Any:
        if readonly:
            return read_only(cell.value)
        self.values.lend(name)
        found = self.values.read(name)  # a picture may have been taken meanwhile, or a commit
        if found is not None and isinstance(found[0], Live):
            cell, version = found[0], found[1]
        self.got[name] = Got(cell.value, cell, version)
        if self._digest:
            self.digests[name] = live_digest(cell.value)
        return cell.value

    def set(self, name: str, value: Any) -> None:
        self.still_running()
        if not isinstance(name, str):
            raise TypeError(f"A channel name is a string, not {type(name).__name__}.")
        if self.checks and not is_atom(value):
            check_storable(name, value)
        self.written[name] = value
        if self.appends:
            self.appends = [op for op in self.appends if op[1] != name]

    def append(self, name: str, item: Any) -> None:
        self.still_running()
        current = self.written.get(name, MISSING)
        if current is MISSING and name in self.got:
            current = self.got[name].value
            if current is None:
                current = self.written[name] = []
        if current is MISSING:
            self.appends.append(
                ("append", name, check_storable(name, item) if self.checks else to_cell(item))
            )
        else:
            current.append(item)

    def names(self) -> list[str]:
        return list(dict.fromkeys([*self.values.names(), *self.written, *(op[1] for op in self.appends)]))

    def still_running(self) -> None:
        if self.over is not None:
            raise self.over

    # --- what the engine calls ---------------------------------------------------------

    def effects(self) -> Effects:
        """Everything that the commit has to carry out; raises NotStorable for what it cannot keep."""
        ops = self._changes()
        return Effects(
            tuple(ops), tuple(self.nexts), tuple(self.spawned), self.again, self.terminate, self.request
        )

    def _changes(self) -> list[Op]:
        ops: list[Op] = []
        for name, got in self.got.items():
            if name in self.written or got.before is None:
                continue
            if isinstance(got.before, Live):
                ops.append(("put", name, got.before, got.version))
            elif not is_atom(got.value):
                cell = self._cell(name, got.value)
                if cell != got.before:
                    ops.append(("put", name, cell, got.version))
        for name, value in self.written.items():
            known = self.got.get(name)
            ops.append(("put", name, self._cell(name, value), -1 if known is None else known.version))
        ops += self.appends
        return ops

    def _cell(self, name: str, value: Any) -> Cell:
        cell = to_cell(value)
        if self.checks and isinstance(cell, Live):
            check_storable(name, value)
        return cell

    def loans(self) -> list[str]:
        return [name for name, got in self.got.items() if isinstance(got.before, Live)]

    def torn(self) -> list[str]:
        """The live values that this attempt may have changed in place."""
        return [
            name
            for name in self.loans()
            if name not in self.digests or live_digest(self.got[name].value) != self.digests[name]
        ]

    def give_back(self) -> None:
        if self.got:
            names = self.loans()
            if names:
                self.values.give_back(names)
                self.got.clear()


def from_cells(name: str, cell: Cell, items: Sequence[Cell]) -> Any:
    """The value of a cell and of what was appended to it."""
    value = decode(cell) if isinstance(cell, bytes) else cell.value
    if items:
        if not isinstance(value, list):
            raise TypeError(f"{name!r} is a {type(value).__name__}; only lists can be appended to.")
        value = [*value, *(decode(i) if isinstance(i, bytes) else i.value for i in items)]
    return value


def read_only(value: Any) -> Any:
    """Arrays as views that cannot be written through; other objects as they are."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        view = value.view()
        view.flags.writeable = False
        return view
    return value
