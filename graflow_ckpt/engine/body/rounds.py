"""Loops inside a task whose rounds are committed: `for epoch in context.rounds(range(100)):`.

    the round ends -> its commit is posted -> the thread that commits answers -> the next round begins

A body that runs again, after whatever has happened, continues each loop at its first round that is not
committed. Where its loops are is part of the session (`where`, JSON: a list of places, outer loops first):

    name    the path of the loop, "epochs/batches" for one within another
    next    the round that comes next      of     how many there are, null if that is not known
    items   what the first `next` items were: "range START STEP", or a digest
    state   the names of what it keeps     left   it was left by break, and yields nothing any more

What a loop keeps are values of the session named TASK.__rounds__.PATH:NAME, which end with the task.

Not here: the thread that commits (engine/between.py).
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from graflow_ckpt.checkpoint.values.codec import apart, check_storable, to_cell
from graflow_ckpt.core import arguments
from graflow_ckpt.core.errors import GraphError, NotStorable
from graflow_ckpt.core.facts import Cell, Effects, Left, Live, Version
from graflow_ckpt.core.task import Task
from graflow_ckpt.engine.body.bind import is_coroutine
from graflow_ckpt.engine.body.live import from_cells
from graflow_ckpt.engine.body.loop_values import CONTROL, END, Items, checked_state, load, state_of
from graflow_ckpt.engine.body.random_state import States, cell_of, look, restore_random

if TYPE_CHECKING:
    from graflow_ckpt.engine.body.attempt import Attempt

log = logging.getLogger("graflow_ckpt.task")

T = TypeVar("T")

WITHIN: Final = "/"
"""Stands between the names of a loop and of one within it."""

_SUFFIX = ".__rounds__"
_KEY: Final = ":"  # stands before the name of what a loop keeps
_BEGAN, _RANDOM = "__began__", "__random__"


class LeaveRounds(BaseException):
    """Leaves a body between two rounds, through its `finally`; no `except Exception` catches it."""

    def __init__(self, left: Left) -> None:
        super().__init__("the task was told to stop between two rounds; what it has committed stays")
        self.left = left


class LoopHost(Protocol):
    """The run that a loop belongs to."""

    keeps_random: bool

    def task_of(self, name: str) -> Task | None: ...

    def progress(self, task: str, done: float, total: float | None) -> None: ...

    def commit_round(self, end: RoundEnd) -> None:
        """Have the thread that commits do so; the answer comes by `end`."""
        ...

    def look_again(self) -> None:
        """Wake the run: a body has left its loop."""
        ...

    @property
    def stopping(self) -> bool: ...


class Answer(NamedTuple):
    """The answer to the commit of a round."""

    version: Version = 0  # of what it has written
    error: Exception | None = None  # raised in the body; nothing was committed
    leave: Left | None = None


@dataclass(slots=True, eq=False)
class RoundEnd:
    """A round that is over: what its commit has to carry out, and who waits for the answer."""

    attempt: Attempt
    effects: Effects
    where: str
    names: tuple[str, ...]
    answer: Callable[[Answer], None]


@dataclass(slots=True)
class LoopPlace:
    """Where a loop is."""

    name: str
    next: int = 0
    of: int | None = None
    items: str = ""
    state: list[str] = field(default_factory=list)
    left: bool = False

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "next": self.next, "of": self.of, "items": self.items}
        return found | ({"state": self.state} if self.state else {}) | ({"left": True} if self.left else {})


def place_of(where: str) -> list[int]:
    """Return a place that can be compared: a larger one is further."""
    return [one.next for one in places_of(where)]


def places_of(where: str) -> list[LoopPlace]:
    return [LoopPlace(**one) for one in json.loads(where)] if where else []


class Loops:
    """The loops of one attempt."""

    def __init__(self, attempt: Attempt, host: LoopHost, began: States | None, thread: int) -> None:
        """`thread`: of the body."""
        spec = attempt.claim.spec
        self.attempt = attempt
        self._host = host
        task = host.task_of(spec.task_id)
        self.is_coroutine = task is not None and is_coroutine(task.func)
        self.open: list[Rounds[Any]] = []  # outer ones first
        self.places = {one.name: one for one in places_of(attempt.claim.rounds)}
        self._task = spec.task_id
        self._prefix = spec.task_id + _SUFFIX + (f"[{spec.cycle}]" if spec.cycle else "")
        self._began = began  # the random state before the body, if it is known
        self._entered: set[str] = set()
        self._kept: dict[str, Cell] = {}  # as it was last committed
        self._left: dict[str, Cell] = {}  # of loops that were left since the last commit: what they keep
        self._thread = thread
        self._nested: set[str] = set()  # loops that have others within
        self._idle = 0  # commits that have kept nothing

    # --- entering ------------------------------------------------------------------------

    def enter(
        self, items: Iterable[T], name: str | None, state: Mapping[str, Any] | None, every: int
    ) -> Rounds[T]:
        path = self._path(name)
        self.check_thread()
        if path in self._entered:
            which = f"named {path!r}" if path else "without a name"
            raise GraphError(
                f"Task {self._task!r} has two loops of rounds {which}.",
                hint="Give each a name of its own: context.rounds(items, name='epochs').",
                task=self._task,
            )
        own = dict(checked_state(state or {}))
        arguments.whole("rounds(every=)", every, least=1)
        found = Items(items)
        if not (found.indexed or name):
            raise GraphError(
                f"context.rounds was given a {type(items).__name__}, which is no sequence, and no name.",
                hint="Give a list, or a name: context.rounds(items, name='files'). What is committed is then "
                "skipped by reading it again.",
                task=self._task,
            )
        if self.open and self.open[-1].every > 1:
            raise GraphError(
                f"Task {self._task!r}: a loop with every={self.open[-1].every} has another one within.",
                hint="Give every= to the inner loop alone.",
                task=self._task,
            )
        self._entered.add(path)
        if self.open:
            self._nested.add(self.open[-1].path)
        members = {key: value for loop in self.open for key, value in loop.members.items()} | own
        place = self.places.get(path)
        begun: Rounds[T] = Rounds(self, path, found, members, int(every), place)
        if place is not None:
            self._continue(begun, place)
        return begun

    def check_thread(self) -> None:
        """Refuse another thread: the body's is the one that waits for commits."""
        if not self.is_coroutine and self._thread != threading.get_ident():
            raise GraphError(
                f"Task {self._task!r}: rounds belong to the thread of the task's body.",
                hint="Loop there; other threads may do the work of a round.",
                task=self._task,
            )

    def _path(self, name: str | None) -> str:
        if name is not None:
            arguments.kind("rounds(name=)", name, str, "a text")
            if not name or WITHIN in name or _KEY in name or CONTROL.search(name):
                raise GraphError(f"rounds(name={name!r}): a name is a text without '{WITHIN}' and '{_KEY}'.")
        outer = [self.open[-1].path] if self.open else []
        return WITHIN.join([*outer, name or ""]) if outer else name or ""

    def _continue(self, loop: Rounds[Any], place: LoopPlace) -> None:
        if not place.left:
            loop.items.skip(place.name, place.next, place.items, self._task)
        for key, value in loop.members.items():
            if key in place.state and (found := self._read(loop.path, key)) is not None:
                load(value, found, self._name(loop.path, key))

    def _read(self, path: str, key: str) -> Any:
        """Return what was kept, as a copy: the body gets parts of it in its hands."""
        name = self._name(path, key)
        found = self.attempt.values.read(name)
        return None if found is None else from_cells(name, apart(found[0]), ())

    def _name(self, path: str, key: str) -> str:
        return f"{self._prefix}{'.' if path else ''}{path}{_KEY}{key}"

    def restore_random(self, path: str, key: str = _RANDOM) -> None:
        """Restore the random state as it was when the loop was last committed."""
        found = self.attempt.values.read(self._name(path, key)) if self._host.keeps_random else None
        if found is not None and isinstance(found[0], bytes):
            restore_random(found[0])

    def restore_began(self) -> None:
        """Restore the random state with which the body was begun for the first time."""
        self.restore_random("", _BEGAN)

    # --- the end of a round --------------------------------------------------------------

    def begins(self, loop: Rounds[Any]) -> None:
        """Note that a round begins: from now on what the body has in its hands may be changed."""
        self._open(loop)
        if self.attempt.live is not None:
            self.attempt.live.touched()
        self._host.progress(self._task, loop.index, loop.items.count)

    def _open(self, loop: Rounds[Any]) -> None:
        if loop not in self.open:
            parent = loop.path.rpartition(WITHIN)[0] if WITHIN in loop.path else None
            if (self.open[-1].path if self.open else None) != parent:
                other = self.open[-1].path if self.open else ""
                raise GraphError(
                    f"Task {self._task!r}: the rounds of {loop.path!r} begin while those of {other!r} run.",
                    hint="Call context.rounds where its loop begins; to walk two things together, loop over "
                    "list(zip(a, b)).",
                    task=self._task,
                )
            self.open.append(loop)

    def stopping(self) -> bool:
        return self._host.stopping

    def ends(self, loop: Rounds[Any]) -> None:
        """Note that a round is over: the loops within begin again in the next one."""
        self._open(loop)  # it was left, and is continued
        del self.open[self.open.index(loop) + 1 :]
        self._forget_within(loop.path)

    def closes(self, loop: Rounds[Any]) -> None:
        """Note that nothing is left of a loop, or that it was left: those within it are over, too."""
        if loop in self.open:
            del self.open[self.open.index(loop) :]
            live = self.attempt.live
            if self.attempt.over is None and live is not None and live.on_loan():
                self._host.look_again()  # others may wait for a cut

    def leaves(self, loop: Rounds[Any]) -> None:
        if loop in self.open and self.attempt.over is None:
            self.closes(loop)
            self._forget_within(loop.path)
            self.places[loop.path] = loop.place(left=True)
            with suppress(NotStorable):  # the next commit says so
                self._left |= self._keeps(loop, copied=True)  # of this moment: what follows it runs again

    def _forget_within(self, path: str) -> None:
        below = _below(path)
        for name in [name for name in self._entered | self.places.keys() if name.startswith(below)]:
            self._entered.discard(name)
            self.places.pop(name, None)

    def commit(self, loop: Rounds[Any], answer: Callable[[Answer], None]) -> None:
        """Post the end of a round; raise what cannot be committed."""
        attempt = self.attempt
        for one in self.open:
            if one is not loop:
                self.places[one.path] = one.place()
        self.places[loop.path] = loop.place()
        kept = self._left | self._keeps(loop, copied=loop.path in self._nested)
        effects = attempt.effects(more=[("put", name, cell, -1) for name, cell in kept.items()])
        self._warn_of_nothing(effects, loop)
        where = json.dumps([one.document() for one in self.places.values()], separators=(",", ":"))

        def take(found: Answer) -> None:
            if found.version and attempt.over is None:
                self._kept |= kept
                self._left = {}
                attempt.committed(end, found.version)
            answer(found)

        end = RoundEnd(attempt, effects, where, tuple(kept.keys() - self._kept.keys()), take)
        self._host.commit_round(end)

    def _keeps(self, loop: Rounds[Any], *, copied: bool) -> dict[str, Cell]:
        """Return what is written of the loop's state, by name; what is as it was is not.

        `copied`: of this moment, for the body goes on with the objects before the loop does.
        """
        attempt, kept = self.attempt, dict[str, Cell]()
        for key, value in loop.members.items():
            name = self._name(loop.path, key)
            cell = to_cell(state_of(value))
            if isinstance(cell, Live):
                if attempt.checks and name not in self._kept:
                    check_storable(f"state={key!r}", cell.value)
                if copied:
                    cell = apart(cell)
                else:
                    attempt.live_values().keep(name)
            kept[name] = cell
        if self._host.keeps_random:
            if self._began is not None and not attempt.claim.rounds:
                kept[self._name("", _BEGAN)] = cell_of(self._began)
            kept[self._name(loop.path, _RANDOM)] = cell_of(look())
        same = [name for name, cell in kept.items() if self._kept.get(name) == cell]
        for name in same:
            if isinstance(kept[name], bytes):
                del kept[name]
        return kept

    def _warn_of_nothing(self, effects: Effects, loop: Rounds[Any]) -> None:
        mine = [op for op in effects.ops if _SUFFIX not in op[1]]
        if mine or loop.members or effects.nexts or effects.request:
            self._idle = -1
        elif self._idle >= 0:
            self._idle += 1
            if self._idle == 2:
                log.warning(
                    "rounds of %s keep nothing: after a restart they continue, and what they have made is "
                    "lost (give it to state=, or set it in the channel)",
                    self._task,
                    extra={"task": self._task},
                )


