"""The session as a run uses it, wherever it is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from graflow_ckpt.core.facts import Cell, Claim, Live, Op, TaskSpec, Version
from graflow_ckpt.core.state import SessionState

Found = tuple[Cell, Version, tuple[Cell, ...]]
"""A value's cell, its version, and the items appended to it."""


Post = Callable[[str, str], None]
"""Is given a token that has to be carried, and its queue."""


class MadeSoFar(NamedTuple):
    """The tasks of a session that were made at run time."""

    times: int = 0  # how often one was made; each time is noted, as `m:NUMBER` in h
    names: int = 0  # how many there are: one that is made again has the name that it had
    last: bytes = b""  # what is noted of the last one, if this sender has made it


class Values(Protocol):
    """The values that an attempt reads."""

    @property
    def shares(self) -> bool: ...  # whether live values are the session's own objects, on loan

    def prefetch(self, names: Sequence[str]) -> None: ...  # these will be read now

    def gave_nothing(self, task: str) -> bool: ...  # it was skipped or failed since it last completed

    def read(self, name: str) -> Found | None: ...

    def together(self, name: str) -> dict[str, Found]: ...  # copies that came with it, and share with it

    def names(self) -> list[str]: ...

    def lend(self, name: str) -> None: ...

    def give_back(self, names: Sequence[str]) -> None: ...

    def on_loan(self) -> list[str]: ...

    def committed(self, written: Mapping[str, Cell], appended: Sequence[str], version: Version) -> None:
        """Take in what the attempt itself has committed, by a round."""
        ...


class Session(Protocol):
    """One session, as the run that works on it sees it. Facts are those of its last commit."""

    @property
    def id(self) -> str: ...

    @property
    def status(self) -> str: ...

    @property
    def steps(self) -> int: ...

    @property
    def pending(self) -> int: ...  # specs that have still to run, as far as this run knows

    @property
    def traced(self) -> bool: ...  # whether errors are kept with their tracebacks

    @property
    def over(self) -> bool: ...  # whether this run will get nothing more from it

    @property
    def written(self) -> Version: ...  # the version of what the last commit has written

    def clock(self) -> float: ...

    def commit(self, ops: Sequence[Op]) -> list[Claim]: ...

    def due(self) -> float | None: ...  # when the first delayed spec may start

    def has_ready(self) -> bool: ...

    def following(self) -> TaskSpec | None: ...  # what is claimed next, if that is known

    def known(self) -> SessionState: ...  # of its tasks, as of now; values need not be in it

    def reader(self, key: int = 0) -> Values: ...  # the values as the attempt of that spec sees them

    def on_loan(self) -> list[str]: ...

    def on_loan_beside(self, name: str, own: int = 1) -> bool: ...

    def tear(self, names: Sequence[str]) -> None: ...  # attempts that are over may have left them changed

    def afterwards(self, call: Callable[[], None]) -> None: ...  # not while this thread holds it still

    def live(self) -> dict[str, list[Live]]: ...  # what bodies may share with the session itself

    def replace_live(self, copies: Mapping[Live, Live]) -> None: ...
