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
from dataclasses import replace

from tests.acceptance.program import Body, Fork, Part, Program

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
