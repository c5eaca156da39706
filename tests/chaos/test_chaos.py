"""The short chaos: what `make chaos` does for minutes, in half a one. Seeds are fixed, moments are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import Plan, run
from tests.chaos.schedule import KILLED, schedule

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]


@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_whatever_is_killed_each_task_is_committed_once_and_in_order(tmp_path: Path, fsync: str) -> None:
    seeds = {"everysec": 5, "always": 6}
    plan = Plan(seeds[fsync], tasks=200, kills=5, stops=2, servers=1, lease=1.5, fsync=fsync)

    report = run(plan, tmp_path)

    assert report.verdict.violations == [], "\n".join(report.logs.values())
    assert report.verdict.figures["committed once"] >= 180
    assert len(report.deeds) == plan.kills + plan.stops + plan.servers
    assert report.zombies


def test_a_seed_gives_the_same_blows_and_another_one_others() -> None:
    first = schedule(7, kills=28, stops=8, servers=3, lease=2.0)

    assert schedule(7, kills=28, stops=8, servers=3, lease=2.0) == first
    assert schedule(8, kills=28, stops=8, servers=3, lease=2.0) != first
    assert [blow.what for blow in first].count("kill") == 28
    assert all(blow.seconds > 2.0 for blow in first if blow.what == "stop")
    assert {blow.whom for blow in first if blow.what == "kill"} == set(KILLED)
