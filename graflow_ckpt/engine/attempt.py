"""One attempt of a task: what it has read, changed and asked for, until it is committed.

Nothing of it is in the session before the commit. What was got and changed in place counts as
set; what was got before it is set is written with the version it was got at, so that a sibling
that committed meanwhile is noticed and nothing is lost.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from typing import Any

from graflow_ckpt.checkpoint.values.codec import FORGOTTEN, apart, check_storable, decode, is_atom, to_cell
from graflow_ckpt.checkpoint.values.pickles import live_bytes, live_digest, load_live
from graflow_ckpt.checkpoint.values.sharing import bundles, copied
from graflow_ckpt.core import errors
from graflow_ckpt.core.arguments import no_name
from graflow_ckpt.core.facts import (
    NO_EFFECTS,
    RESULT,
    Cell,
    Claim,
    Effects,
    Live,
    Next,
    Op,
    Request,
    Spawned,
    Version,
    new,
)
from graflow_ckpt.sessions.protocol import Session, Values

EMPTY_LIST = b"\x90"

_log = logging.getLogger("graflow_ckpt.engine")


class Got:
    """A value that the attempt has in hand, and what it was when it got it."""

    __slots__ = ("before", "value", "version")

    def __init__(self, value: Any, before: Cell | None, version: Version) -> None:
        self.value = value
        self.before = before
        self.version = version


class Asks:
    """The requests of a body other than values."""

    __slots__ = ("again", "nexts", "request", "spawned", "terminate")

    def __init__(self) -> None:
        self.nexts: list[Next] = []
        self.spawned: dict[str, list[Spawned]] = {}  # by the name of the task, which may be made twice
        self.again: Cell | None = None
        self.terminate: str | None = None
        self.request: Request | None = None

    def checkpoint(self, request: Request) -> None:
        self.request = request

    def one_more(self, data: Cell) -> None:
        """Ask for the same task once more."""
        self.again = data

    def end(self, message: str) -> None:
        """Ask that no task is started any more."""
        self.terminate = message


class LiveValues:
    """The live values among those that an attempt has got: on loan, or in Redis copies, which may share.

    Each is digested when it is got, if it has to be known later whether the body has changed it.
    """

    __slots__ = ("looked", "seen", "_digests", "_got", "_values")

    def __init__(self, values: Values, got: dict[str, Got]) -> None:
        self.looked: dict[str, Got] = {}  # parameters: what is made of them shares with them
        self.seen: set[str] = set()  # without a loan
        self._values = values
        self._got = got
        self._digests: dict[str, bytes] = {}

    def digest(self, name: str, value: Any, digest: Callable[[Any], bytes]) -> None:
        """Keep what a value is now."""
        if before := digest(self._whole(name, value)):  # else it counts as changed
            self._digests[name] = before

    def changed(self, name: str, value: Any) -> bool:
        """Return True if a value may differ from what it was when it was lent."""
        return name not in self._digests or _digest(self._whole(name, value)) != self._digests[name]

    def _whole(self, name: str, value: Any) -> Any:
        """Return the value, and all that came with it in one pickle: changing one may change another."""
        beside = [m for m in self._values.together(name).items() if m[0] != name]
        return [value, *(from_cells(m, f[0], f[2]) for m, f in beside)] if beside else value

    def on_loan(self) -> list[str]:
        if not self._values.shares:
            return []
        # a list: a body that is past its deadline may be getting one more right now
        return [name for name, got in list(self._got.items()) if isinstance(got.before, Live)]

    def torn(self) -> list[str]:
        """Return the names of those that this attempt may have changed in place."""
        return [name for name in self.on_loan() if self.changed(name, self._got[name].value)]

    def leave(self, session: Session) -> list[str]:
        """Leave them to a body that still runs; return the names of those that it may have changed.

        It keeps its objects. If those are as they were, the session takes copies of them and of what
        shares with them; not if siblings work on one, which they would put back.
        """
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
        for name in names or self.on_loan():
            if self._got.pop(name, None) is not None:  # once, whichever thread comes first
                self._values.give_back([name])

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


class Attempt:
    """The buffer between a body and its session."""

    __slots__ = (
        "appends", "asks", "checks", "claim", "defaults", "got", "live", "over", "values", "watch", "written",
        "_digest",
    )  # fmt: skip

    def __init__(
        self, values: Values, claim: Claim, check: bool = True, digest: bool = False, watch: bool = False
    ) -> None:
        self.values = values
        self.claim = claim
        self.got: dict[str, Got] = {}
        self.live: LiveValues | None = None  # made for the first one
        self.defaults = _NONE_GIVEN  # for what was not there, as they were
        self.written: dict[str, Any] = {}
        self.appends: list[Op] = []
        self.asks: Asks | None = None
        self.over: errors.GraflowError | None = None  # fenced: every further call of the body is refused
        self.checks = check  # refuse what cannot be pickled, when it is set
        self._digest = digest  # a retry has to know whether a live value was changed
        self.watch = Watch(values, claim.spec.task_id) if watch else None

    # --- what a body calls -------------------------------------------------------------

    def get(self, name: str, default: Any, readonly: bool) -> Any:
        self.still_running()
        if name in self.written:
            return self._kept(name, self.written[name])
        if name in self.got:
            got = self.got[name]
            return self._default(name, default) if got.before is None else got.value
        found = self.values.read(name)
        own = [op[2] for op in self.appends if op[1] == name]
        if found is None and not own:
            if not readonly:
                self.got[name] = Got(None, None, 0)
                return self._default(name, default)
            return default
        if found is None and (held := self._own_list(name, own, readonly)) is not None:
            return held
        cell, version, items = found or (EMPTY_LIST, 0, ())
        if readonly:
            return self.look(name, (cell, version, (*items, *own)))
        if has_live(cell, items):
            return self._lend(name, own)
        value = self._kept(name, from_cells(name, cell, (*items, *own)))
        self._take(name, value, b"" if own else to_cell(value) if items else cell, version)
        return value

    def _default(self, name: str, default: Any) -> Any:
        """Return the default of this call, or an equal or changed one that the body has already."""
        changed = self._changed_default(name)
        if changed is not None:
            return changed
        if is_atom(default):
            return default
        if not isinstance(name, str):  # what is changed in it would be set
            raise no_name(name)
        before = mark(default)
        if not before:  # it need not be storable: only what is changed is kept
            return default
        if self.defaults is _NONE_GIVEN:
            self.defaults = {}
        known = self.defaults.setdefault(name, [])
        if all(value is not default for value, _ in known):
            known.append((default, before))
        same = (v for v, m in known if m == before and type(v) is type(default))
        return next(same, default)

    def _changed_default(self, name: str) -> Any:
        """Return what the body has made of a default; None if it has changed none of them."""
        changed = [value for value, before in self.defaults.get(name, ()) if mark(value) != before]
        if len(changed) > 1:
            raise errors.NotStorable(
                f"Task {self.claim.spec.task_id!r} got {name!r} several times with different defaults, and "
                "changed more than one of them.",
                hint="Get it once, or set the value.",
                name=name,
                task=self.claim.spec.task_id,
            )
        return changed[0] if changed else None

    def _own_list(self, name: str, own: list[Cell], readonly: bool) -> list[Any] | None:
        """Return a default that the body has, with what it has appended: both are one list."""
        value = self._changed_default(name)
        if value is None and not readonly:
            value = next((value for value, _ in self.defaults.get(name, ()) if isinstance(value, list)), None)
        if value is None:
            return None
        whole = _list(name, value)
        whole += [decode(item) if isinstance(item, bytes) else item.value for item in own]
        self.appends = [op for op in self.appends if op[1] != name]
        self.got[name] = Got(None, None, 0)
        return whole

    def look(
        self, name: str, found: tuple[Cell, Version, tuple[Cell, ...]], *, parameter: bool = False
    ) -> Any:
        """Return a value that must not be changed."""
        cell, version, items = found
        value = self._kept(name, from_cells(name, cell, items))
        if has_live(cell, items):
            live = self.live_values()
            live.seen.add(name)
            if self.watch is not None:
                self.watch.given(name, value, version)
            if parameter:
                live.looked[name] = Got(value, Live(value), version)
        return read_only(value)

    def _kept(self, name: str, value: Any) -> Any:
        if value is FORGOTTEN:
            task = name.removesuffix(RESULT)
            raise errors.ResultForgotten(
                f"The result of {task!r} was asked for by {self.claim.spec.task_id!r}, and was forgotten.",
                hint="Forget a result in a task that follows all who need it; going back to an older "
                "checkpoint brings it back.",
                name=task,
                task=self.claim.spec.task_id,
            )
        return value

    def _lend(self, name: str, own: list[Cell]) -> Any:
        self.values.lend(name)
        if self.watch is not None:
            self.watch.lent(name)
        # read again: a picture may have been taken meanwhile, or a commit made
        cell, version, items = self.values.read(name) or (EMPTY_LIST, 0, ())
        value = from_cells(name, cell, (*items, *own))
        live = self.live_values()
        self._take(name, value, Live(value) if items or own or isinstance(cell, bytes) else cell, version)
        if self._digest or not self.values.shares:
            live.digest(name, value, live_digest if self.checks else _digest)
        if self.over is not None:  # while it was lent: nothing else returns it
            live.give_back(name)
            raise self.over
        return value

    def _take(self, name: str, value: Any, before: Cell, version: Version) -> None:
        """Record that the attempt works on a copy or a loan of its own from now on."""
        self.got[name] = Got(value, before, version)
        self.appends = [op for op in self.appends if op[1] != name]

    def set(self, name: str, value: Any) -> None:
        self.still_running()
        if not isinstance(name, str):
            raise no_name(name)
        if self.checks and not is_atom(value):
            check_storable(name, value)
        self.written[name] = value
        self.appends = self.appends and [op for op in self.appends if op[1] != name]

    def append(self, name: str, item: Any) -> None:
        self.still_running()
        if not isinstance(name, str):
            raise no_name(name)
        cell = check_storable(name, item) if self.checks else to_cell(item)
        known = self.got.get(name)
        if name in self.written:
            _list(name, self.written[name]).append(item)
        elif known is not None and known.before is not None:
            _list(name, known.value).append(item)
        elif (changed := self._changed_default(name)) is not None:
            _list(name, changed).append(item)
        else:
            found = self.values.read(name)
            if found is not None and not found[2] and not is_list(found[0]):
                _list(name, from_cells(name, found[0], ()))
            self.got.pop(name, None)  # it was looked for and not there: an append still never conflicts
            self.appends.append(("append", name, cell))

    def names(self) -> list[str]:
        return list(dict.fromkeys([*self.values.names(), *self.written, *(op[1] for op in self.appends)]))

    def has(self, name: str) -> bool:
        known = self.got.get(name)
        if name in self.written or (known is not None and known.before is not None):
            return True
        return any(op[1] == name for op in self.appends) or self.values.read(name) is not None

    def still_running(self) -> None:
        if self.over is not None:
            raise self.over

    def live_values(self) -> LiveValues:
        """Return the record of the live values, also if there is none yet."""
        if self.live is None:
            self.live = LiveValues(self.values, self.got)
        return self.live

    def asking(self) -> Asks:
        """Return the record of what else the body asks for."""
        self.still_running()
        if self.asks is None:
            self.asks = Asks()
        return self.asks

    # --- what the engine calls ---------------------------------------------------------

    def effects(self, result: Cell = EMPTY_LIST) -> Effects:
        """Return all that the commit has to carry out; raise NotStorable for what it cannot keep."""
        changed = self.got or self.written or self.live or self.appends or self.asks
        if not changed and type(result) is bytes:
            return NO_EFFECTS
        ops = self._changes()
        if self.checks and self.written and self.claim.spec.cycle == 0:  # not in each round: it costs a walk
            self._report_copies(ops)
        if not self.values.shares:
            ops = self.live_values().bundled(ops, self.written.keys(), self.claim.spec.task_id, result)
        asks = self.asks
        if asks is None:
            return new(Effects, (tuple(ops), *NO_EFFECTS[1:]))
        nexts, again = asks.nexts, asks.again
        if self.values.shares:  # what a task is given is a copy, as it is in Redis
            nexts = [one._replace(data=apart(one.data)) if one.data else one for one in nexts]
            again = apart(again) if again else again
        spawned = tuple(one for made in asks.spawned.values() for one in made) if asks.spawned else ()
        return Effects(tuple(ops), tuple(nexts), spawned, again, asks.terminate, asks.request)

    def end(self, error: errors.GraflowError) -> None:
        """End the attempt: whatever its body calls from now on is refused."""
        self.over = error

    def _changes(self) -> list[Op]:
        ops: list[Op] = []
        for name, got in self.got.items():
            if name in self.written or got.before is None:
                continue
            if isinstance(got.before, Live):
                if self.values.shares or self.live_values().changed(name, got.value):
                    ops.append(("put", name, got.before, got.version))
            elif not is_atom(got.value):
                cell = _cell(name, got.value, self.checks)
                if cell != got.before:
                    ops.append(("put", name, cell, got.version))
        for name in self.defaults:
            changed = None if name in self.written else self._changed_default(name)
            if changed is not None:
                appended = any(op[1] == name for op in self.appends)
                value = _list(name, changed) if appended else changed
                ops.append(("put", name, _cell(name, value, self.checks), 0))
        for name, value in self.written.items():
            known = self.got.get(name)
            ops.append(("put", name, _cell(name, value, self.checks), -1 if known is None else known.version))
        ops += self.appends
        return ops

    def _report_copies(self, ops: Sequence[Op]) -> None:
        """Warn of a live value that holds a plain one: the session keeps a copy of the plain one."""
        live = {op[1]: op[2].value for op in ops if op[0] == "put" and isinstance(op[2], Live)}
        if not live:
            return
        mine = {n: g.value for n, g in self.got.items() if not isinstance(g.before, Live)} | self.written
        plain = {n: v for n, v in mine.items() if type(v) in (list, dict, set, bytearray) and n not in live}
        live = {name: value for name, value in live.items() if name in self.written}
        if not live or not plain:
            return
        for name, holder in copied(plain, live):
            _log.warning(
                "%s holds an object of %s, which is a plain value and is kept as a copy: a change of one "
                "does not reach the other. Set both under one name.",
                holder,
                name,
                extra={"task": self.claim.spec.task_id},
            )


_NONE_GIVEN: dict[str, list[tuple[Any, bytes]]] = {}  # of all attempts that were given no default: stays so


def _cell(name: str, value: Any, check: bool) -> Cell:
    cell = to_cell(value)
    if check and not isinstance(cell, bytes):
        check_storable(name, value)
    return cell


def has_live(cell: Cell, items: Sequence[Cell]) -> bool:
    """Return True if the value of a cell, or one of the items appended to it, is live."""
    return not isinstance(cell, bytes) or (bool(items) and any(isinstance(item, Live) for item in items))


def is_list(cell: Cell) -> bool:
    """Return True if a cell holds a list; the first byte of a plain one says so."""
    if isinstance(cell, Live):
        return isinstance(cell.value, list)
    return 0x90 <= cell[0] <= 0x9F or cell[0] in (0xDC, 0xDD)


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{name!r} is a {type(value).__name__}; only lists can be appended to.")
    return value


def mark(value: Any) -> bytes:
    """Return bytes that differ when the value does; none of what cannot be stored."""
    cell = to_cell(value)
    return cell if isinstance(cell, bytes) else _digest(value)


def from_cells(name: str, cell: Cell, items: Sequence[Cell]) -> Any:
    """Return the value of a cell and of what was appended to it."""
    value = decode(cell) if isinstance(cell, bytes) else cell.value
    if items:
        value = [*_list(name, value), *(decode(i) if isinstance(i, bytes) else i.value for i in items)]
    return value


def digest_of(cell: Cell) -> str:
    """Return the digest of an input, which a resumed session compares."""
    if isinstance(cell, Live):
        return live_digest(cell.value).hex()
    return hashlib.blake2b(cell, digest_size=16).hexdigest()


def read_only(value: Any) -> Any:
    """Return arrays as views that cannot be written through, other objects as they are."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        view = value.view()
        view.setflags(write=False)
        return view
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
            digest = _digest(value)
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
            if settled and _digest(value) != before:
                error = errors.ReadOnlyChanged(
                    f"Task {self._task!r} changed {name!r}, which it had read-only: that would be lost.",
                    hint="Work on a copy, or get it from the channel without readonly=True.",
                    task=self._task,
                    name=name,
                )
                error.__cause__ = cause
                return error
        return None


def _digest(value: Any) -> bytes:
    try:
        return live_digest(value)
    except errors.NotStorable:  # durability="none": nothing that can be compared
        return b""
