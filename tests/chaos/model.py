"""Workflows for chaos: a program (see tests/acceptance/program.py) of any size, drawn from a seed.

Lanes of blocks run side by side; now and then some lanes meet in a join, and at last all of them.

    single   one task, some with retries that are needed     group  members under each policy, some lost
    diamond  a fork and a join                               loop   next_iteration, several times
    back     goto to an ancestor                             past   goto past a task, which is skipped
    make     a task made at run time, some before the successor

What comes out does not depend on who runs what when: tasks write names of their own, append, or add.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tests.acceptance.oracle import End, Oracle, Spec
from tests.acceptance.program import Body, Fork, Graph, Part, Program

LANES = 16
LISTS = tuple(f"list{n}" for n in range(5))
SUMS = tuple(f"sum{n}" for n in range(8))
BLOCKS = {"single": 6, "diamond": 3, "group": 4, "loop": 2, "back": 1, "past": 1, "make": 2}


class Dag:
    """A program that is being drawn."""

    def __init__(self, seed: int, size: int) -> None:
        self.rng = random.Random(seed)
        self.bodies: dict[str, Body] = {}
        self.made: list[Body] = []
        self.chains: list[tuple[Part, ...]] = []
        self.groups = 0
        start = self.task()
        self.tails: list[Part] = [start] * min(LANES, max(2, size // 12))
        while len(self.bodies) + len(self.made) < size - 1:
            self.block()
        self.join(range(len(self.tails)))
        self.program = Program(
            tuple(self.bodies.values()), tuple(self.chains), start, tuple(self.made), parallel=True
        )

    def block(self) -> None:
        kind = self.rng.choices([*BLOCKS, "join"], [*BLOCKS.values(), 1])[0]
        if kind == "join":
            self.join(self.rng.sample(range(len(self.tails)), 2))
            return
        lane = self.rng.randrange(len(self.tails))
        self.tails[lane] = getattr(self, kind)(self.tails[lane])

    # --- tasks -------------------------------------------------------------------------

    def task(self, *reads: Part, retries: bool = True) -> str:
        """One task; it reads the results of those tasks."""
        rng, name = self.rng, f"t{len(self.bodies)}"
        flaky = rng.randint(1, 3) if retries and rng.random() < 0.12 else 0
        self.bodies[name] = Body(
            name,
            tuple(r for r in reads if isinstance(r, str)),
            self.ops(name),
            flaky=flaky,
            retries=flaky + rng.randint(0, 1) if flaky else 0,
            priority=rng.choice([0] * 8 + [5, -3]),
            constant=rng.randint(1, 9),
        )
        return name

    def ops(self, name: str) -> tuple[tuple[str, str, int], ...]:
        rng, found = self.rng, []
        if rng.random() < 0.2:
            found.append(("append", rng.choice(LISTS), rng.randint(1, 9)))
        if rng.random() < 0.15:
            found.append(("set", f"own_{name}", rng.randint(1, 9)))
        if rng.random() < 0.05:
            found.append(("mutate", f"items_{name}", rng.randint(1, 9)))
        if rng.random() < 0.03:
            found.append(("add", rng.choice(SUMS), rng.randint(1, 9)))
        return tuple(found)

    def change(self, name: str, **changes: object) -> None:
        self.bodies[name] = replace(self.bodies[name], **changes)  # type: ignore[arg-type]

    def after(self, tail: Part, *, retries: bool = True) -> str:
        """One task behind what there is."""
        name = self.task(tail, retries=retries)
        self.chains.append((tail, name))
        return name

    # --- blocks ------------------------------------------------------------------------

    def join(self, lanes: range | list[int]) -> None:
        tails = list(dict.fromkeys(self.tails[lane] for lane in lanes))
        name = self.task(*tails)
        self.chains += [(tail, name) for tail in tails]
        for lane in lanes:
            self.tails[lane] = name

    def single(self, tail: Part) -> Part:
        return self.after(tail)

    def diamond(self, tail: Part) -> Part:
        sides = [self.after(tail) for _ in range(self.rng.randint(2, 4))]
        if self.rng.random() < 0.5:
            sides[0] = self.after(sides[0])
        join = self.task(*sides)
        self.chains += [(side, join) for side in sides]
        return join

    def group(self, tail: Part) -> Part:
        fork = self.fork(nested=self.rng.random() < 0.2)
        self.chains.append((tail, fork))
        return self.after(fork)

    def fork(self, nested: bool) -> Fork:
        rng = self.rng
        policy = rng.choice(["all", "best", "least"])
        members: list[tuple[Part, ...]] = []
        for _ in range(rng.randint(2, 5)):
            members.append(tuple(self.task() for _ in range(rng.randint(1, 3))))
        lost = 0
        if policy != "all":
            for member in rng.sample(members, rng.randint(0, len(members) - 1)):
                self.lose(str(rng.choice(member)))
                lost += 1
        if nested:
            members[0] = (*members[0], self.fork(nested=False), self.task())
        need = rng.randint(1, len(members) - lost) if policy == "least" else 0
        self.groups += 1
        return Fork(f"g{self.groups}", policy, need, tuple(members))

    def lose(self, name: str) -> None:
        """It fails whatever is tried."""
        retries = self.rng.randint(0, 2)
        self.change(name, retries=retries, flaky=retries + 1)

    def loop(self, tail: Part) -> Part:
        name = self.after(tail)
        rounds = self.rng.randint(1, 4)
        self.change(name, visits=tuple(("again", self.rng.randint(0, 99)) for _ in range(rounds)))
        return name

    def back(self, tail: Part) -> Part:
        first = self.after(tail)
        middle = self.after(first)
        last = self.after(middle)
        self.change(last, visits=(("goto", first),) * self.rng.randint(1, 2))
        return self.after(last)

    def past(self, tail: Part) -> Part:
        first = self.after(tail)
        skipped = self.after(first)
        target = self.after(skipped)
        self.change(first, visits=(("goto", target),))
        return target

    def made_name(self) -> str:
        return f"d{len(self.made)}"

    def make(self, tail: Part) -> Part:
        maker = self.after(tail)
        follower = self.after(maker)
        name = self.made_name()
        self.made.append(Body(name, (), self.ops(name), constant=self.rng.randint(1, 9)))
        self.change(maker, visits=(("make", name, self.rng.choice([None, follower])),))
        return follower


def draw(seed: int, size: int) -> Program:
    """The program of a seed."""
    return Dag(seed, size).program


# --- what is done to a fleet, drawn from a seed -----------------------------------------


FIRST, LAST = 0.03, 0.9
"""All blows fall between these shares of the steps."""

KILLED = {"body": 10, "worker": 3, "steward": 4, "parent": 4}
"""How often who is killed: a process that runs a body, any worker, a steward, a pool's parent."""


