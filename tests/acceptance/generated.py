"""Hypothesis strategies for programs: workflows as plain data (see program.py).

A program is a spine of single tasks, diamonds and groups, with loop edges back along the spine and
inside members, side tasks that only a goto reaches, and tasks made at run time. Programs for several
threads are confluent by construction: a task writes names of its own, appends, or adds to a sum, and
never runs beside itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from tests.acceptance.oracle import Oracle, TooLong
from tests.acceptance.program import Body, Fork, Graph, Part, Program, inside

Draw = Callable[[st.SearchStrategy[Any]], Any]

few = st.integers(0, 9)  # "in n of ten cases" is few < n


class Shape:
    """The nodes and edges of a program that is being drawn."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.names: list[str] = []
        self.spine: list[str] = []
        self.chains: list[tuple[Part, ...]] = []
        self.forks: list[Fork] = []
        self.members: list[tuple[str, ...]] = []  # plain chains inside groups
        self.loops: list[tuple[str, str]] = []
        tail: Part = self.single()
        for _ in range(draw(st.integers(1, 3))):
            tail = draw(st.sampled_from([self.add_single, self.add_diamond, self.add_group]))(tail)
        self.last = self.single()
        self.chains.append((tail, self.last))
        self.side = [self.name("s") for _ in range(draw(st.integers(0, 2)))]
        if len(self.side) == 2:
            self.chains.append(tuple(self.side))
        self.add_loops()

    def name(self, letter: str = "t") -> str:
        self.names.append(f"{letter}{len(self.names)}")
        return self.names[-1]

    def single(self) -> str:
        self.spine.append(self.name())
        return self.spine[-1]

    def add_single(self, tail: Part) -> Part:
        name = self.single()
        self.chains.append((tail, name))
        return name

    def add_diamond(self, tail: Part) -> Part:
        left, right = self.name(), self.name()
        longer = (self.name(),) if self.draw(st.booleans()) else ()
        join = self.single()
        self.chains += [(tail, left, *longer, join), (tail, right, join)]
        extra = self.draw(st.integers(0, 3))
        if extra == 1:
            self.chains.append((tail, join))
        elif extra == 2:
            self.chains.append((left, right))
        return join

    def add_group(self, tail: Part) -> Part:
        fork = self.fork(nested=self.draw(few) < 2)
        self.chains.append((tail, fork))
        return fork

    def fork(self, nested: bool) -> Fork:
        members: list[tuple[Part, ...]] = []
        for number in range(self.draw(st.integers(2, 3))):
            member: tuple[Part, ...] = tuple(self.name("m") for _ in range(self.draw(st.integers(1, 3))))
            self.members.append(member)  # type: ignore[arg-type]
            if nested and number == 0:
                member = (*member, self.fork(nested=False), self.name("m"))
            members.append(member)
        policy = self.draw(st.sampled_from(["all", "best", "least"]))
        need = self.draw(st.integers(1, len(members))) if policy == "least" else 0
        fork = Fork(f"g{len(self.forks)}", policy, need, tuple(members))
        self.forks.append(fork)
        return fork

    def add_loops(self) -> None:
        if self.draw(few) < 4:
            at = self.draw(st.integers(0, len(self.spine) - 2))
            self.loops.append((self.spine[at], self.spine[self.draw(st.integers(0, at))]))
        for member in self.members:
            if len(member) == 3 and self.draw(few) < 4:
                self.loops.append((member[1], member[0]))
        self.chains += self.loops


def _heads(graph: Graph, name: str) -> list[str]:
    """The successors of a task that a goto can name; it cannot name a group."""
    return [n for n in graph.forward[name] if n not in graph.groups]


