"""The short chaos: what `make chaos` does for minutes, in half a one. Seeds are fixed, moments are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.run import main, run
from tests.chaos.schedule import KILLED, Plan, schedule

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]


@pytest.mark.parametrize(("seed", "fsync"), [(5, "everysec"), (6, "always")])
def test_whatever_is_killed_each_task_is_committed_once_and_in_order(
    tmp_path: Path, seed: int, fsync: str
) -> None:
    some = {"kills": 5, "stops": 2, "servers": 1, "losses": 0, "freezes": 0}
    for turn in range(3):  # two stops may both be followed by a kill, or come back before anybody looked
        plan = Plan(seed + 100 * turn, tasks=200, lease=1.5, fsync=fsync, **some)
        (tmp_path / str(turn)).mkdir()

        report = run(plan, tmp_path / str(turn))

        assert report.verdict.violations == [], "\n".join(report.logs.values())
        assert report.verdict.figures["committed once"] >= 180
        assert len(report.deeds) == plan.kills + plan.stops + plan.servers
        if report.shown:
            break
    assert report.shown


def test_by_hand_it_says_what_it_does_and_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """`make chaos`, with nothing done to the fleet."""
    none = [f"--{what}=0" for what in ("kills", "stops", "servers", "losses", "freezes")]

    status = main(["--seed", "9", "--tasks", "40", "--pace", "0.1", "--fsync", "always", *none])

    said = capsys.readouterr().out
    assert status == 0, said
    assert "chaos with seed 9, appendfsync always" in said
    assert "all is well" in said
    assert "make chaos SEED=9" in said


def test_a_seed_gives_the_same_blows_and_another_one_others() -> None:
    first = schedule(Plan(seed=7))

    assert schedule(Plan(seed=7)) == first
    assert schedule(Plan(seed=8)) != first
    assert [blow.what for blow in first].count("kill") >= 25
    assert [blow.what for blow in first].count("stop") == 8
    assert [blow.loses for blow in first if blow.what == "server"].count(0.0) == 3
    assert all(blow.seconds > Plan(seed=7).lease for blow in first if blow.what == "stop")
    assert {blow.whom for blow in first if blow.what == "kill"} == set(KILLED)