@dataclass(frozen=True, slots=True)
class Blow:
    """One thing that happens."""

    at: float  # share of the steps
    what: str  # kill, stop, server (killed), freeze (of the server)
    whom: str = ""
    draw: float = 0.0  # whom exactly, from 0 to 1
    seconds: float = 0.0  # stopped, or without a server
    loses: float = 0.0  # the share of its log that the server has lost when it comes back
    waits: bool = False  # stopped for longer yet, until somebody else has what it had

    def __str__(self) -> str:
        for_how_long = f" {self.seconds:.2f} s" if self.seconds else ""
        for_how_long += " or until it was taken over" if self.waits else ""
        for_how_long += f" loses {self.loses:.1%} of its log" if self.loses else ""
        return f"{self.at:4.0%} {self.what} {self.whom}{for_how_long}".rstrip()


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: how large, and what is done to it how often."""

    seed: int
    tasks: int = 1500
    kills: int = 28
    stops: int = 8  # for longer than the lease
    servers: int = 3  # kills of the server
    losses: int = 1  # kills of a server that comes back without the last of its log
    freezes: int = 1  # the server answers nothing for a while
    lease: float = 2.0
    pace: float = 1.0  # by how much bodies take longer
    fsync: str = "everysec"
    pools: int = 2  # with two workers each


def schedule(plan: Plan) -> list[Blow]:
    """So many of each, spread over the run. Each kind of victim comes before one of them comes twice."""
    rng = random.Random(f"blows {plan.seed}")
    some = list(KILLED)[: min(plan.kills, len(KILLED))]
    whom = some + rng.choices(list(KILLED), list(KILLED.values()), k=plan.kills - len(some))
    times = zip(_times(rng, plan.kills), whom, strict=True)
    blows = [Blow(at, "kill", who, rng.random()) for at, who in times]
    for n, at in enumerate(_times(rng, plan.stops)):
        seconds = rng.uniform(1.3, 2.0) * plan.lease
        blows.append(Blow(at, "stop", "body", rng.random(), seconds, waits=n % 2 == 0))
    for at in _times(rng, plan.servers):
        blows.append(Blow(at, "server", seconds=rng.choice([0.0, 0.3, 1.0])))
    for at in _times(rng, plan.losses):
        loses = rng.choice([0.001, 0.01, 0.1])
        blows.append(Blow(at, "server", seconds=rng.choice([0.0, 0.5]), loses=loses))
    for at in _times(rng, plan.freezes):
        blows.append(Blow(at, "freeze", seconds=rng.uniform(0.5, 2.0) * plan.lease))
    return sorted(blows, key=lambda blow: blow.at)


def _times(rng: random.Random, count: int) -> list[float]:
    """One in each of as many equal stretches, so that no seed spends all at the start."""
    stretch = (LAST - FIRST) / max(1, count)
    times = [FIRST + stretch * (n + rng.random()) for n in range(count)]
    rng.shuffle(times)
    return times


def printed(blows: Iterable[Blow]) -> str:
    return "\n".join(f"  {blow}" for blow in blows)


# --- what has to come out of a program that a fleet runs --------------------------------


Run = tuple[str, int]
"""A task, or a group, and the cycle in which it ran."""


class Cause(NamedTuple):
    """So many of these came first."""

    need: int
    of: frozenset[Run]


@dataclass(frozen=True, slots=True)
class Expected:
    """Everything that must not depend on what happened to the fleet."""

    end: End
    ends: tuple[tuple[str, int, str], ...]
    causes: dict[Run, Cause]
    lists: frozenset[str]  # values whose order is open

    @property
    def completed(self) -> set[Run]:
        return {(task, cycle) for task, cycle, how in self.ends if how == "completed"}


def expected(program: Program) -> Expected:
    """Interpret the program."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 20 * len(program.bodies)))
    model = Model(program)
    end = model.run()
    bodies = model.bodies.values()
    lists = {name for body in bodies for kind, name, _ in body.ops if kind == "append"}
    causes = {run: Cause(need or len(of), frozenset(of)) for run, (need, of) in model.causes.items() if of}
    return Expected(end, tuple(model.ends), causes, frozenset(lists))


