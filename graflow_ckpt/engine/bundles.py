"""Bundles: the names of a session whose live values share, and what of them a journal record holds.

    channel.set("model", model)                   # a bundle of one
    channel.set("opt", SGD(model.parameters()))   # one bundle of both: one pickle with two roots

Promise: what is one object in the session is one after a replay. A bundle is recorded as a whole, at
one moment, or not at all: while another attempt holds one of its values, a checkpoint takes its place.
A name leaves its bundle when another object is set under it. What is only rewired inside stays in it,
which costs a larger record and is never wrong.

Sharing is looked for when a value is written: a table holds the ids that each bundle had in its last
pickle. An id that is known from another bundle is a suspicion, and a walk of both decides. Values that
were not pickled in this process are walked once. While there is one live value there is no table.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from operator import is_
from typing import Any

from graflow_ckpt.checkpoint.pickles import Memo
from graflow_ckpt.checkpoint.sharing import lasting, reach, shares
from graflow_ckpt.core.errors import NotStorable
from graflow_ckpt.core.facts import RESULT, Cell, Live, Op
from graflow_ckpt.core.state import SessionState

Elsewhere = Callable[[str], bool]
"""Tells if an attempt other than the one that commits holds the value of that name."""


class Unrecordable(Exception):
    """No record can hold a change: a checkpoint has to."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name = name
        self.why = why


class TooLarge(Unrecordable):
    """A change that the checkpoint holds as it was pickled: it is known then."""


class Bundle:
    """Names that are written together, and what their last pickle was."""

    __slots__ = ("digest", "ids", "large", "names", "shape")

    def __init__(self, *names: str) -> None:
        self.names = [*names]
        self.ids: set[int] | None = None  # None: not walked
        self.shape: int | None = None
        self.digest: bytes | None = None  # of what the journal has
        self.large = False  # its last pickle was too large for a record


class Bundles:
    """The bundles of one session, and the table of what they hold."""

    def __init__(self, state: SessionState, *, stop: bool = False) -> None:
        """`stop`: what is too large for a record is not pickled to its end, nor looked at again."""
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
        """These are not in the journal: a checkpoint will have them."""
        for name in self.touched(ops):
            for bundle in self.written(name):
                self.unknown(bundle)

    def touched(self, ops: Sequence[Op]) -> dict[str, bool]:
        """The names that ops have written, in order; True for a result, which is recorded in any case."""
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

    # --- what stands under a name ------------------------------------------------------

    def cells(self, name: str) -> list[Cell]:
        found = self._state.values.get(name)
        return [] if found is None else [found[0], *self._state.appended.get(name, ())]

    def objects(self, names: Iterable[str]) -> list[Any]:
        return [cell.value for name in names for cell in self.cells(name) if isinstance(cell, Live)]

    def of(self, name: str) -> Bundle | None:
        return self._of.get(name)

    def roots(self, name: str) -> list[Any]:
        """The objects as they were when they were last written."""
        return self._roots.get(name, [])

    @property
    def many(self) -> bool:
        """Whether live values stand under several names."""
        return len(self._of) > 1

    def is_alone(self, bundle: Bundle) -> bool:
        """Whether nothing live stands under another name."""
        return len(self._of) == len(bundle.names)

    def written(self, name: str) -> list[Bundle]:
        """The bundles that a write of the name concerns: its own, if anything live stands under it, and the
        rest of the one that it leaves, because another object stands there now."""
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
        bundle.digest = bundle.shape = None
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
        """The bundles that have met one of these ids, which this one has not had yet; `own`: itself, too."""
        new = ids if own else ids - (bundle.ids or set())
        found = dict.fromkeys(self._at[number] for number in self._at.keys() & new)
        return [one for one in found if own or one is not bundle]

    def index(self, bundle: Bundle, ids: set[int] | None) -> None:
        """These are the ids of the bundle now; None: they are not known."""
        for number in (bundle.ids or set()) - (ids or set()):
            if self._at.get(number) is bundle:
                del self._at[number]
        bundle.ids = ids
        if ids is None:
            bundle.shape = None
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
                        other.shape = None
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
                other.shape = None
        return joined

    def reach(self, name: str, roots: Sequence[Any]) -> Memo:
        try:
            return reach(roots, name)
        except NotStorable as error:  # an attempt is changing it
            raise Unrecordable(name, "beside a value on loan to another task") from error

    def _join(self, bundle: Bundle, other: Bundle) -> None:
        bundle.names += other.names
        bundle.digest = bundle.shape = None
        self._of.update(dict.fromkeys(other.names, bundle))
        self._drop(other)
        other.names = []

    def _drop(self, bundle: Bundle) -> None:
        self.index(bundle, set())

    def unknown(self, bundle: Bundle) -> None:
        if bundle.names:
            self.index(bundle, None)
            bundle.digest = bundle.shape = None
