"""Resumed equals uninterrupted, over generated graphs; a sequential oracle says what uninterrupted means."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from graflow_ckpt import EveryN, EveryTask, OnRequest
from tests.acceptance.generated import programs
from tests.acceptance.oracle import End, Oracle
from tests.acceptance.played import Stage, run
from tests.acceptance.program import Program

GRAPHS = int(os.environ.get("GRAFLOW_GRAPHS", "500"))
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


@st.composite
def interruptions(draw: st.DrawFn, executions: int) -> tuple[tuple[int, bool], ...]:
    """At which executions the process dies, and whether at their beginning or at their end."""
    at = draw(st.lists(st.integers(0, executions), min_size=1, max_size=2, unique=True))
    return tuple((number, draw(st.booleans())) for number in at)


@settings(
    max_examples=GRAPHS,
    deadline=None,
    derandomize=GRAPHS == 500,  # the default run is the same everywhere; others look elsewhere each time
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
@given(drawn=programs(), data=st.data())
def check(folder: str, drawn: tuple[Program, Oracle], data: st.DataObject) -> None:
    """One graph, whose sessions are cleared away when it is through."""
    with TemporaryDirectory(dir=folder) as own:
        check_one(own, *drawn, data)


def check_one(folder: str, program: Program, oracle: Oracle, data: st.DataObject) -> None:
    """As the oracle says, then with deaths under each durability, then in slices."""
    executions = oracle.executions

    def place() -> dict[str, Any]:
        return {"store": f"{folder}/{next(numbers)}", "session_id": "s"}

    assert differences(uninterrupted(program, oracle, place()), oracle) == {}

    mortal = Stage(program, data.draw(interruptions(executions), "deaths under durability=checkpoint"))
    policy = data.draw(POLICIES, "policy")
    end = run(mortal, durability="checkpoint", checkpoint=policy, **place())
    assert differences(end, oracle) == {}

    journaled = Stage(program, data.draw(interruptions(executions), "deaths under durability=journal"))
    end = run(journaled, durability="journal", checkpoint=data.draw(POLICIES, "policy"), **place())
    assert differences(end, oracle) == {}
    assert journaled.twice == [], "a committed execution ran again"

    sliced = Stage(program, data.draw(st.sampled_from([(), ((executions // 2, True),)]), "deaths in slices"))
    durability = data.draw(st.sampled_from(["checkpoint", "journal"]), "durability")
    steps = data.draw(st.integers(1, 4), "steps in a slice")
    end = run(sliced, slices=steps, durability=durability, **place())
    assert differences(end, oracle) == {}

    count_features(oracle, policy, mortal, journaled, sliced, executions > 2 * steps)


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
    "late arrival absorbed", "join fires", "cut off", "skip arrives at a join", "skipped at a join",
    "loop edge taken", "next_iteration with data", "next_task with data", "max_cycles exceeded",
    "goto forward", "goto aside", "goto back", "goto joins other branches", "join beside a way back",
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

    check(folder)

    print(f"\n{seen['graphs']} graphs, of which this many had")
    for name in OCCUR:
        print(f"{seen[name]:6}  {name}")
    assert seen["graphs"] >= GRAPHS
    assert GRAPHS < 500 or [name for name in OCCUR if not seen[name]] == []