class Model(Oracle):
    """The oracle, which also writes down each end and what led to each run."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, limit=100 * len(program.bodies))
        self.graph = LargeGraph(program)
        self.ends: list[tuple[str, int, str]] = []
        self.causes: dict[Run, tuple[int, set[Run]]] = {}  # 0: all of them
        self._now: Run | None = None
        self._arriving: str | None = None
        self._arrived: dict[str, set[Run]] = {}  # at gates that are open; those of `causes` go on growing

    def _take(self, spec: Spec) -> None:
        self._now = (spec.task, spec.cycle)
        steps, retries = self.end.steps, self.features["retry"]
        super()._take(spec)
        self.ends.append((spec.task, spec.cycle, self._how(spec, steps, retries)))

    def _how(self, spec: Spec, steps: int, retries: int) -> str:
        if spec.how in ("pass", "skip"):
            return {"pass": "passed", "skip": "skipped"}[spec.how]
        if self.end.steps > steps:
            return "completed"
        return "retry" if self.features["retry"] > retries else "lost"

    def _arrive(self, task: str, ok: int) -> None:
        if not self._waits(task):
            super()._arrive(task, ok)
            return
        assert self._now is not None
        group = self.graph.groups.get(task)
        if ok or group is None or group.policy != "least":
            self._arrived.setdefault(task, set()).add(self._now)
        self._arriving = task
        super()._arrive(task, ok)
        self._arriving = None
        if task not in self.gates:
            self._arrived.pop(task, None)

    def _enqueue(self, task: str, data: Any = None, how: str = "run") -> None:
        if self._now is not None:
            run = (task, self.counts[task])
            if task == self._arriving:
                group = self.graph.groups.get(task)
                least = group is not None and group.policy == "least" and how == "run"
                self.causes[run] = (group.need if group and least else 0, self._arrived.get(task, set()))
            else:
                self.causes[run] = (0, {self._now})
        super()._enqueue(task, data, how)


class LargeGraph(Graph):
    """The same shape, for programs of thousands of tasks: what leads where is worked out once."""

    _below: dict[str, set[str]]

    def __post_init__(self) -> None:
        self._below = {}
        super().__post_init__()

    def leads_to(self, source: str, target: str) -> bool:
        below = self._below.get(source)
        if below is None:
            below = self._below[source] = set()
            walk = [source]
            while walk:
                name = walk.pop()
                if name not in below:
                    below.add(name)
                    walk += self.forward[name]
        return target in below