def _below(path: str) -> str:
    return path + WITHIN


class Rounds(Generic[T]):
    """A loop over items, each round of which is committed: what `context.rounds` returns."""

    def __init__(
        self, loops: Loops, path: str, items: Items, members: dict[str, Any], every: int,
        place: LoopPlace | None,
    ) -> None:  # fmt: skip
        self.path = path
        self.items = items
        self.members = members
        self.index = self.first = place.next if place is not None else 0
        self._loops = loops
        self.every = every
        self._left = place is not None and place.left
        self._runs = False  # a round is open
        self._ahead = END  # an item that was read before the round before it was over
        self._resumes = place is not None

    def __len__(self) -> int:
        if self.items.count is None:
            raise TypeError("how many rounds there are is not known")
        return self.items.count

    def __iter__(self) -> Iterator[T]:
        if self._loops.is_coroutine:
            raise TypeError(
                "context.rounds in a coroutine: write async for, so that others can run meanwhile"
            )
        return _Walk(self)

    def __next__(self) -> T:
        """Commit the round that runs, if there is one, and begin the next."""
        self._loops.check_thread()
        if self._is_due():
            answers: SimpleQueue[Answer] = SimpleQueue()
            self._loops.attempt.waits_for(answers.put)
            self._loops.commit(self, answers.put)
            self._accept(answers.get())
        item = self._next_item()
        if item is END:
            raise StopIteration
        return item  # type: ignore[no-any-return]

    def __aiter__(self) -> AsyncIterator[T]:
        return _AsyncWalk(self)

    async def anext(self) -> T:
        """Do the same without blocking the loop."""
        if self._is_due():
            import asyncio

            loop = asyncio.get_running_loop()
            waits: asyncio.Future[Answer] = loop.create_future()

            def give(found: Answer) -> None:
                if not waits.done():
                    waits.set_result(found)

            def answer(found: Answer) -> None:
                loop.call_soon_threadsafe(give, found)

            self._loops.attempt.waits_for(answer)
            self._loops.commit(self, answer)
            cancelled = None
            while not waits.done():  # what is committed is taken in, also by a body that is cancelled
                try:
                    await asyncio.shield(waits)
                except asyncio.CancelledError as error:
                    cancelled = error
            self._accept(waits.result())
            if cancelled is not None:
                raise cancelled
        item = self._next_item()
        if item is END:
            raise StopAsyncIteration
        return item  # type: ignore[no-any-return]

    def leave(self) -> None:
        """Note that the loop was left before its end: by break, return or an exception."""
        self._loops.leaves(self)

    def place(self, *, left: bool = False) -> LoopPlace:
        """Return where it is."""
        state = [*self.members]
        return LoopPlace(self.path, self.index, self.items.count, self.items.digest(self.index), state, left)

    # --- one step ------------------------------------------------------------------------

    def _is_due(self) -> bool:
        """End the round that runs; return True if it is to be committed now."""
        attempt = self._loops.attempt
        if attempt.over is not None:
            raise left_by(attempt)
        if not self._runs:
            return False
        self._loops.ends(self)
        self._runs = False
        self.index += 1
        leads = attempt.asks is not None and attempt.asks.leads_elsewhere()
        if self.index % self.every == 0 and not leads:
            return True
        self._ahead = self.items.take()
        if not leads:
            return self._ahead is END or self._loops.stopping()
        if self._ahead is END:
            return False  # the end of the body commits the round, with what it has asked for
        raise GraphError(
            f"Task {attempt.claim.spec.task_id!r} has asked to go elsewhere and began another round.",
            hint="Leave the loop first: break after next_iteration, goto or terminate_workflow.",
            task=attempt.claim.spec.task_id,
        )

    def _accept(self, answer: Answer) -> None:
        attempt = self._loops.attempt
        attempt.waits_for(None)
        if attempt.over is not None:
            raise left_by(attempt)
        if answer.leave is not None:
            leaving = LeaveRounds(answer.leave)
            attempt.end(leaving)
            raise leaving
        if answer.error is not None:
            raise answer.error

    def _next_item(self) -> Any:
        item = self._ahead if self._ahead is not END else END if self._left else self.items.take()
        self._ahead = END
        if self._resumes:
            self._loops.restore_random(self.path)
            self._resumes = False
        if item is END:
            self._loops.closes(self)
            return END
        self._loops.begins(self)
        self._runs = True
        return item


class _Walk(Generic[T]):
    """One `for` over rounds; it goes away with the loop, also where that is left."""

    def __init__(self, rounds: Rounds[T]) -> None:
        self._rounds = rounds

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return next(self._rounds)

    def __del__(self) -> None:
        self._rounds.leave()


class _AsyncWalk(Generic[T]):
    def __init__(self, rounds: Rounds[T]) -> None:
        self._rounds = rounds

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        return await self._rounds.anext()

    def __del__(self) -> None:
        self._rounds.leave()


def left(attempt: Attempt) -> Left | None:
    """Return how a body has left its loops between two rounds, if it has."""
    return attempt.over.left if isinstance(attempt.over, LeaveRounds) else None


def left_by(attempt: Attempt) -> LeaveRounds:
    """Return what leaves a body whose attempt is over."""
    over = attempt.over
    return over if isinstance(over, LeaveRounds) else LeaveRounds(Left(over))
