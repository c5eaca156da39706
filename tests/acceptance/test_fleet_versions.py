"""How sessions are spread over the workers of a fleet: who runs what, when, and which version of a module."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from textwrap import dedent
from typing import Any

from graflow_ckpt import group
from graflow_ckpt.sessions.redis.keys import keys_of
from tests.acceptance.fleet_tasks import compute, make, named, stray, surroundings, wait
from tests.acceptance.fleets import Fleet, intervals, most_at_once
from tests.chaos.tasks import RUNS
from tests.pools import KEY, ROOT, Pool
from tests.pools import surroundings as outside
from tests.stretch import comes, stretched


def test_two_workers_share_tasks_of_five_milliseconds(mine: Fleet) -> None:
    tasks = [named(f"t{n}", compute, seconds=0.005) for n in range(200)]

    with mine.pool(), mine.pool():
        mine.ready(2)
        mine.complete(group(*tasks) >> named("last"))

    done = Counter(line.pid for line in mine.lines("ended"))
    assert sum(done.values()) == 201
    assert len(done) == 2
    assert min(done.values()) > 40
    assert sorted(mine.completed()) == sorted([*(f"t{n}" for n in range(200)), "last"])


def test_the_members_of_a_group_run_on_several_workers_at_the_same_time(mine: Fleet) -> None:
    members = [named(f"m{n}", seconds=stretched(0.5)) for n in range(4)]

    with mine.pool(n=4):
        mine.ready(4)
        mine.complete(named("first") >> group(*members) >> named("last"))

    found = [line for line in mine.lines() if line.task.startswith("m")]
    assert most_at_once(found) == 4
    assert len({line.pid for line in found}) == 4
    assert mine.completed()[0] == "first"
    assert mine.completed()[-1] == "last"


def test_a_session_never_has_more_than_its_cap_at_once(mine: Fleet) -> None:
    tasks = [named(f"t{n}", seconds=0.05) for n in range(12)]

    with mine.pool(n=4):
        mine.ready(4)
        mine.complete(*tasks, max_parallel=2)

    assert most_at_once(mine.lines()) == 2


def test_two_sessions_with_a_cap_each_run_side_by_side(mine: Fleet) -> None:
    with mine.pool(n=2):
        mine.ready(2)
        handles = [
            mine.submit(*[named(f"{name}{n}", seconds=0.05) for n in range(6)], session=name, max_parallel=1)
            for name in ("a", "b")
        ]
        assert [handle.wait(30).status for handle in handles] == ["completed"] * 2, mine.said

    for name in ("a", "b"):
        assert most_at_once([line for line in mine.lines() if line.task.startswith(name)]) == 1
    assert most_at_once(mine.lines()) == 2


def test_of_what_is_ready_the_highest_priority_runs_first(mine: Fleet) -> None:
    order = [3, -2, 9, 0, 5]
    tasks = [named(f"p{p}", options={"priority": p}) for p in order]

    with mine.pool():
        mine.complete(named("first") >> group(*tasks))

    assert mine.completed() == ["first", "p9", "p5", "p3", "p0", "p-2"]


def test_a_retry_waits_for_its_time_while_others_run(mine: Fleet) -> None:
    later = named("later", options={"max_retries": 1, "backoff": 0.6, "jitter": 0.0}, fails=1)
    others = [named(f"t{n}", seconds=0.02) for n in range(5)]

    with mine.pool():
        mine.complete(later, *others)

    failed, began = mine.wait_for("failed", "later"), mine.wait_for("began", "later", 2)
    assert 0.55 < began.at - failed.at < stretched(2.0)
    assert [commit.how for commit in mine.ledger() if commit.task == "later"] == ["retry", "completed"]
    assert mine.completed()[-1] == "later"


def test_tasks_made_at_run_time_are_run_by_several_workers(mine: Fleet) -> None:
    names = [f"made{n}" for n in range(12)]

    with mine.pool(), mine.pool():
        mine.ready(2)
        mine.complete(named("maker", make, names=names, seconds=0.1))

    assert len({line.pid for line in mine.lines("ended") if line.task.startswith("made")}) == 2
    assert sorted(mine.completed()) == sorted(["maker", *names])


def test_folder_and_environment_that_a_task_changes_are_not_those_of_the_next_one(mine: Fleet) -> None:
    first, second, third = (named(f"look{n}", surroundings) for n in range(3))
    failing = named("failing", stray, options={"max_retries": 1, "backoff": 0.0})

    with mine.pool():
        handle = mine.complete(first >> named("well", stray) >> second >> failing >> third)

    found = [handle.value(f"look{n}.__result__") for n in range(3)]
    assert found[0][1] is None
    assert found[1] == found[2] == found[0]
    assert len({line.pid for line in mine.lines("ended")}) == 1


def test_a_task_runs_where_its_queue_is_served(mine: Fleet) -> None:
    gpu = {"options": {"queue": "gpu"}}
    chain = named("a") >> named("b", **gpu) >> named("c") >> named("d", **gpu)

    plain, other = mine.pool(queues=("default",)), mine.pool(queues=("gpu",))
    with plain, other:
        mine.complete(chain)
        where = {pool.name: {child.pid for child in pool.family()} for pool in (plain, other)}

    ran = {line.task: line.pid for line in mine.lines("ended")}
    assert {ran["a"], ran["c"]} <= where[plain.name]
    assert {ran["b"], ran["d"]} <= where[other.name]


def test_a_task_whose_queue_nobody_serves_waits_for_a_worker(mine: Fleet) -> None:
    with mine.pool(queues=("default",)):
        handle = mine.submit(named("a") >> named("b", options={"queue": "gpu"}))
        assert comes(lambda: mine.completed() == ["a"]), mine.said
        assert not comes(lambda: handle.status().status != "running", 0.5)

        with mine.pool(queues=("gpu",)):
            assert handle.wait(30).status == "completed", mine.said

    assert mine.completed() == ["a", "b"]


def test_others_are_called_while_a_long_task_holds_its_worker(mine: Fleet) -> None:
    """Work waits behind a body that has only begun: its keeper asks for another worker."""
    with mine.pool(n=2):
        mine.ready(2)
        handle = mine.submit(named("first") >> group(named("long", wait), named("short")))
        short = mine.wait_for("ended", "short")
        mine.open_gate()
        assert handle.wait(30).status == "completed", mine.said

    long = mine.wait_for("ended", "long")
    assert short.pid != long.pid
    assert any(start < short.at < end for start, end, pid in intervals(mine.lines()) if pid == long.pid)


# --- two versions of a module on one fleet ----------------------------------------------


FLOWS = """
import os, time
from graflow_ckpt import group, task, workflow

