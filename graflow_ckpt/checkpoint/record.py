"""The live values that a commit has written, as a journal record holds them.

    kept = record(bundles, ops, elsewhere)        # ops as `journal.pack` takes them

Each bundle that was written is pickled once, with all that shares with it. One whose pickle is as the
journal has it is left out; items that were appended are recorded alone, unless they share with anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from operator import is_
from typing import Any

from graflow_ckpt.checkpoint.journal import SIZE_LIMIT, CellPickle
from graflow_ckpt.checkpoint.values.digest import TooLong
from graflow_ckpt.checkpoint.values.pickles import Memo, Once, collector_at_rest, pickle_once
from graflow_ckpt.checkpoint.values.sharing import lasting, reach, shares
from graflow_ckpt.core.errors import NotStorable
from graflow_ckpt.core.facts import RESULT, Cell, Live, Op
from graflow_ckpt.core.state import SessionState


def record(
    bundles: Bundles, ops: Sequence[Op], elsewhere: Elsewhere, in_hand: Collection[str] | None = None
) -> list[Op]:
    """Return the ops, already applied, as a record holds them; Unrecordable if none can.

    `in_hand`: the names of all live values that the attempt has seen, if that is known.
    """
    touched = bundles.touched(ops)
    if not touched:
        return [*ops]
    commit = _Commit(bundles, elsewhere, in_hand)
    try:
        with collector_at_rest(bundles.many):  # a memo is copied as a tuple for each object
            return commit.record(ops, touched)
    except TooLargeForRecord:
        raise
    except BaseException:
        for bundle in commit.dirty:
            bundles.unknown(bundle)
        raise


Elsewhere = Callable[[str], bool]
"""A test whether an attempt other than the one that commits holds the value of that name."""


class Unrecordable(Exception):
    """No record can hold a change: a checkpoint has to."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name = name
        self.why = why


class TooLargeForRecord(Unrecordable):
    """A change that the checkpoint holds as it was pickled: it is known then."""


class Bundle:
    """Names that are written together, and what their last pickle was."""

    __slots__ = ("digest", "ids", "large", "names", "shape")

    def __init__(self, *names: str) -> None:
        self.names = [*names]
        self.ids: set[int] | None = None  # None: not walked
        self.shape: int | None = None
        self.digest: bytes | None = None  # of what the journal has; None: no pickle of the whole
        self.large = False  # its last pickle was too large for a record

    def forget(self) -> None:
        """Forget the last pickle: what it is now has to be pickled, whatever it was."""
        self.digest = self.shape = None

    def take_in(self, other: Bundle) -> None:
        """Take in another bundle: one pickle holds the names of both from here on."""
        self.names += other.names
        self.forget()
        other.names.clear()


