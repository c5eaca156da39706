"""The session in this process: one SessionState, one lock, and what is on loan from it.

Promise: a commit is applied, and recorded if there is a recorder, under one lock, or not at
all. After a recorder has failed nothing is committed any more. Reads take the
lock only if a commit changes the state meanwhile: a value, its version and what was appended to
it belong together.

Loans: a live value that an attempt has got is *on loan* until the attempt ends. A snapshot
is taken in `still()`, by any thread: it is refused while anything is on loan, and makes commits
and new loans wait. Who takes both locks takes that of commits first, and calls no observer under
them: it may have a lock of its own, and ask the session under that. A value that an attempt may
have left half changed is *torn*: nothing that holds it is saved any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import time

from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import GraflowError, SessionError
from graflow_ckpt.core.facts import Cell, Claim, Live, Op, TaskSpec, Version
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.sessions.protocol import Found

Recorder = Callable[[SessionState, float, Sequence[Op]], None]


class MemorySession:
    """A session that ends with the process."""

    shares = True
    traced = False  # the waiting caller has the exception itself

    def __init__(self, state: SessionState, clock: Callable[[], float] = time) -> None:
        self.state = state
        self.recorder: Recorder | None = None
        self.broken: GraflowError | None = None
        self.clock = clock
        self._lock = threading.RLock()
        self.replaced = 0  # how often objects were, beside all commits
        self._changes = 0  # odd while a commit changes the state
        self._loans: dict[str, int] = {}
        self.torn: list[str] = []
        self._loan_lock = threading.RLock()  # `still` is taken within itself
        self._stilled_by = 0  # the thread that holds it still
        self._afterwards: list[Callable[[], None]] = []

    def commit(self, ops: Sequence[Op]) -> list[Claim]:
        """Apply and record one transition; return the claims that it makes."""
        with self._lock:
            if self.broken is not None:
                raise self.broken
            now, before = self.clock(), self.state.sequence
            whole = False
            try:
                self._changes += 1
                claims = apply(self.state, ops, now)
                self._changes += 1
                if self.recorder is not None:
                    self.recorder(self.state, now, ops)
                whole = True
            except GraflowError as error:
                whole = self.state.sequence == before  # refused: nothing was changed
                if whole:
                    self._changes += 1
                else:
                    self.broken = error
                raise
            finally:
                if not whole and self.broken is None:  # a signal's exception, or a bug, half way
                    self.broken = SessionError(
                        "A commit was interrupted half way; nothing more is committed.",
                        hint="The last checkpoint stands: resume from it.",
                        session=self.state.session,
                    )
            return claims

    # --- facts -------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.state.session

    @property
    def status(self) -> str:
        return self.state.status

    @property
    def over(self) -> bool:
        """True if this run will get nothing more from it."""
        return self.state.status != "running"

    @property
    def steps(self) -> int:
        return self.state.steps

    @property
    def written(self) -> int:
        return self.state.sequence

    @property
    def pending(self) -> int:
        return len(self.state.specs)

    @property
    def head(self) -> SessionState:
        """Its counters."""
        return self.state

    def due(self) -> float | None:
        """Return the time at which the first delayed spec may start."""
        delayed = self.state.delayed
        return delayed[0][0] if delayed else None

    def has_ready(self) -> bool:
        return bool(self.state.ready)

    def following(self) -> TaskSpec | None:
        with self._lock:
            ready, delayed = self.state.ready, self.state.delayed
            return self.state.specs[ready[0][2] if ready else delayed[0][1]] if ready or delayed else None

    def known(self) -> SessionState:
        return self.state

    def gave_nothing(self, task: str) -> bool:
        """Return True if it was skipped or failed since: what it gave in an earlier round does not count."""
        state = self.state
        return bool(state.skipped or state.errors) and state.gave_nothing(task)

    def record_with(self, recorder: Recorder | None) -> None:
        """Have each commit recorded by this from now on."""
        self.recorder = recorder

    def close(self, why: GraflowError) -> None:
        """Refuse every commit from now on."""
        with self._lock:
            if self.broken is None:
                self.broken = why

    # --- values ------------------------------------------------------------------------

    def reader(self, key: int = 0) -> MemorySession:
        """Return the values as one attempt sees them: as they are."""
        return self

    def prefetch(self, names: Sequence[str]) -> None:
        """Do nothing: the values are here."""

    def read(self, name: str) -> tuple[Cell, int, tuple[Cell, ...]] | None:
        """Return a value's cell, its version, and the items appended to it."""
        before = self._changes
        found = self._read(name)
        if before % 2 or self._changes != before:  # a commit is under way: the items may be of another value
            with self._lock:
                found = self._read(name)
        return found

    def _read(self, name: str) -> tuple[Cell, int, tuple[Cell, ...]] | None:
        found = self.state.values.get(name)
        if found is None:
            return None
        items = self.state.appended.get(name)
        return (*found, tuple(items) if items else ())

    def names(self) -> list[str]:
        return list(self.state.values)

    def together(self, name: str) -> dict[str, Found]:
        """Return nothing: no value here is a copy."""
        return {}

    def committed(self, written: Mapping[str, Cell], appended: Sequence[str], version: Version) -> None:
        """Do nothing: as above."""

    # --- loans -------------------------------------------------------------------------

    def lend(self, name: str) -> None:
        """Lend a live value before the attempt gets it; waits while a picture is taken."""
        with self._loan_lock:
            self._loans[name] = self._loans.get(name, 0) + 1

    def give_back(self, names: Sequence[str]) -> None:
        with self._loan_lock:
            for name in names:
                left = self._loans[name] - 1
                if left:
                    self._loans[name] = left
                else:
                    del self._loans[name]

    def on_loan_beside(self, name: str, own: int = 1) -> bool:
        """Return True if another attempt than the one that has `own` loans of it holds it, or has torn it."""
        return self._loans.get(name, 0) > own or name in self.torn

    def tear(self, names: Sequence[str]) -> None:
        """Note live values that an attempt may have changed of which nothing is committed."""
        with self._loan_lock:
            self.torn += names

    @contextmanager
    def lending_nothing(self) -> Iterator[None]:
        """Lend nothing in the block, so that what is not on loan stays as it is."""
        with self._loan_lock:
            yield

    def live(self) -> dict[str, list[Live]]:
        """Return the live cells, by their names."""
        with self._lock:
            appended = self.state.appended
            cells = {name: [cell, *appended.get(name, ())] for name, (cell, _) in self.state.values.items()}
        found = {name: [cell for cell in of if isinstance(cell, Live)] for name, of in cells.items()}
        return {name: of for name, of in found.items() if of}

    def replace_live(self, copies: Mapping[Live, Live]) -> None:
        """Replace objects that a body still holds by copies, which the session keeps."""
        with self._lock:
            values, appended = self.state.values, self.state.appended
            for name, (cell, version) in values.items():
                if isinstance(cell, Live) and cell in copies:
                    values[name] = (copies[cell], version)
            for items in appended.values():
                items[:] = [copies.get(item, item) if isinstance(item, Live) else item for item in items]
            self.replaced += 1

    def on_loan(self) -> list[str]:
        """Return what prevents a picture."""
        return [*self._loans, *self.torn] or ([] if self.broken is None else ["a commit that failed"])

    @contextmanager
    def still(self) -> Iterator[bool]:
        """Hold the session still; yield False if a value is on loan or torn, or the state is not whole."""
        later: list[Callable[[], None]] = []
        try:
            with self._lock, self._loan_lock:
                outer = self._stilled_by, self._afterwards
                try:
                    if not outer[0]:
                        self._stilled_by, self._afterwards = threading.get_ident(), later
                    yield not self._loans and not self.torn and self.broken is None
                finally:
                    self._stilled_by, self._afterwards = outer
        finally:
            for call in later:
                call()

    def afterwards(self, call: Callable[[], None]) -> None:
        """Call it now, but in the thread that holds the session still: as soon as it does so no longer."""
        if self._stilled_by == threading.get_ident():
            self._afterwards.append(call)
        else:
            call()
