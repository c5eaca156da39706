"""Retention: which checkpoints are kept. Frozen values with one pure method; they combine.

    KeepLast(10) & KeepFor(days=7)            kept if both keep it
    KeepLast(10) | BestOf("loss", 3, "min")   kept if one of them does
    OfAll(KeepLast(10))                       also of those that a task has asked for

A value sees what the metadata of checkpoints say and nothing else: no store, no clock of its own. It
says what is kept, so a value that is forgotten in an `|` deletes more, never something that no value
covers. What is kept whatever a value says (pruning.py): the newest good one of a session that
can continue, paused ones, and those that a session was forked from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, get_args

from graflow_ckpt.core import arguments
from graflow_ckpt.core.arguments import real, text, whole
from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.core.protocols import Line

Per = Literal["session", "workflow", "tenant", "store"]
"""What is counted together. A store is what one sees of it, and a tenant sees its own checkpoints only: where
there are tenants, "tenant" is what "store" is; it says what is meant."""

WAITS = frozenset({"paused", "waiting"})
"""The status of sessions that wait for a user's answer."""

FINISHED = frozenset({"completed", "cancelled"})
"""The status of sessions that are not continued."""

REQUESTED = "request"
"""Why a checkpoint was made that a task has asked for."""

BUDGET = "budget"
"""Why a checkpoint was made whose values are too large for the journal."""

IN_SESSION = attrgetter("epoch", "sequence", "path")
"""The order of a session's checkpoints: within one the clock says nothing."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A checkpoint, as far as its unverified metadata tell: enough to say whether it is kept."""

    path: str
    session: str
    workflow: str = ""
    id: str = ""
    epoch: int = 0
    sequence: int = 0
    created: float = float("inf")  # Unix time; if it cannot be read, it is not old
    status: str = "running"
    cause: str = REQUESTED
    size: int = 0  # of all parts
    shared: Mapping[str, int] = field(default_factory=dict)  # names and sizes of what it holds in common
    metrics: Mapping[str, float] = field(default_factory=dict)  # numbers in the user's metadata
    parent: str | None = None
    origin: str | None = None  # what its session was forked from
    lacks: tuple[str, ...] = ()  # what a reader has to know and this version does not
    rewinds: tuple[Line, ...] = ()  # what the session had gone back behind
    run: int = 1  # of its session