class Bundles:
    """The names of a session whose live values share, and the table of what each bundle of them holds.

        channel.set("model", model)                   # a bundle of one
        channel.set("opt", SGD(model.parameters()))   # one bundle of both: one pickle with two roots

    Promise: what is one object in the session is one after a replay. A bundle is recorded as a whole, at one
    moment, or not at all: while another attempt holds one of its values, a checkpoint takes its place. A name
    leaves its bundle when another object is set under it. What is only rewired inside stays in it, which
    costs a larger record and is never wrong.

    Sharing is looked for when a value is written: a table holds the ids that each bundle had in its last
    pickle. An id that is known from another bundle is a suspicion, and a walk of both decides. Values that
    were not pickled in this process are walked once. While there is one live value there is no table.
    """

    def __init__(self, state: SessionState, *, stop: bool = False) -> None:
        """Enter the live values.

        `stop`: what is too large for a record is not pickled to its end, nor looked at again.
        """
        self._state = state
        self.stop = stop
        self._of: dict[str, Bundle] = {}
        self._roots: dict[str, list[Any]] = {}  # as they were last written
        self._at: dict[int, Bundle] = {}
        self._unwalked: dict[Bundle, None] = {}
        for name in state.values:
            if self.objects([name]):
                self._enter(name)

    def forget(self, ops: Sequence[Op]) -> None:
        """Forget these ops, which are not in the journal: a checkpoint will have them."""
        for name in self.touched(ops):
            for bundle in self.written(name):
                self.unknown(bundle)

    def touched(self, ops: Sequence[Op]) -> dict[str, bool]:
        """Return the names that ops have written, in order; True for a result, which is always recorded."""
        names: dict[str, bool] = {}
        for op in ops:
            kind = op[0]
            if kind in ("put", "append"):
                names[op[1]] = False
            elif kind == "end" and op[3] == "completed" and (self._of or isinstance(op[4], Live)):
                names[next(reversed(self._state.completed)) + RESULT] = True
            elif kind == "again":
                names |= dict.fromkeys((f"{task}{RESULT}" for task in op[1:]), False)
        return names

    # --- what is under a name ----------------------------------------------------------

    def cells(self, name: str) -> list[Cell]:
        found = self._state.values.get(name)
        return [] if found is None else [found[0], *self._state.appended.get(name, ())]

    def objects(self, names: Iterable[str]) -> list[Any]:
        return [cell.value for name in names for cell in self.cells(name) if isinstance(cell, Live)]

    def of(self, name: str) -> Bundle | None:
        return self._of.get(name)

    def roots(self, name: str) -> list[Any]:
        """Return the objects as they were when they were last written."""
        return self._roots.get(name, [])

    @property
    def many(self) -> bool:
        """Return whether live values are under several names."""
        return len(self._of) > 1

    def is_alone(self, bundle: Bundle) -> bool:
        """Return whether nothing live is under another name."""
        return len(self._of) == len(bundle.names)

    def written(self, name: str) -> list[Bundle]:
        """Return the bundles that a write of the name concerns: its own, if anything live is under it, and
        the rest of the one that it leaves, because another object is there now."""
        bundle = self._of.get(name)
        roots = self.objects([name])
        if bundle is None:
            return [self._enter(name)] if roots else []
        before = self._roots[name]
        if len(roots) >= len(before) and all(map(is_, before, roots)):
            self._roots[name] = roots
            return [bundle]
        del self._of[name], self._roots[name]
        bundle.names.remove(name)
        bundle.forget()
        if not bundle.names:
            self._drop(bundle)
        rest = [bundle] if bundle.names else []
        return [self._enter(name), *rest] if roots else rest

    def _enter(self, name: str) -> Bundle:
        self._roots[name] = self.objects([name])
        bundle = self._of[name] = Bundle(name)
        self._unwalked[bundle] = None
        return bundle

    # --- the table ---------------------------------------------------------------------

    def suspects(self, bundle: Bundle, ids: set[int], own: bool = False) -> list[Bundle]:
        """Return the bundles that have met one of these ids, new to this one; `own`: itself, too."""
        new = ids if own else ids - (bundle.ids or set())
        found = dict.fromkeys(self._at[number] for number in self._at.keys() & new)
        return [one for one in found if own or one is not bundle]

    def index(self, bundle: Bundle, ids: set[int] | None, shape: int | None = None) -> None:
        """Note the ids of the bundle now; None: they are not known."""
        for number in (bundle.ids or set()) - (ids or set()):
            if self._at.get(number) is bundle:
                del self._at[number]
        bundle.ids, bundle.shape = ids, shape
        if ids is None:
            self._unwalked[bundle] = None
        else:
            self._at.update(dict.fromkeys(ids, bundle))
            self._unwalked.pop(bundle, None)

    def walk_others(self, dirty: Container[Bundle]) -> None:
        """Look once at what has not been pickled in this process, but for what will be now."""
        for bundle in [*self._unwalked]:
            while bundle.names and bundle not in dirty:
                ids = lasting(self.reach(bundle.names[0], self.objects(bundle.names)))
                suspects = self.suspects(bundle, ids)
                for other in suspects:
                    if other in dirty:  # it will find this one
                        self.index(other, None)
                if not self.joins(bundle, [one for one in suspects if one not in dirty]):
                    self.index(bundle, ids)
                    break

    def joins(self, bundle: Bundle, suspects: Sequence[Bundle]) -> bool:
        """Take in those that share; the ids of the others are those that are found now."""
        if not suspects:
            return False
        joined = False
        mine = self.reach(bundle.names[0], self.objects(bundle.names))
        for other in suspects:
            theirs = self.reach(other.names[0], self.objects(other.names))
            if shares(mine, theirs):
                joined = True
                self._join(bundle, other)
            else:
                self.index(other, lasting(theirs))
        return joined

    def reach(self, name: str, roots: Sequence[Any]) -> Memo:
        try:
            return reach(roots, name)
        except NotStorable as error:  # an attempt is changing it
            raise Unrecordable(name, "beside a value on loan to another task") from error

    def _join(self, bundle: Bundle, other: Bundle) -> None:
        self._of.update(dict.fromkeys(other.names, bundle))
        self._drop(other)
        bundle.take_in(other)

    def _drop(self, bundle: Bundle) -> None:
        self.index(bundle, set())

    def unknown(self, bundle: Bundle) -> None:
        if bundle.names:
            self.index(bundle, None)
            bundle.forget()


