"""One attempt of a task: what it has read, changed and asked for, until it is committed.

Nothing of it is in the session before the commit. What was got and changed in place counts as
set; what was got before it is set is written with the version it was got at, so that a sibling
that committed meanwhile is noticed and nothing is lost.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from graflow_ckpt.checkpoint.values.codec import FORGOTTEN, apart, check_storable, decode, is_atom, to_cell
from graflow_ckpt.checkpoint.values.pickles import live_digest
from graflow_ckpt.checkpoint.values.sharing import copied
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
from graflow_ckpt.engine.body.live import (
    Got,
    LiveValues,
    Watch,
    as_list,
    digest_or_none,
    from_cells,
    has_live,
)
from graflow_ckpt.engine.body.random_state import States
from graflow_ckpt.engine.body.rounds import Answer, LeaveRounds, LoopHost, Loops, RoundEnd
from graflow_ckpt.sessions.protocol import Values

EMPTY_LIST = b"\x90"

_log = logging.getLogger("graflow_ckpt.engine")


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

    def leads_elsewhere(self) -> bool:
        """Return True if the body has asked for what follows its end."""
        return self.again is not None or self.terminate is not None or any(one.goto for one in self.nexts)

    def end(self, message: str) -> None:
        """Ask that no task is started any more."""
        self.terminate = message


class Defaults:
    """The defaults that a body was given for values that are not there: it may change them."""

    __slots__ = ("_given", "_task")

    def __init__(self, task: str) -> None:
        self._task = task
        self._given: dict[str, list[tuple[Any, bytes]]] = {}  # with what they were

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def take(self, name: str, default: Any) -> Any:
        """Return the default of this call, or an equal or changed one that the body has already."""
        changed = self.changed(name)
        if changed is not None:
            return changed
        if is_atom(default):
            return default
        if not isinstance(name, str):  # what is changed in it would be set
            raise no_name(name)
        before = mark(default)
        if not before:  # it need not be storable: only what is changed is kept
            return default
        known = self._given.setdefault(name, [])
        if all(value is not default for value, _ in known):
            known.append((default, before))
        same = (v for v, m in known if m == before and type(v) is type(default))
        return next(same, default)

    def changed(self, name: str) -> Any:
        """Return what the body has made of a default; None if it has changed none of them."""
        changed = [value for value, before in self._given.get(name, ()) if mark(value) != before]
        if len(changed) > 1:
            raise errors.NotStorable(
                f"Task {self._task!r} got {name!r} several times with different defaults, and "
                "changed more than one of them.",
                hint="Get it once, or set the value.",
                name=name,
                task=self._task,
            )
        return changed[0] if changed else None

    def lists(self, name: str) -> list[list[Any]]:
        return [value for value, _ in self._given.get(name, ()) if isinstance(value, list)]

    def forget(self, name: str) -> None:
        self._given.pop(name, None)


class Attempt:
    """The buffer between a body and its session."""

    __slots__ = (
        "appends", "asks", "checks", "claim", "defaults", "got", "live", "loops", "over", "values",
        "waiting", "watch", "written", "_digest",
    )  # fmt: skip

    def __init__(
        self, values: Values, claim: Claim, check: bool = True, digest: bool = False, watch: bool = False
    ) -> None:
        self.values = values
        self.loops: Loops | None = None  # made for the first one
        self.waiting: Callable[[Answer], None] | None = None  # its body, for the commit of a round
        self.claim = claim
        self.got: dict[str, Got] = {}
        self.live: LiveValues | None = None  # made for the first one
        self.defaults = Defaults(claim.spec.task_id)
        self.written: dict[str, Any] = {}
        self.appends: list[Op] = []
        self.asks: Asks | None = None
        self.over: errors.GraflowError | LeaveRounds | None = None  # every further call of the body raises it
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
            return self.defaults.take(name, default) if got.before is None else got.value
        found = self.values.read(name)
        own = [op[2] for op in self.appends if op[1] == name]
        if found is None and not own:
            if not readonly:
                self.got[name] = Got(None, None, 0)
                return self.defaults.take(name, default)
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

    def _own_list(self, name: str, own: list[Cell], readonly: bool) -> list[Any] | None:
        """Return a default that the body has, with what it has appended: both are one list."""
        value = self.defaults.changed(name)
        if value is None and not readonly:
            value = next(iter(self.defaults.lists(name)), None)
        if value is None:
            return None
        whole = as_list(name, value)
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
            live.digest(name, value, live_digest if self.checks else digest_or_none)
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
            as_list(name, self.written[name]).append(item)
        elif known is not None and known.before is not None:
            as_list(name, known.value).append(item)
        elif (changed := self.defaults.changed(name)) is not None:
            as_list(name, changed).append(item)
        else:
            found = self.values.read(name)
            if found is not None and not found[2] and not is_list(found[0]):
                as_list(name, from_cells(name, found[0], ()))
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

    def effects(self, result: Cell = EMPTY_LIST, more: Sequence[Op] = ()) -> Effects:
        """Return what the commit has to carry out, and `more`; raise NotStorable for what it cannot keep."""
        changed = self.got or self.written or self.live or self.appends or self.asks or more
        if not changed and type(result) is bytes:
            return NO_EFFECTS
        ops = [*self._changes(), *more]
        again = self.claim.spec.cycle or self.claim.rounds
        if self.checks and self.written and not again:  # not in each round: it costs a walk
            _report_copies(self, ops)
        if not self.values.shares:
            ops = self.live_values().bundled(ops, self.written.keys(), self.claim.spec.task_id, result)
        asks = self.asks
        if asks is None:
            return new(Effects, (tuple(ops), *NO_EFFECTS[1:]))
        nexts, data = asks.nexts, asks.again
        if self.values.shares:  # what a task is given is a copy, as it is in Redis
            nexts = [one._replace(data=apart(one.data)) if one.data else one for one in nexts]
            data = apart(data) if data else data
        spawned = tuple(one for made in asks.spawned.values() for one in made) if asks.spawned else ()
        return Effects(tuple(ops), tuple(nexts), spawned, data, asks.terminate, asks.request)

    def end(self, error: errors.GraflowError | LeaveRounds) -> None:
        """End the attempt: whatever its body calls from now on is refused."""
        self.over = error
        if (waiting := self.waiting) is not None:
            waiting(Answer())

    def loops_of(self, host: LoopHost, began: States | None, thread: int) -> Loops:
        """Return the record of its loops, also if there is none yet."""
        if self.loops is None:
            self.loops = Loops(self, host, began, thread)
        return self.loops

    def waits_for(self, answer: Callable[[Answer], None] | None) -> None:
        """Note how a body that waits for the commit of a round is woken."""
        self.waiting = answer
        if answer is not None and self.over is not None:  # just now
            answer(Answer())

    def committed(self, end: RoundEnd, version: Version) -> None:
        """Continue from what a round has committed: it is the base of what comes next."""
        written = {op[1]: op[2] for op in end.effects.ops if op[0] == "put"}
        for name, cell in written.items():
            known = self.got.get(name)
            if name in self.written:
                value = self.written[name]
            elif known is not None and known.before is not None:
                value = known.value
            elif (value := self.defaults.changed(name)) is None:
                continue  # a loop keeps it, or it came with another one
            lent = known is not None and isinstance(known.before, Live)
            if isinstance(cell, Live):
                if not lent:
                    self.values.lend(name)
                self.live_values().committed(name, value)
            elif lent:
                self.values.give_back([name])
            self.got[name] = Got(value, cell, version)
            self.defaults.forget(name)
        self.values.committed(written, [op[1] for op in end.effects.ops if op[0] == "append"], version)
        self.written, self.appends, self.asks = {}, [], None
        spec = self.claim.spec
        if spec.retry_count or spec.crashes:
            spec = spec._replace(retry_count=0, crashes=0)
        self.claim = Claim(spec, self.claim.number, end.where)

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
            changed = None if name in self.written else self.defaults.changed(name)
            if changed is not None:
                appended = any(op[1] == name for op in self.appends)
                value = as_list(name, changed) if appended else changed
                ops.append(("put", name, _cell(name, value, self.checks), 0))
        for name, value in self.written.items():
            known = self.got.get(name)
            ops.append(("put", name, _cell(name, value, self.checks), -1 if known is None else known.version))
        ops += self.appends
        return ops


def _cell(name: str, value: Any, check: bool) -> Cell:
    cell = to_cell(value)
    if check and not isinstance(cell, bytes):
        check_storable(name, value)
    return cell


def is_list(cell: Cell) -> bool:
    """Return True if a cell holds a list; the first byte of a plain one says so."""
    if isinstance(cell, Live):
        return isinstance(cell.value, list)
    return 0x90 <= cell[0] <= 0x9F or cell[0] in (0xDC, 0xDD)


def mark(value: Any) -> bytes:
    """Return bytes that differ when the value does; none of what cannot be stored."""
    cell = to_cell(value)
    return cell if isinstance(cell, bytes) else digest_or_none(value)


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


def _report_copies(attempt: Attempt, ops: Sequence[Op]) -> None:
    """Warn of a live value that holds a plain one: the session keeps a copy of the plain one."""
    live = {op[1]: op[2].value for op in ops if op[0] == "put" and isinstance(op[2], Live)}
    if not live:
        return
    mine = {n: g.value for n, g in attempt.got.items() if not isinstance(g.before, Live)} | attempt.written
    plain = {n: v for n, v in mine.items() if type(v) in (list, dict, set, bytearray) and n not in live}
    live = {name: value for name, value in live.items() if name in attempt.written}
    if not live or not plain:
        return
    for name, holder in copied(plain, live):
        _log.warning(
            "%s holds an object of %s, which is a plain value and is kept as a copy: a change of one "
            "does not reach the other. Set both under one name.",
            holder,
            name,
            extra={"task": attempt.claim.spec.task_id},
        )
