"""Workflows as plain data, and the shape that their edges have; the oracle and the engine both play them.

Nothing of graflow_ckpt is imported here: what a loop edge is, and what a branch that is not taken cuts off,
is written anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Body:
    """A task: what it does to the channel, and where it goes after its n-th visit."""

    name: str
    reads: tuple[str, ...] = ()  # parameters: predecessors, or groups before it
    ops: tuple[tuple[str, str, int], ...] = ()
    visits: tuple[tuple[Any, ...], ...] = ()  # what it asks for at cycle 0, 1, …
    later: tuple[Any, ...] = ("plain",)  # and after those
    flaky: int = 0  # so many attempts fail
    broken: bool = False  # every attempt fails until the program is mended
    retries: int = 0
    priority: int = 0
    max_cycles: int | None = None
    constant: int = 1

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Short in reports of Hypothesis: only what is not as usual."""
        usual = Body("")
        said = [f"{n}={getattr(self, n)!r}" for n in self.__slots__ if getattr(self, n) != getattr(usual, n)]
        printer.text(f"Body({', '.join(said)})")

    def asks(self, cycle: int) -> tuple[Any, ...]:
        return self.visits[cycle] if cycle < len(self.visits) else self.later


@dataclass(frozen=True, slots=True)
class Fork:
    """A group: members are chains of names or of further groups."""

    name: str
    policy: str  # "all", "best", "least"
    need: int
    members: tuple[tuple[Any, ...], ...]


Part = str | Fork


@dataclass(frozen=True, slots=True)
class Program:
    """A workflow as data."""

    bodies: tuple[Body, ...]
    chains: tuple[tuple[Part, ...], ...]  # edges, in order of declaration
    start: str
    made: tuple[Body, ...] = ()  # tasks that others make at run time
    on_failure: str = "pause"
    seed: int = 0
    parallel: bool = False  # its outcome does not depend on the order of what is ready


def mix(*parts: Any) -> int:
    """A number that depends on all of them and on their order."""
    total = 7
    for part in parts:
        if isinstance(part, dict):
            part = mix(*(x for pair in sorted(part.items()) for x in pair))
        elif isinstance(part, str):
            part = sum(part.encode())
        elif isinstance(part, (list, tuple)):
            part = mix(*part)
        elif isinstance(part, float):
            part = int(part * 1e6)
        total = (total * 31 + (0 if part is None else part + 1)) % 99991
    return total


# --- its shape --------------------------------------------------------------------------


@dataclass
class Graph:
    """Forward edges, loop edges and groups of a program, as seen from its start."""

    program: Program
    follow: dict[str, list[str]] = field(default_factory=dict)
    groups: dict[str, Fork] = field(default_factory=dict)
    forward: dict[str, list[str]] = field(default_factory=dict)
    loops: dict[str, list[str]] = field(default_factory=dict)
    before: dict[str, list[str]] = field(default_factory=dict)
    joined: set[str] = field(default_factory=set)  # made tasks stand before them from then on
    tails: dict[str, list[str]] = field(default_factory=dict)  # group -> last tasks of its members
    lenient: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.follow = {body.name: [] for body in self.program.bodies}
        for chain in self.program.chains:
            self._chain(chain)
        back = self._closing_edges(self.program.start)
        for name, targets in self.follow.items():
            self.forward[name] = [t for t in targets if (name, t) not in back]
            self.loops[name] = [t for t in targets if (name, t) in back]
        self.before = {name: [s for s, ts in self.forward.items() if name in ts] for name in self.follow}

    def _chain(self, chain: Iterable[Part]) -> tuple[list[str], list[str]]:
        heads: list[str] = []
        tails: list[str] = []
        for part in chain:
            first, last = ([part], [part]) if isinstance(part, str) else self._group(part)
            for tail in tails:
                self.follow[tail] += [h for h in first if h not in self.follow[tail]]
            heads, tails = heads or first, last
        return heads, tails

    def _group(self, fork: Fork) -> tuple[list[str], list[str]]:
        heads: list[str] = []
        tails: list[str] = []
        for member in fork.members:
            first, last = self._chain(member)
            heads += first
            tails += last
        if fork.name not in self.groups:
            self.groups[fork.name] = fork
            self.follow[fork.name] = []
            self.tails[fork.name] = tails
            for tail in tails:
                self.follow[tail].append(fork.name)
            if fork.policy != "all":
                self.lenient |= inside(fork)
        return heads, [fork.name]

    def _closing_edges(self, start: str) -> set[tuple[str, str]]:
        """Edges that close a cycle in order of declaration from the start."""
        back: set[tuple[str, str]] = set()
        done: set[str] = set()

        def walk(name: str, path: tuple[str, ...]) -> None:
            for target in self.follow[name]:
                if target in path:
                    back.add((name, target))
                elif target not in done:
                    walk(target, (*path, target))
            done.add(name)

        for name in (start, *self.follow):
            if name not in done:
                walk(name, (name,))
        return back

    def leads_to(self, source: str, target: str) -> bool:
        """Along forward edges; every task leads to itself."""
        return source == target or any(self.leads_to(n, target) for n in self.forward[source])

    def cut_off(self, source: str, stop: set[str], failure: bool) -> set[str]:
        """The nodes that nothing leads to when `source` leads nowhere; a failure cuts off no group."""
        cut = {source}
        grown = True
        while grown:
            more = {
                name
                for name, ways in self.before.items()
                if ways and name not in cut | stop | self.joined and cut.issuperset(ways)
                if not (failure and name in self.groups)
            }
            cut |= more
            grown = bool(more)
        return cut - {source}


def inside(fork: Fork) -> set[str]:
    """Every task and group of every member."""
    parts = [part for member in fork.members for part in member]
    names = {part if isinstance(part, str) else part.name for part in parts}
    return names.union(*(inside(part) for part in parts if isinstance(part, Fork)))