VERSION = {version}

def note(name):
    with open(os.environ["CHAOS_RUNS"], "a") as file:
        file.write(f"{{name}} {{VERSION}} {{os.getpid()}}\\n")

@task
def first():
    note("first")
    return VERSION

@task(inject_context=True)
def middle(context, n=0):
    note(context.task_id)
    time.sleep(0.01)
    return n

@task
def last():
    note("last")
    return VERSION

def flow(session, width=20):
    with workflow("flow", session) as made:
        made.add(first >> group(*(middle.bind(id=f"m{{n}}", n=n) for n in range(width))) >> last)
    return made
"""


def machine(mine: Fleet, name: str, **modules: str) -> Path:
    """A folder with these modules."""
    folder = mine.folder / name
    folder.mkdir(exist_ok=True)
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(dedent(text))
    return folder


def two_machines(mine: Fleet, text: str = FLOWS) -> list[Path]:
    """Of the first and the second version of that module."""
    return [machine(mine, name, flows=text.format(version=n)) for n, name in enumerate(("old", "new"), 1)]


def pool_on(mine: Fleet, folder: Path, **settings: Any) -> Pool:
    """A pool that can import what is in a folder."""
    path = {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    return mine.pool(f"{folder.name}-{len(mine.pools)}", environment=path, **settings)


def program_on(mine: Fleet, folder: Path, text: str, *, status: int = 0, **environment: str) -> str:
    """What a program prints that is run there; `connect()` is imported."""
    file = folder / "program.py"
    file.write_text(f"from graflow_ckpt import connect, group, task, workflow\n{dedent(text)}")
    surrounding = (
        outside(redis_url=mine.server.url, key=KEY) | {RUNS: str(mine.folder / "runs")} | environment
    )
    surrounding["PYTHONPATH"] = f"{ROOT}{os.pathsep}{folder}"
    done = subprocess.run(
        [sys.executable, file.name], cwd=folder, env=surrounding, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def ran(mine: Fleet) -> list[tuple[str, str, int]]:
    """What was noted: task, version, process."""
    file = mine.folder / "runs"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(name, version, int(pid)) for name, version, pid in map(str.split, lines)]


# --- versions ---------------------------------------------------------------------------


def submitted(mine: Fleet, folder: Path, session: str = "one", **options: Any) -> Any:
    """From a process that has the module of that folder."""
    program_on(mine, folder, f"import flows; flows.flow({session!r}).submit(ledger=True, **{options!r})")
    return mine.client.session(session)


def hows(mine: Fleet, session: str = "one") -> set[str]:
    return {commit.how for commit in mine.ledger(session)} - {"passed"}


def test_each_session_runs_on_the_workers_that_have_its_version(mine: Fleet) -> None:
    old, new = two_machines(mine)
    on_old, on_new = pool_on(mine, old), pool_on(mine, new)

    with on_old, on_new:
        handles = [submitted(mine, old, "one"), submitted(mine, new, "two")]
        assert [handle.wait(30).status for handle in handles] == ["completed"] * 2, mine.said

    assert [handle.value("first.__result__") for handle in handles] == [1, 2]
    assert len(ran(mine)) == 44
    for version in ("1", "2"):
        assert len([name for name, seen, _ in ran(mine) if seen == version]) == 22
    assert hows(mine) == hows(mine, "two") == {"completed"}
    assert [handle.declined() for handle in handles] == [{}, {}]


def test_with_the_other_version_alone_the_session_pauses_and_shows_the_plan(mine: Fleet) -> None:
    old, new = two_machines(mine)

    with pool_on(mine, new, code_patience=1.0):
        began = time.monotonic()
        handle = submitted(mine, old)
        status = handle.wait(20)

        assert status.status == "paused", mine.said
        assert time.monotonic() - began < stretched(8)
        assert (status.failed, status.steps, status.ready) == (0, 0, 1)
        assert "another version of workflow 'flow'" in status.reason
        plan = handle.reason().splitlines()[1:]
        assert re.split("  +", plan[0]) == ["task", "verdict", "state", "note"]
        assert re.split("  +", plan[1]) == ["first", "changed", "pending"]
        assert {line.split()[0] for line in plan[1:]} == {"first", "last", *(f"m{n}" for n in range(20))}
        assert "another version" in next(iter(handle.declined().values()))
        assert "or submit it anew" in mine.said  # a fork has the program of the session

        with pool_on(mine, old):
            mine.ready(2)  # the patience of the other one runs from the moment of the resume
            handle.resume()
            assert handle.wait(20).status == "completed", mine.said

    assert {version for _, version, _ in ran(mine)} == {"1"}
    assert hows(mine) == {"completed"}
    assert handle.declined() == {}


def test_a_worker_that_comes_within_the_patience_is_not_kept_waiting(mine: Fleet) -> None:
    old, new = two_machines(mine)

    with pool_on(mine, new, n=2):
        handle = submitted(mine, old)
        assert comes(handle.declined, 10), mine.said
        time.sleep(2.0)  # by now the token rests for as long as it ever does
        with pool_on(mine, old):
            assert handle.wait(10).status == "completed", mine.said

    assert {version for _, version, _ in ran(mine)} == {"1"}


def test_sessions_that_are_declined_hardly_hold_up_the_others(mine: Fleet) -> None:
    old, new = two_machines(mine)
    program = "import flows\nfor n in range(10): flows.flow(f'd{n}').submit()"

    with pool_on(mine, new):
        program_on(mine, old, program)
        assert comes(lambda: all(mine.client.session(f"d{n}").declined() for n in range(10)), 10), mine.said
        before = tokens(mine)
        began = time.monotonic()
        mine.complete(*[named(f"t{n}", seconds=0.01) for n in range(200)], session="others")
        took = time.monotonic() - began
        made = tokens(mine) - before

    assert took < stretched(5.0)  # alone it takes two seconds
    assert made < 10 * 20 * took  # tokens of the declined ones are not handed around


def tokens(mine: Fleet) -> int:
    """How many the declined sessions have had so far."""
    client: Any = mine.client.link.client
    return sum(int(client.hget(f"{keys_of(f'd{n}')}h", "tokens")) for n in range(10))


def test_a_session_does_not_pause_while_somebody_works_on_it(mine: Fleet) -> None:
    """The one worker that has its version is busy for longer than the others wait."""
    end = mine.folder / "end"
    text = FLOWS + (
        "\n@task\ndef slow():\n    note('slow')\n"
        f"    while not os.path.exists({str(end)!r}):\n        time.sleep(0.05)\n"
        "def long(session):\n    with workflow('long', session) as made:\n"
        "        made.add(slow, middle, first)\n    return made\n"
    )
    old, new = two_machines(mine, text)

    with pool_on(mine, old):
        program_on(mine, old, "import flows; flows.long('one').submit()")
        assert comes(lambda: bool(ran(mine))), mine.said
        wrong = pool_on(mine, new, code_patience=0.5, n=2)
        with wrong:
            handle = mine.client.session("one")
            assert comes(lambda: wrong.said.count("is left to other workers") == 2), mine.said
            paused = comes(lambda: handle.status().status == "paused" or bool(handle.declined()), 1.5)
            assert not paused, mine.said  # and their patience has run out
            end.touch()
            assert handle.wait(20).status == "completed", mine.said

    assert {version for _, version, _ in ran(mine)} == {"1"}


def test_in_a_mixed_fleet_little_time_is_lost(mine: Fleet) -> None:
    """A long session gives its worker up every two seconds: it is asked again soon."""
    old, new = two_machines(mine)

    def took(session: str) -> float:
        program_on(mine, old, f"import flows; flows.flow({session!r}, width=400).submit()")
        began = time.monotonic()
        assert mine.client.session(session).wait(60).status == "completed", mine.said
        return time.monotonic() - began

    with pool_on(mine, old):
        alone = took("alone")
        with pool_on(mine, new, n=2):
            mixed = took("mixed")

    assert mixed < alone * 1.5 + 2.0