class Taken:
    """The bytes of checkpoints together, added one by one: what several have in common counts once."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def add(self, cut: Cut) -> int:
        """Add this one; return how many bytes more it is."""
        new = [name for name in cut.shared if name not in self._seen]
        self._seen.update(new)
        return cut.size + sum(cut.shared[name] for name in new)


def bytes_of(cuts: Iterable[Cut]) -> int:
    taken = Taken()
    return sum(taken.add(cut) for cut in cuts)


def by_session(cuts: Sequence[Cut]) -> dict[str, list[Cut]]:
    found: dict[str, list[Cut]] = {}
    for cut in cuts:
        found.setdefault(cut.session, []).append(cut)
    return found


def shared_in(contents: object, scope: str = "") -> dict[str, int]:
    """Return names and sizes of what a meta says it holds; it may be damaged. In each scope they differ."""
    entries = contents if isinstance(contents, list) else []
    found = [(entry.get("name"), entry.get("size")) for entry in entries if isinstance(entry, dict)]
    sizes = {name: size for name, size in found if isinstance(name, str) and type(size) is int and size > 0}
    return {f"{scope}/{name}": size for name, size in sizes.items()} if scope else sizes


class Retention:
    """A rule for what is kept. Rules combine with `&` and `|`."""

    __slots__ = ()

    def keeps(self, cuts: Sequence[Cut], now: float) -> frozenset[str]:
        """Return the paths that are kept; `cuts` are all of a store, or of one session, in any order."""
        raise NotImplementedError

    @property
    def per_session(self) -> bool:
        """Return whether each session can be looked at without the others."""
        return True

    def counts(self, cut: Cut) -> bool:
        """Return False if this one is kept, and says nothing about others."""
        return True

    def __and__(self, other: Retention) -> Retention:
        return _combined(Both, self, other)

    def __or__(self, other: Retention) -> Retention:
        return _combined(Either, self, other)


class _Counting(Retention):
    """A rule that counts the checkpoints of one session, workflow or store together."""

    __slots__ = ()
    per: Per

    @property
    def per_session(self) -> bool:
        return self.per == "session"

    def _check_per(self) -> None:
        if self.per not in get_args(Per):
            raise GraphError(f"per={self.per!r} is none of {', '.join(map(repr, get_args(Per)))}.")


@dataclass(frozen=True, slots=True)
class KeepLast(_Counting):
    """The newest `count`: of each session, of each workflow, or of the store."""

    count: int = 10
    per: Per = "session"

    def __post_init__(self) -> None:
        whole("KeepLast", self.count)
        if self.count < 1:
            raise GraphError(
                f"KeepLast({self.count}) would keep nothing to resume from.",
                hint="DeleteOnSuccess() keeps nothing of sessions that have ended well.",
            )
        self._check_per()

    def keeps(self, cuts: Sequence[Cut], now: float) -> frozenset[str]:
        return frozenset(cut.path for group in _grouped(cuts, self.per) for cut in group[: self.count])


@dataclass(frozen=True, slots=True)
class KeepFor(Retention):
    """The checkpoints that are not older than this."""

    days: float = 0
    hours: float = 0
    minutes: float = 0
    seconds: float = 0

    def __post_init__(self) -> None:
        for name in ("days", "hours", "minutes", "seconds"):
            real(f"KeepFor({name}=)", getattr(self, name))
        if not self.period > 0:
            raise GraphError(f"KeepFor: a period of {self.period:g} seconds would keep nothing.")

    @property
    def period(self) -> float:
        return ((self.days * 24 + self.hours) * 60 + self.minutes) * 60 + self.seconds

    def keeps(self, cuts: Sequence[Cut], now: float) -> frozenset[str]:
        return frozenset(cut.path for cut in cuts if now - cut.created <= self.period)


@dataclass(frozen=True, slots=True)
class KeepEvery(Retention):
    """The checkpoints of each session whose sequence is a multiple of `n`: the same ones whenever asked."""

    n: int

    def __post_init__(self) -> None:
        whole("KeepEvery", self.n)
        if self.n < 1:
            raise GraphError(f"KeepEvery({self.n}): every how many is a number from 1 on.")

    def keeps(self, cuts: Sequence[Cut], now: float) -> frozenset[str]:
        return frozenset(cut.path for cut in cuts if cut.sequence % self.n == 0)


@dataclass(frozen=True, slots=True)
class BestOf(_Counting):
    """The `n` with the lowest or highest number of that name in their metadata.

    Among equals the newer one. What does not have the number is not among them.
    """

    metric: str
    n: int = 1
    mode: Literal["min", "max"] = "min"
    per: Per = "session"

    def __post_init__(self) -> None:
        text("BestOf(metric=)", self.metric)
        whole("BestOf(n=)", self.n)
        if self.n < 1 or self.mode not in ("min", "max"):
            raise GraphError(
                f"BestOf({self.metric!r}, {self.n!r}, {self.mode!r}): at least 1, and min or max."
            )
        self._check_per()

    def keeps(self, cuts: Sequence[Cut], now: float) -> frozenset[str]:
        rated = [cut for cut in cuts if self.metric in cut.metrics]
        kept: list[Cut] = []
        for group in _grouped(rated, self.per):  # newest first, and sorting is stable in both directions
            group.sort(key=lambda cut: cut.metrics[self.metric], reverse=self.mode == "max")
            kept += group[: self.n]
        return frozenset(cut.path for cut in kept)


@dataclass(frozen=True, slots=True)
class KeepWithin(_Counting):
    """The newest ones that fit together into a budget of bytes: kB, MB and GB are powers of 1000.

    With the first that does not fit all older ones are deleted. What is kept whatever a value says takes its
    room all the same: it may be more than the budget.
    """

    gb: float = 0
    mb: float = 0
    kb: float = 0
    per: Per = "store"

    def __post_init__(self) -> None:
        for name in ("gb", "mb", "kb"):
            real(f"KeepWithin({name}=)", getattr(self, name))
        if not self.budget > 0:
            raise GraphError(f"KeepWithin: a budget of {self.budget} bytes would keep nothing.")
        self._check_per()

    @property
    def budget(self) -> int:
        return round(((self.gb * 1000 + self.mb) * 1000 + self.kb) * 1000)

    def keeps(self, cuts: Sequence[Cut], now: float) -> frozenset[str]:
        kept: list[str] = []
        for group in _grouped(cuts, self.per):
            left, taken = self.budget, Taken()
            for cut in group:
                left -= taken.add(cut)
                if left < 0:
                    break
                kept.append(cut.path)
        return frozenset(kept)


@dataclass(frozen=True, slots=True)
class LastSuccessful(_Counting):
    """The last checkpoint of each of the last `count` sessions that have completed."""

    count: int = 1
    per: Per = "workflow"

    def __post_init__(self) -> None:
        whole("LastSuccessful", self.count)
        if self.count < 1:
            raise GraphError(f"LastSuccessful({self.count}): at least 1.")
        self._check_per()

    def keeps(self, cuts: Sequence[Cut], now: float) -> frozenset[str]:
        ends = [group[0] for group in _grouped(cuts, "session") if group[0].status == "completed"]
        return frozenset(cut.path for group in _grouped(ends, self.per) for cut in group[: self.count])

    @property
    def per_session(self) -> bool:
        return True  # of one session alone it is the last one, and more is kept than would have to be


@dataclass(frozen=True, slots=True)
class DeleteOnSuccess(Retention):
    """Nothing of sessions that have completed, everything of all others."""

    def keeps(self, cuts: Sequence[Cut], now: float) -> frozenset[str]:
        groups = [group for group in _grouped(cuts, "session") if group[0].status != "completed"]
        return frozenset(cut.path for group in groups for cut in group)


@dataclass(frozen=True, slots=True)
class _Several(Retention):
    members: tuple[Retention, ...]

    @property
    def per_session(self) -> bool:
        return all(member.per_session for member in self.members)


@dataclass(frozen=True, slots=True)
class Both(_Several):
    """The checkpoints that all of them keep."""

    def keeps(self, cuts: Sequence[Cut], now: float) -> frozenset[str]:
        return frozenset.intersection(*(member.keeps(cuts, now) for member in self.members))


@dataclass(frozen=True, slots=True)
class Either(_Several):
    """The checkpoints that one of them keeps."""

    def keeps(self, cuts: Sequence[Cut], now: float) -> frozenset[str]:
        return frozenset().union(*(member.keeps(cuts, now) for member in self.members))


@dataclass(frozen=True, slots=True)
class _Of(Retention):
    of: Retention

    def __post_init__(self) -> None:
        arguments.kind(type(self).__name__, self.of, Retention, "a retention such as KeepLast(10)")

    @property
    def per_session(self) -> bool:
        return self.of.per_session


@dataclass(frozen=True, slots=True)
class OfAll(_Of):
    """The same of all checkpoints: those that a task has asked for do not stay for that reason.

    Combined with others it holds for the whole.
    """

    def keeps(self, cuts: Sequence[Cut], now: float) -> frozenset[str]:
        return self.of.keeps(cuts, now)


@dataclass(frozen=True, slots=True)
class Automatic(_Of):
    """All that a task has asked for, which counts for nothing; of all others what `of` keeps.

    Of those that a budget has made only the newest two of a session are looked at: the last one, and the
    one to fall back to.
    """

    def keeps(self, cuts: Sequence[Cut], now: float) -> frozenset[str]:
        by_budget = [cut for cut in cuts if cut.cause == BUDGET]
        older = {cut.path for group in _grouped(by_budget, "session") for cut in group[2:]}
        others = [cut for cut in cuts if cut.cause != REQUESTED and cut.path not in older]
        asked = frozenset(cut.path for cut in cuts if cut.cause == REQUESTED)
        return asked | self.of.keeps(others, now)

    def counts(self, cut: Cut) -> bool:
        return cut.cause != REQUESTED


def automatic(retention: Retention) -> Retention:
    """Return a retention as it is applied after a save: what was asked for stays, unless it says `OfAll`."""
    return retention if isinstance(retention, OfAll) else Automatic(retention)


def forked_from(cuts: Sequence[Cut], going: Collection[str] = ()) -> frozenset[str]:
    """Return the ids of checkpoints that other sessions were forked from; `going` paths do not count."""
    session_of = {cut.id: cut.session for cut in cuts}
    return frozenset(
        known
        for cut in cuts
        if cut.path not in going
        for known in (cut.parent, cut.origin)
        if known and session_of.get(known, cut.session) != cut.session
    )


def _combined(kind: type[Both | Either], first: Retention, second: Retention) -> Retention:
    arguments.kind("&, |", second, Retention, "a retention such as KeepLast(10)")
    if isinstance(first, OfAll) or isinstance(second, OfAll):
        plain = [one.of if isinstance(one, OfAll) else one for one in (first, second)]
        return OfAll(_combined(kind, *plain))
    members = [one.members if isinstance(one, kind) else (one,) for one in (first, second)]
    return kind((*members[0], *members[1]))


def _grouped(cuts: Sequence[Cut], per: Per) -> Iterator[list[Cut]]:
    """Yield what is counted together, each group newest first."""
    groups: dict[object, list[Cut]] = {}
    for cut in cuts:  # the runs of a session are counted apart
        key = (cut.session, cut.run) if per == "session" else cut.workflow if per == "workflow" else ""
        groups.setdefault(key, []).append(cut)
    order = IN_SESSION if per == "session" else attrgetter("created", "epoch", "sequence")
    for group in groups.values():
        group.sort(key=order, reverse=True)
        yield group


PERIOD = KeepFor(days=7)
"""After so long an automatic checkpoint expires, unless a workflow says something else."""

DEFAULT: Retention = KeepLast(10) & PERIOD | LastSuccessful()
"""What a workflow keeps that says nothing else."""
