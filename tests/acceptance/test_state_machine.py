"""Resumed equals uninterrupted, over generated graphs; a sequential oracle says what uninterrupted means."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from graflow_ckpt import EveryN, EveryTask, OnRequest
from graflow_ckpt.core.policy import Policy
from tests.acceptance.generated import interpreted, programs
from tests.acceptance.oracle import End, Oracle
from tests.acceptance.played import Stage, run
from tests.acceptance.program import Program
from tests.acceptance.rare import RARE

GRAPHS = int(os.environ.get("GRAFLOW_GRAPHS", "200"))
seen: Counter[str] = Counter()
numbers = count()


@pytest.fixture
def folder() -> Iterator[str]:
    """In memory where there is such a place: what is durable is the business of other tests."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with TemporaryDirectory(prefix="graflow-ckpt-programs-", dir=place) as name:
        yield name


def differences(end: End, oracle: Oracle) -> dict[str, Any]:
    """Where a run and the oracle differ; on several threads the order of completions and appends is open."""
    found, expected = asdict(end), asdict(oracle.end)
    if oracle.program.parallel:
        for facts in (found, expected):
            facts["completed"] = sorted(facts["completed"])
            facts["values"] = {n: sorted(v) if n == "list" else v for n, v in facts["values"].items()}
    return {n: {"run": found[n], "oracle": expected[n]} for n in found if found[n] != expected[n]}


def uninterrupted(program: Program, oracle: Oracle, place: dict[str, Any]) -> End:
    """Without a disk if nothing fails: only a session that is kept takes back what a failure has drawn."""
    if oracle.mended or oracle.features["attempt fails"]:
        return run(Stage(program), durability="checkpoint", **place)
    return run(Stage(program), durability="none", store=place["store"])


POLICIES = st.sampled_from([EveryTask(), EveryN(2), EveryN(3), OnRequest()])
Deaths = tuple[tuple[int, bool], ...]


class Fate(NamedTuple):
    """How the runs of one graph are interrupted."""

    deaths: Deaths  # at which executions, and whether at their beginning or at their end
    policy: Policy
    journaled_deaths: Deaths
    journaled_policy: Policy
    steps: int  # in a slice
    sliced_deaths: Deaths
    sliced: str  # durability


@st.composite
def interruptions(draw: st.DrawFn, executions: int) -> Deaths:
    at = draw(st.lists(st.integers(0, executions), min_size=1, max_size=2, unique=True))
    return tuple((number, draw(st.booleans())) for number in at)


@st.composite
def fates(draw: st.DrawFn, executions: int) -> Fate:
    return Fate(
        draw(interruptions(executions)),
        draw(POLICIES),
        draw(interruptions(executions)),
        draw(POLICIES),
        draw(st.integers(1, 4)),
        draw(st.sampled_from([(), ((executions // 2, True),)])),
        draw(st.sampled_from(["checkpoint", "journal"])),
    )


@settings(
    max_examples=GRAPHS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
@given(drawn=programs(), data=st.data())
def check(folder: str, drawn: tuple[Program, Oracle], data: st.DataObject) -> None:
    program, oracle = drawn
    check_one(folder, program, oracle, data.draw(fates(oracle.executions), "fate"))


def check_one(folder: str, program: Program, oracle: Oracle, fate: Fate) -> None:
    """As the oracle says, then with deaths under each durability, then in slices."""
    with TemporaryDirectory(dir=folder) as own:  # a long run would fill the place

        def place() -> dict[str, Any]:
            return {"store": f"{own}/{next(numbers)}", "session_id": "s"}

        assert differences(uninterrupted(program, oracle, place()), oracle) == {}

        mortal = Stage(program, fate.deaths)
        end = run(mortal, durability="checkpoint", checkpoint=fate.policy, **place())
        assert differences(end, oracle) == {}

        journaled = Stage(program, fate.journaled_deaths)
        end = run(journaled, durability="journal", checkpoint=fate.journaled_policy, **place())
        assert differences(end, oracle) == {}
        assert journaled.twice == [], "a committed execution ran again"

        sliced = Stage(program, fate.sliced_deaths)
        end = run(sliced, slices=fate.steps, durability=fate.sliced, **place())
        assert differences(end, oracle) == {}

    more = oracle.executions > 2 * fate.steps
    count_features(oracle, fate.policy, mortal, journaled, sliced, more)


def count_features(
    oracle: Oracle, policy: object, mortal: Stage, journaled: Stage, sliced: Stage, more: bool
) -> None:
    """What occurred in this graph."""
    occurred = [name for name, number in oracle.features.items() if number]
    occurred += [f"resumed under {policy}"] * bool(mortal.died)
    occurred += ["resumed from a journal"] * bool(journaled.died)
    occurred += ["died twice"] * (mortal.died > 1)
    occurred += ["continued after max_steps"] * more + ["died in a slice"] * bool(sliced.died)
    seen.update(occurred)
    seen["graphs"] += 1


OCCUR = (
    "one thread", "several threads", "diamond", "group member is a chain", "nested group", "priority",
    "group policy all", "group policy best", "group policy least",
    "group passes: all", "group passes: best", "group passes: least", "group fails: too few members",
    "a failed group waits again",
    "late arrival absorbed", "join fires", "cut off", "skip arrives at a join", "skipped at a join",
    "loop edge taken", "next_iteration with data", "next_task with data", "max_cycles exceeded",
    "goto back", "goto back into one branch of a join", "goto joins other branches", "join beside a way back",
    "goto past a join that others feed", "all branches of a join jump past it", "goto into another branch",
    "goto into another branch is refused",
    "dynamic task", "dynamic task before a successor", "dynamic task instead of the successors",
    "attempt fails", "retry", "lost, the session goes on", "paused by a failure, mended, resumed",
    "terminate with work left", "status completed", "status failed", "status stalled", "status cancelled",
    "op set", "op add", "op append", "op mutate", "op live", "op random", "op read", "op checkpoint",
    "resumed under EveryN(steps=1)", "resumed under EveryN(steps=2)", "resumed under OnRequest()",
    "resumed from a journal", "died twice", "died in a slice", "continued after max_steps",
)  # fmt: skip
"""Every feature of the engine that a graph can use or a run can meet."""


@pytest.mark.timeout(300 + GRAPHS)
def test_resumed_equals_uninterrupted(folder: str) -> None:
    seen.clear()

    for number, program in enumerate(RARE):
        oracle = interpreted(program)
        middle = oracle.executions // 2
        deaths = ((middle, True), (middle + 1, False))
        policy = (EveryTask(), EveryN(2), OnRequest())[number % 3]
        check_one(folder, program, oracle, Fate(deaths, policy, deaths, OnRequest(), 1, deaths, "journal"))
    assert [name for name in OCCUR if not seen[name]] == []  # nothing is left to chance alone
    check(folder)

    print(f"\n{seen['graphs']} graphs, of which this many had")
    for name in OCCUR:
        print(f"{seen[name]:6}  {name}")
    assert seen["graphs"] >= GRAPHS