class Drawing:
    """Bodies for a shape."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.parallel = draw(few) < 3
        self.shape = Shape(draw)
        self.empty = Program(
            tuple(Body(n) for n in self.shape.names), tuple(self.shape.chains), self.shape.names[0]
        )
        self.graph = Graph(self.empty)
        self.made: list[Body] = []
        self.sources = dict(self.shape.loops)
        least = any(fork.policy == "least" for fork in self.shape.forks)
        self.goes_back = not (self.parallel and least)

    def program(self) -> Program:
        bodies = [self.body(name) for name in self.shape.names]
        spread = self.draw(few)
        if spread < 4:
            self.fail(bodies, spread)
        return replace(
            self.empty,
            bodies=tuple(bodies),
            made=tuple(self.made),
            on_failure=self.draw(st.sampled_from(["pause", "pause", "continue"])),
            seed=self.draw(st.integers(0, 99)),
            parallel=self.parallel,
        )

    def body(self, name: str) -> Body:
        ways = [*self.graph.before[name], *(s for s, t in self.sources.items() if t == name)]
        readable = [w for w in ways if self.may_read(w)]
        reads = tuple(w for w in readable if self.draw(st.booleans()))
        later: tuple[Any, ...] = ("plain",)
        visits: list[tuple[Any, ...]] = []
        if name in self.sources:
            later = ("goto", self.draw(st.sampled_from(_heads(self.graph, name) or [self.shape.last])))
            if self.goes_back:
                stay = ("goto", self.sources[name]) if self.parallel else ("plain",)
                visits += [stay] * self.draw(st.integers(0, 3))
        elif self.draw(few) < 3:
            visits += [self.ask(name) for _ in range(self.draw(st.integers(1, 2)))]
        tight = name in self.sources and self.draw(few) < 2
        body = Body(
            name,
            reads,
            self.ops(name),
            tuple(visits),
            later,
            priority=self.draw(st.sampled_from([0, 0, 0, 0, 5, -1])),
            max_cycles=2 if tight else None,
            constant=self.draw(st.integers(1, 9)),
        )
        return calm(body) if ("cancel",) in visits else body  # an end takes back no changes in place

    def may_read(self, way: str) -> bool:
        """Who may still be running when the group goes on is not read on several threads."""
        fork = self.graph.groups.get(way)
        if self.parallel and fork is not None and fork.policy == "least":
            return False
        return fork is None or all(tail in self.shape.names for tail in self.graph.tails[way])

    def ops(self, name: str) -> tuple[tuple[str, str, int], ...]:
        shared = "shared"
        choices = [
            ("set", f"own_{name}"), ("mutate", f"items_{name}"), ("live", f"live_{name}"),
            ("append", "list"), ("add", "sum"), ("checkpoint", ""),
        ]  # fmt: skip
        if not self.parallel:
            choices += [
                ("random", "drawn"),
                ("read", shared),
                ("set", shared),
                ("live", "live"),
                ("read", "sum"),
            ]
        found = self.draw(st.lists(st.sampled_from(choices), max_size=3))
        if self.parallel and ("add", "sum") in found:  # who loses a race for it must be able to run again:
            found = [op for op in found if op[0] != "live"]  # what is changed in place is not undone for that
        return tuple((kind, where, self.draw(st.integers(1, 9))) for kind, where in found)

    def ask(self, name: str) -> tuple[Any, ...]:
        """Something else than going on to the successors."""
        graph, shape, pick = self.graph, self.shape, self.pick
        on_spine = name in shape.spine
        below = [n for n in shape.names if n != name and n in graph.before and graph.leads_to(name, n)]
        verbs = ["again", "make", "make"]
        alone = on_spine or not self.parallel  # nothing else runs that could go there too
        verbs += ["below", "make goto"] if below and alone else []
        verbs += ["above"] if alone and self.goes_back else []
        verbs += ["side"] if alone and shape.side and name not in shape.side else []
        verbs += [] if self.parallel else ["aside", "also", "end"]
        verb = pick(verbs)
        if verb == "again":
            return ("again", self.draw(st.integers(0, 99)))
        if verb == "make":
            return ("make", self.make(), pick([None, *_heads(graph, name)]))
        if verb == "make goto":
            return ("make goto", self.make())
        if verb == "below":
            return ("goto", pick(below))
        if verb == "above":
            higher = [n for n in shape.names if n in graph.before and graph.leads_to(n, name)]
            return ("goto", pick([n for n in higher if n in shape.spine or not self.parallel]))
        if verb == "side":
            return ("goto", shape.side[0])
        if verb == "also":
            return ("also", pick([n for n in shape.names if n != name]), self.draw(st.integers(0, 99)))
        if verb == "aside":
            return ("goto", pick([n for n in shape.names if n != name]))
        return (pick(["terminate", "cancel"]),)

    def pick(self, choices: list[Any]) -> Any:
        return self.draw(st.sampled_from(choices))

    def make(self) -> str:
        """A task that will join the graph at run time."""
        name = f"d{len(self.made)}"
        self.made.append(Body(name, (), self.ops(name), constant=self.draw(st.integers(1, 9))))
        return name

    def fail(self, bodies: list[Body], spread: int) -> None:
        """Some attempts of some tasks fail; those change no live value in place."""
        members = [n for fork in self.shape.forks for n in sorted(inside(fork)) if n in self.shape.names]
        for number in range(1 + spread // 2):
            pool = members if members and number == 0 and spread % 2 else self.shape.names
            at = self.shape.names.index(self.draw(st.sampled_from(pool)))
            retries = self.draw(st.integers(0, 2))
            broken = self.draw(st.booleans())
            bodies[at] = replace(
                calm(bodies[at]),
                retries=retries,
                flaky=0 if broken else self.draw(st.integers(0, retries)),
                broken=broken,
            )


@st.composite
def programs(draw: Draw) -> tuple[Program, Oracle]:
    """A program, and the oracle that has interpreted it."""
    program = Drawing(draw).program()
    try:
        oracle = interpreted(program)
        broken = sum(body.broken or body.max_cycles is not None for body in program.bodies)
        if program.parallel and (oracle.end.status == "failed" or (oracle.mended and broken > 1)):
            # which of them ran before the first of them paused the session is anybody's guess
            program = replace(program, parallel=False)
            oracle = interpreted(program)
        if oracle.features["goto into another branch is refused"]:  # a failure takes back nothing in place
            program = replace(program, bodies=tuple(map(calm, program.bodies)))
            oracle = interpreted(program)
    except TooLong:
        assume(False)
    return program, oracle


def calm(body: Body) -> Body:
    """The same task, without changes in place of live values."""
    return replace(body, ops=tuple(op for op in body.ops if op[0] != "live"))


def interpreted(program: Program) -> Oracle:
    """The oracle, when it has said what the program comes to."""
    oracle = Oracle(program, limit=40)
    oracle.run()
    oracle.features.update(shape_of(program, oracle))
    return oracle


def shape_of(program: Program, oracle: Oracle) -> list[str]:
    """The features that a program has by its shape."""
    graph = oracle.graph
    found = ["several threads" if program.parallel else "one thread"]
    found += [f"group policy {fork.policy}" for fork in graph.groups.values()]
    members = [member for fork in graph.groups.values() for member in fork.members]
    found += ["group member is a chain"] * any(len(m) > 1 for m in members)
    found += ["nested group"] * any(isinstance(part, Fork) for m in members for part in m)
    found += ["diamond"] * any(len(w) > 1 and n not in graph.groups for n, w in graph.before.items())
    found += ["priority"] * any(body.priority for body in program.bodies)
    return found


# --- programs for features of the engine that generated ones do not always have ---------


OPS = (("random", "drawn", 1), ("append", "list", 1), ("read", "list", 1))


def _program(names: str, *chains: tuple[Part, ...], **bodies: dict[str, Any]) -> Program:
    """Tasks of one letter, the first is the start; those in `bodies` have more than a name."""
    made = (Body(**{"name": name, "ops": OPS, **bodies.get(name, {})}) for name in names)
    return Program(tuple(made), chains, names[0])


def _fork(policy: str, need: int, *members: tuple[Part, ...], name: str = "g") -> Fork:
    return Fork(name, policy, need, members)


ADDS = {"ops": (("add", "sum", 3),)}
OWN_JOIN = _fork("all", 0, ("b", "d"), ("c", "d"), ("e",))
BOTH = _fork("all", 0, ("l",), ("r",))
NEVER_FULL = _fork("least", 2, ("a",), ("b",))
FOUR = _fork("all", 0, ("a",), ("b",), ("c",), ("d",))
FULL_EARLY = _fork("least", 1, ("a",), ("b", "c"))
ONE_OF_TWO = _fork("least", 1, ("a",), ("b", "c", "d"))
INNER_OF_ONE = _fork("least", 1, ("b",), name="inner")
INNER_OF_TWO = _fork("least", 2, ("l",), ("r",), name="inner")
TWO_OF_THREE = _fork("least", 2, ("p",), ("h", "t"), (INNER_OF_TWO,))
BOTH_NEEDED = _fork("least", 2, ("a",), ("b", "c"))
MADE = (Body("x", ops=(("live", "live", 1), ("set", "own", 2), ("mutate", "items", 3))),)
NESTED = _fork("all", 0, ("a", _fork("best", 0, ("b",), ("c",), name="inner"), "d"), ("e",))

RARE = (
    # a goto past a task to a join that another branch leads to as well
    _program("slxrjz", ("s", "l", "x", "j", "z"), ("s", "r", "j"), l={"visits": (("goto", "j"),)}),
    # a branch that goes back above the fork, while the other one has arrived at the join
    _program("slrj", ("s", "l", "j"), ("s", "r", "j"), r={"visits": (("goto", "s"),)}),
    # likewise, three times, in a branch that is the first, and in a group
    _program("slrj", ("s", "l", "j"), ("s", "r", "j"), l={"visits": (("goto", "s"),) * 3}),
    _program("slrj", ("s", BOTH, "j"), r={"visits": (("goto", "s"),)}),
    _program("slrj", ("s", BOTH, "j"), l={"visits": (("goto", "s"),) * 3}),
    # a join of which every branch goes elsewhere, and one that is skipped so and runs later
    _program(
        "slrjza", ("s", "l", "j", "z"), ("s", "r", "j"),
        l={"visits": (("goto", "a"),)}, r={"visits": (("goto", "a"),)},
    ),
    _program(
        "slrja", ("s", "l", "j"), ("s", "r", "j"), j={"max_cycles": 1},
        l={"visits": (("goto", "a"),)}, r={"visits": (("goto", "a"),)},
        a={"visits": (("plain",), ("also", "s", 0))},
    ),
    # a predecessor that has given a result in an earlier round, and is skipped in this one, or runs again
    _program(
        "scge", ("s", "c", "g", "e"),
        c={"visits": (("plain",), ("goto", "e"))}, e={"reads": ("g",), "visits": (("goto", "s"),)},
    ),
    _program(
        "le", ("l", "e"), ("l", "l"),
        l={"reads": ("l",), "flaky": 1, "retries": 1, "visits": (("plain",), ("goto", "e"))},
    ),
    # a goto past a join that the other branch feeds: from one branch, from both, under another group
    _program("slrmj", ("s", BOTH, "m", "j"), l={"visits": (("goto", "j"),)}),
    _program("slrmj", ("s", BOTH, "m", "j"), l={"visits": (("goto", "j"),)}, r={"visits": (("goto", "j"),)}),
    _program("slrj", ("s", BOTH, "j"), l={"visits": (("goto", "j"),)}),
    _program(
        "slrqmj", ("s", _fork("all", 0, (BOTH,), ("q",), name="h"), "m", "j"),
        l={"visits": (("goto", "j"),)}, r={"visits": (("goto", "j"),)},
    ),
    _program(
        "slrmj", ("s", _fork("least", 2, ("l",), ("r",)), "m", "j"), l={"visits": (("goto", "j"),)},
    ),
    # a goto into another branch, before and after that has run, and where a join of its own forbids it
    _program("sbcdej", ("s", _fork("all", 0, ("b", "c", "d"), ("e",)), "j"), e={"visits": (("goto", "d"),)}),
    _program(
        "sbcej", ("s", _fork("all", 0, ("b",), ("c", "e")), "j"),
        s={"visits": (("goto", "b"),)}, b={"visits": (("goto", "c"),)},
    ),
    _program("sbcdej", ("s", OWN_JOIN, "j"), e={"visits": (("goto", "b"),)}),
    # a goto into a group in the second round, while the first one is under way and one member has failed
    replace(
        _program(
            "sabcdz", ("s", ONE_OF_TWO, "z"), ("s", "s"),
            s={"visits": (("plain",),), "later": ("goto", "b"), "max_cycles": 2},
            a={"priority": -1, "visits": (("make", "x", None),)}, b={"broken": True},
        ),
        made=MADE,
    ),
    # a goto back into one branch: of a group, of a diamond, and to before a join that follows another one
    _program("sabcz", ("s", BOTH_NEEDED, "z"), z={"visits": (("goto", "b"),)}),
    _program("slrj", ("s", "l", "j"), ("s", "r", "j"), j={"visits": (("goto", "l"),)}),
    _program("slmjr", ("s", "l", "m", "j"), ("s", "r", "j"), ("l", "r"), l={"visits": (("goto", "s"),)}),
    # a goto out of a group that needs this member, to a task made at run time
    replace(_program("sabcz", ("s", BOTH_NEEDED, "z"), c={"visits": (("make goto", "x"),)}), made=MADE),
    # a task made before a successor; a join that hears from one more than it waits for; an end with work left
    replace(_program("sa", ("s", "a"), s={"visits": (("make", "x", "a"),)}), made=MADE),
    _program("slrj", ("s", "l", "j"), ("s", "r", "j"), l={"visits": (("also", "r", 5),)}),
    _program("sab", ("s", "a"), ("s", "b"), a={"visits": (("terminate",),)}),
    # a group that can not get enough members any more, also when the program has been mended
    _program("sabz", ("s", NEVER_FULL, "z"), a={"broken": True}),
    _program("sabcz", ("s", FULL_EARLY, "z")),
    # one inside a group that can do without it, and one whose lost members run again, and no other
    _program("sbaoz", ("s", _fork("least", 1, (INNER_OF_ONE, "a"), ("o",)), "z"), b={"broken": True}),
    *(
        _program("sphtlrz", ("s", TWO_OF_THREE, "z"), **{name: {"broken": True} for name in broken})
        for broken in ("hl", "pt", "phlr")
    ),
    _program("sabcdez", ("s", NESTED, "z"), b={"broken": True, "retries": 1}),
    _program("sabz", ("s", "a", "z"), ("s", "b", "z"), a={"visits": (("cancel",),)}),
    # one that comes round too often, also when the program has been mended
    _program("sa", ("s", "a"), s={"visits": (("again", 1),) * 3, "max_cycles": 2}),
    # several that change one value at once
    replace(_program("sabcd", ("s", FOUR), **dict.fromkeys("abcd", ADDS)), parallel=True),
    # several at once, of which one is tried again later and one asks for a checkpoint
    replace(
        _program(
            "sabcd", ("s", FOUR),
            a={**ADDS, "flaky": 1, "retries": 2}, b={"ops": (("checkpoint", "", 7),)}, c=ADDS, d=ADDS,
        ),
        parallel=True,
    ),
)  # fmt: skip
