"""Programs for features of the engine that generated ones do not always have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.acceptance.program import Body, Fork, Part, Program

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
BOTH_NEEDED = _fork("least", 2, ("a",), ("b", "c"))
MADE = (Body("x", ops=(("live", "live", 1), ("set", "own", 2), ("mutate", "items", 3))),)
NESTED = _fork("all", 0, ("a", _fork("best", 0, ("b",), ("c",), name="inner"), "d"), ("e",))

RARE = (
    # a goto past a task to a join that another branch leads to as well
    _program("slxrjz", ("s", "l", "x", "j", "z"), ("s", "r", "j"), l={"visits": (("goto", "j"),)}),
    # a branch that goes back above the fork, while the other one has arrived at the join
    _program("slrj", ("s", "l", "j"), ("s", "r", "j"), r={"visits": (("goto", "s"),)}),
    # a join of which every branch goes elsewhere
    _program(
        "slrjza", ("s", "l", "j", "z"), ("s", "r", "j"),
        l={"visits": (("goto", "a"),)}, r={"visits": (("goto", "a"),)},
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