class _Commit:
    """The part of each bundle that one record holds."""

    def __init__(self, bundles: Bundles, elsewhere: Elsewhere, in_hand: Collection[str] | None) -> None:
        self.dirty: dict[Bundle, Once | None] = {}  # that are pickled, and their pickles
        self._bundles = bundles
        self._elsewhere = elsewhere
        self._in_hand = in_hand
        self._grows = False  # live items are appended, which are looked at last
        self._left: dict[str, list[Any]] = {}  # objects that are under these names no more
        self._items: dict[str, list[CellPickle]] = {}  # that were appended, and share with nothing

    def record(self, ops: Sequence[Op], touched: dict[str, bool]) -> list[Op]:
        grown = _grown(ops, touched)
        for name in touched:
            if name not in grown:
                self._write(name)
        self.dirty = {bundle: None for bundle in self.dirty if bundle.names}
        self._grows = any(grown.values())
        if self._bundles.many or self._grows:
            self._bundles.walk_others(self.dirty)
            self._find_left()
        for bundle in [*self.dirty]:
            if bundle.names:
                self._settle(bundle)
        for name, count in grown.items():
            self._grow(name, count)
        parts = self._parts(touched)
        kept = [self._kept(op, parts) for op in ops]
        return [op for op in kept if op is not None] + self._canonical(parts, touched)

    # --- pickling ----------------------------------------------------------------------

    def _write(self, name: str) -> None:
        bundle, roots = self._bundles.of(name), self._bundles.roots(name)
        known = bundle is not None and bundle.ids is not None
        self.dirty |= dict.fromkeys(self._bundles.written(name))
        if bundle is None or name in bundle.names:
            return
        if bundle.names and self._elsewhere(name):
            raise _on_loan(name)  # the attempt that has it may be changing what the others hold
        if not known:
            self._left[name] = roots

    def _find_left(self) -> None:
        """Find what shares with an object that has been replaced, and was not looked at before."""
        for name, roots in self._left.items():
            mine = self._bundles.reach(name, roots)
            for other in self._bundles.suspects(Bundle(), lasting({**mine})):
                if shares(mine, self._bundles.reach(other.names[0], self._bundles.objects(other.names))):
                    if self._elsewhere(name):
                        raise _on_loan(name)
                    self.dirty[other] = None

    def _settle(self, bundle: Bundle) -> None:
        """Pickle a bundle, with all that shares with it."""
        bundles = self._bundles
        while True:
            once = self.dirty[bundle] = self._pickled(bundle)
            if bundles.is_alone(bundle) and not self._grows:
                bundles.index(bundle, None)  # it is walked when another value comes
                return
            if once.digest == bundle.digest and self._saw_only(bundle):
                return
            memo = once.memo()
            shape = hash(tuple(memo))
            if shape == bundle.shape and once.digest == bundle.digest:
                return
            ids = lasting(memo)
            if not bundles.joins(bundle, bundles.suspects(bundle, ids)):
                bundles.index(bundle, ids, shape)
                return
            self.dirty = {one: once for one, once in self.dirty.items() if one.names}

    def _saw_only(self, bundle: Bundle) -> bool:
        """Return whether the attempt had no object of another value that could have replaced an equal one."""
        if self._in_hand is None or len(self.dirty) > 1:
            return False
        return bundle.ids is not None and {*self._in_hand} <= {*bundle.names}

    def _pickled(self, bundle: Bundle) -> Once:
        for name in bundle.names:
            if self._elsewhere(name):
                raise _on_loan(name)
        roots = self._bundles.objects(bundle.names)
        return self._once(roots if len(roots) > 1 else roots[0], bundle, bundle.names[0])

    def _once(self, value: Any, bundle: Bundle, name: str) -> Once:
        stop = self._bundles.stop
        try:
            if stop and bundle.large:  # and will be: it is not even pickled to find out
                raise TooLong
            return pickle_once(value, SIZE_LIMIT, name, stop=stop)
        except TooLong:
            bundle.large = True
            raise Unrecordable(name, f"more than {SIZE_LIMIT} bytes, too many for a journal record") from None

    def _grow(self, name: str, count: int) -> None:
        """Record appended items alone, unless they share with anything."""
        bundles = self._bundles
        if not count:
            for bundle in bundles.written(name):
                bundle.digest = None
            return
        (bundle,) = bundles.written(name)
        bundle.forget()
        roots = bundles.objects([name])
        body, items = roots[:-count], roots[-count:]
        once = self._once(items if count > 1 else items[0], Bundle(), name)
        if body or not bundles.is_alone(bundle):
            ids = lasting(once.memo())
            mine = bundles.reach(name, items)
            for other in bundles.suspects(bundle, ids, own=True):
                rest = [body] if other is bundle else []
                rest += [bundles.objects([one]) for one in other.names if one != name]
                if shares(mine, bundles.reach(name, [root for roots in rest for root in roots])):
                    self.dirty[bundle] = None
                    self._settle(bundle)
                    return
            bundles.index(bundle, (bundle.ids or set()) | ids)
        if once.data is None:
            raise too_large(name, once.size)
        self._items[name] = _parts_of(once.data, count)

    # --- ops ---------------------------------------------------------------------------

    def _parts(self, touched: dict[str, bool]) -> dict[str, list[CellPickle]]:
        """Return the pickled cells of all names that the record has to hold."""
        parts: dict[str, list[CellPickle]] = {}
        large: tuple[str, int] | None = None
        for bundle, once in self.dirty.items():
            assert once is not None
            cells = {name: self._bundles.objects([name]) for name in bundle.names}
            if once.digest == bundle.digest and not any(touched.get(name) for name in cells):
                parts |= {name: [] for name in cells}
                continue
            plain = any(len(self._bundles.cells(name)) > 1 for name in cells)
            bundle.digest = None if plain else once.digest
            if once.data is None:
                large = (next((name for name in cells if name in touched), bundle.names[0]), once.size)
                continue
            found = iter(_parts_of(once.data, sum(map(len, cells.values()))))
            parts |= {name: [next(found) for _ in objects] for name, objects in cells.items()}
        if large is not None:
            raise too_large(*large)
        return parts

    def _kept(self, op: Op, parts: dict[str, list[CellPickle]]) -> Op | None:
        """Return an op as it is recorded: no base to check; None for what follows as a whole."""
        if op[0] == "put":
            return None if op[1] in parts else (*op[:3], -1)
        if op[0] == "append":
            if op[1] in parts:
                return None
            return (*op[:2], self._items[op[1]].pop(0)) if isinstance(op[2], Live) else op
        if op[0] == "end" and op[3] == "completed" and isinstance(op[4], Live):
            part = next((parts[one][0] for one in parts if parts[one] and self._is_of(one, op[4])), op[4])
            return (*op[:4], part)
        return op

    def _is_of(self, name: str, cell: Cell) -> bool:
        return name.endswith(RESULT) and self._bundles.cells(name)[0] is cell

    def _canonical(self, parts: dict[str, list[CellPickle]], touched: dict[str, bool]) -> list[Op]:
        """Return ops that put names as they are now: those of a bundle that were not touched are as new."""
        ops: list[Op] = []
        for name, pickled in parts.items():
            if not pickled or touched.get(name):
                continue
            found, cells = iter(pickled), self._bundles.cells(name)
            first, *items = [next(found) if isinstance(cell, Live) else cell for cell in cells]
            ops.append(("put", name, first, -1))
            ops += [("append", name, item) for item in items]
        return ops


def _grown(ops: Sequence[Op], touched: dict[str, bool]) -> dict[str, int]:
    """Return names that were only appended to, and the number of live items."""
    put = {op[1] for op in ops if op[0] == "put"} | {name for name, result in touched.items() if result}
    grown: dict[str, int] = {}
    for op in ops:
        if op[0] == "append" and op[1] not in put:
            grown[op[1]] = grown.get(op[1], 0) + isinstance(op[2], Live)
    return grown


def _parts_of(pickle: bytes, count: int) -> list[CellPickle]:
    return [CellPickle(pickle, index if count > 1 else None) for index in range(count)]


def plain(ops: Sequence[Op]) -> list[Op]:
    """Return the ops of a transition that has written nothing live, as they are recorded."""
    for op in ops:
        if op[0] in ("put", "append") and isinstance(op[2], Live):
            raise Unrecordable(op[1], "made while no run drove the session")
    return [(*op[:3], -1) if op[0] == "put" else op for op in ops]


def _on_loan(name: str) -> Unrecordable:
    return Unrecordable(name, "of a value on loan to another task")


def too_large(name: str, size: int) -> TooLargeForRecord:
    return TooLargeForRecord(name, f"{size} bytes, too many for a journal record")
