"""How a session is spread over the workers of a fleet: who runs what, when, and how much at once."""

from __future__ import annotations

from collections import Counter

from graflow_ckpt import group
from tests.acceptance.fleet_tasks import compute, make, named, stray, surroundings, wait
from tests.acceptance.fleets import Fleet, intervals, most_at_once
from tests.chaos.pools import pools, until
from tests.stretch import stretched


def test_two_workers_share_tasks_of_five_milliseconds(mine: Fleet) -> None:
    tasks = [named(f"t{n}", compute, seconds=0.005) for n in range(200)]

    with pools(mine.pool(), mine.pool()):
        mine.ready(2)
        handle = mine.submit(group(*tasks) >> named("last"))
        assert handle.wait(30).status == "completed", mine.said

    done = Counter(line.pid for line in mine.lines("ended"))
    assert sum(done.values()) == 201
    assert len(done) == 2
    assert min(done.values()) > 40
    assert sorted(mine.completed()) == sorted([*(f"t{n}" for n in range(200)), "last"])


def test_the_members_of_a_group_run_on_several_workers_at_the_same_time(mine: Fleet) -> None:
    members = [named(f"m{n}", seconds=stretched(0.5)) for n in range(4)]

    with pools(mine.pool(workers="4")):
        mine.ready(4)
        handle = mine.submit(named("first") >> group(*members) >> named("last"))
        assert handle.wait(30).status == "completed", mine.said

    found = [line for line in mine.lines() if line.task.startswith("m")]
    assert most_at_once(found) == 4
    assert len({line.pid for line in found}) == 4
    assert mine.completed()[0] == "first"
    assert mine.completed()[-1] == "last"


def test_a_session_never_has_more_than_its_cap_at_once(mine: Fleet) -> None:
    tasks = [named(f"t{n}", seconds=0.05) for n in range(12)]

    with pools(mine.pool(workers="4")):
        mine.ready(4)
        handle = mine.submit(*tasks, max_parallel=2)
        assert handle.wait(30).status == "completed", mine.said

    assert most_at_once(mine.lines()) == 2


def test_two_sessions_with_a_cap_each_run_side_by_side(mine: Fleet) -> None:
    with pools(mine.pool(workers="2")):
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

    with pools(mine.pool()):
        handle = mine.submit(named("first") >> group(*tasks))
        assert handle.wait(30).status == "completed", mine.said

    assert mine.completed() == ["first", "p9", "p5", "p3", "p0", "p-2"]


def test_a_retry_waits_for_its_time_while_others_run(mine: Fleet) -> None:
    later = named("later", options={"max_retries": 1, "backoff": 0.6, "jitter": 0.0}, fails=1)
    others = [named(f"t{n}", seconds=0.02) for n in range(5)]

    with pools(mine.pool()):
        handle = mine.submit(later, *others)
        assert handle.wait(30).status == "completed", mine.said

    failed, began = mine.wait_for("failed", "later"), mine.wait_for("began", "later", 2)
    assert 0.55 < began.at - failed.at < stretched(2.0)
    assert [commit.how for commit in mine.ledger() if commit.task == "later"] == ["retry", "completed"]
    assert mine.completed()[-1] == "later"


def test_tasks_made_at_run_time_are_run_by_several_workers(mine: Fleet) -> None:
    names = [f"made{n}" for n in range(12)]

    with pools(mine.pool(), mine.pool()):
        mine.ready(2)
        handle = mine.submit(named("maker", make, names=names, seconds=0.1))
        assert handle.wait(30).status == "completed", mine.said

    assert len({line.pid for line in mine.lines("ended") if line.task.startswith("made")}) == 2
    assert sorted(mine.completed()) == sorted(["maker", *names])


def test_folder_and_environment_that_a_task_changes_are_not_those_of_the_next_one(mine: Fleet) -> None:
    first, second, third = (named(f"look{n}", surroundings) for n in range(3))
    failing = named("failing", stray, options={"max_retries": 1, "backoff": 0.0})

    with pools(mine.pool()):
        handle = mine.submit(first >> named("well", stray) >> second >> failing >> third)
        assert handle.wait(30).status == "completed", mine.said

    found = [handle.value(f"look{n}.__result__") for n in range(3)]
    assert found[0][1] is None
    assert found[1] == found[2] == found[0]
    assert len({line.pid for line in mine.lines("ended")}) == 1


def test_a_task_runs_where_its_queue_is_served(mine: Fleet) -> None:
    gpu = {"options": {"queue": "gpu"}}
    chain = named("a") >> named("b", **gpu) >> named("c") >> named("d", **gpu)

    plain, other = mine.pool(queues="default"), mine.pool(queues="gpu")
    with pools(plain, other):
        handle = mine.submit(chain)
        assert handle.wait(30).status == "completed", mine.said
        where = {pool.name: {child.pid for child in pool.family()} for pool in (plain, other)}

    ran = {line.task: line.pid for line in mine.lines("ended")}
    assert {ran["a"], ran["c"]} <= where[plain.name]
    assert {ran["b"], ran["d"]} <= where[other.name]


def test_a_task_whose_queue_nobody_serves_waits_for_a_worker(mine: Fleet) -> None:
    with pools(mine.pool(queues="default")):
        handle = mine.submit(named("a") >> named("b", options={"queue": "gpu"}))
        assert until(lambda: mine.completed() == ["a"]), mine.said
        assert not until(lambda: handle.status().status != "running", 0.5)

        with pools(mine.pool(queues="gpu")):
            assert handle.wait(30).status == "completed", mine.said

    assert mine.completed() == ["a", "b"]


def test_others_are_called_while_a_long_task_holds_its_worker(mine: Fleet) -> None:
    """Work waits behind a body that has only begun: its keeper asks for another worker."""
    with pools(mine.pool(workers="2")):
        mine.ready(2)
        handle = mine.submit(named("first") >> group(named("long", wait), named("short")))
        short = mine.wait_for("ended", "short")
        mine.open_gate()
        assert handle.wait(30).status == "completed", mine.said

    long = mine.wait_for("ended", "long")
    assert short.pid != long.pid
    assert any(start < short.at < end for start, end, pid in intervals(mine.lines()) if pid == long.pid)
