"""The short chaos: what `make chaos` does for minutes, in half a one. Seeds are fixed, moments are not.

And that its checker sees whatever is wrong in a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.checker import Verdict, check
from tests.chaos.dag import draw
from tests.chaos.model import Expected, expected
from tests.chaos.records import Commit, Line, Session, commits, lines
from tests.chaos.run import main, run
from tests.chaos.schedule import KILLED, Plan, schedule


@pytest.mark.crash
@pytest.mark.timeout(180)
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


@pytest.mark.crash
@pytest.mark.timeout(180)
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


REACHED = {"completed": "ended", "retry": "failed", "lost": "failed"}


@dataclass
class Left:
    """All that a run leaves behind."""

    model: Expected
    ledger: list[Commit]
    lines: list[Line]
    session: Session

    def check(self) -> Verdict:
        return check(self.model, self.ledger, self.lines, self.session)

    def at(self, how: str, *, last: bool = False) -> int:
        """Where in the ledger an end of that kind stands."""
        found = [n for n, commit in enumerate(self.ledger) if commit.how == how]
        return found[-1] if last else found[len(found) // 2]


def honest(model: Expected) -> Left:
    """What a run without any trouble leaves: one worker, in the model's own order."""
    keys: dict[tuple[str, int], int] = {}
    ledger, written, steps, retries = [], [], 0, 0
    for sequence, (task, cycle, how) in enumerate(model.ends, 1):
        key = keys.setdefault((task, cycle), len(keys))
        steps += how == "completed"
        ledger.append(Commit(sequence, steps, task, cycle, key, how, "e1t1"))
        if how in REACHED and not task.startswith("g"):
            retries = sum(c.key == key and c.how == "retry" for c in ledger[:-1])
            for what in ("began", REACHED[how]):
                written.append(Line(what, float(sequence), 77, task, cycle, key, retries, "e1t1"))
    end = model.end
    session = Session(
        end.status, end.steps, dict(end.values), dict(end.results), set(end.completed),
        set(end.skipped), set(end.errors), dict(end.cycles),
    )  # fmt: skip
    return Left(model, ledger, written, session)


@pytest.fixture(scope="module")
def model() -> Expected:
    return expected(draw(seed=5, size=150))


@pytest.fixture
def left(model: Expected) -> Left:
    left = honest(model)
    assert left.check().violations == []
    return left


def test_honest_records_are_found_to_be_right(model: Expected) -> None:
    verdict = honest(model).check()

    assert verdict.violations == []
    assert verdict.figures["committed once"] == verdict.figures["committed"] == model.end.steps
    assert verdict.figures["ran more than once"] == verdict.figures["ended and not committed"] == 0


def test_the_model_of_each_seed_has_what_chaos_is_to_meet() -> None:
    for seed in range(5):
        found = expected(draw(seed, 300))

        hows = {how for _, _, how in found.ends}
        assert hows >= {"completed", "retry", "lost", "passed"}
        assert found.end.status == "completed"
        assert max(found.end.cycles.values()) >= 2
        assert any(len(cause.of) > cause.need for cause in found.causes.values())  # AtLeast
        assert any(cause.need > 2 for cause in found.causes.values())  # joins


# --- one thing wrong -------------------------------------------------------------------


def double_commit(left: Left) -> None:
    again = left.ledger[left.at("completed")]
    left.ledger.append(again._replace(sequence=len(left.ledger) + 1, steps=left.session.steps + 1))


def missing_commit(left: Left) -> None:
    del left.ledger[left.at("completed")]


def missing_retry(left: Left) -> None:
    del left.ledger[left.at("retry")]


def lost_instead(left: Left) -> None:
    n = left.at("completed")
    left.ledger[n] = left.ledger[n]._replace(how="lost")


def swapped_order(left: Left) -> None:
    """The last task, which everything leads to, before the one that was committed in the middle."""
    last, middle = left.at("completed", last=True), left.at("completed")
    a, b = left.ledger[last], left.ledger[middle]
    left.ledger[middle] = a._replace(sequence=b.sequence, steps=b.steps)
    left.ledger[last] = b._replace(sequence=a.sequence, steps=a.steps)


def sequence_falls(left: Left) -> None:
    n = left.at("completed")
    left.ledger[n] = left.ledger[n]._replace(sequence=left.ledger[n - 1].sequence)


def step_twice(left: Left) -> None:
    n = left.at("completed")
    left.ledger[n] = left.ledger[n]._replace(steps=left.ledger[n].steps - 1)


def another_token(left: Left) -> None:
    n = left.at("completed")
    left.ledger[n] = left.ledger[n]._replace(token="e1t99")


def body_did_not_end(left: Left) -> None:
    key = left.ledger[left.at("completed")].key
    left.lines = [line for line in left.lines if line.what != "ended" or line.key != key]


def body_never_began(left: Left) -> None:
    key = left.ledger[left.at("completed")].key
    left.lines = [line for line in left.lines if line.key != key]


def claim_left(left: Left) -> None:
    left.session.left["claims"] = ["t3"]


def token_left(left: Left) -> None:
    left.session.left["tokens"] = ["e1t4"]


def still_running(left: Left) -> None:
    left.session.status = "running"


def step_missing(left: Left) -> None:
    left.session.steps -= 1


def appended_twice(left: Left) -> None:
    name = sorted(left.model.lists)[0]
    left.session.values[name] = [*left.session.values[name], left.session.values[name][0]]


def counter_off(left: Left) -> None:
    name = next(name for name in sorted(left.session.values) if name.startswith("sum"))
    left.session.values[name] += 1


def value_missing(left: Left) -> None:
    left.session.values.popitem()


def value_too_many(left: Left) -> None:
    left.session.values["ghost"] = 1


def result_differs(left: Left) -> None:
    left.session.results["t0"] += 1


def not_completed(left: Left) -> None:
    left.session.completed.discard("t0")


def skipped_too_many(left: Left) -> None:
    left.session.skipped.add("t0")


def error_left(left: Left) -> None:
    left.session.errors.add("t0")


def cycle_missing(left: Left) -> None:
    left.session.cycles.popitem()


@pytest.mark.parametrize(
    ("doctor", "said"),
    [
        (double_commit, "ended too often"),
        (double_commit, "specs that ended twice"),
        (missing_commit, "missing in the ledger"),
        (missing_commit, "steps out of order"),
        (missing_retry, "missing in the ledger"),
        (lost_instead, "missing in the ledger"),
        (swapped_order, "committed before what leads to it"),
        (sequence_falls, "sequences that do not rise"),
        (step_twice, "steps out of order"),
        (another_token, "never began"),
        (body_did_not_end, "did not end"),
        (body_never_began, "never began"),
        (claim_left, "left behind, claims: t3"),
        (token_left, "left behind, tokens: e1t4"),
        (still_running, "the session is running, not completed"),
        (step_missing, "steps, the model has"),
        (appended_twice, "value differs"),
        (counter_off, "value differs"),
        (value_missing, "value differs"),
        (value_too_many, "value differs"),
        (result_differs, "result differs"),
        (not_completed, "not completed, and should be"),
        (skipped_too_many, "skipped, and should not be"),
        (error_left, "failed, and should not be"),
        (cycle_missing, "cycles of differs"),
    ],
)
def test_it_says_what_is_wrong(left: Left, doctor: Callable[[Left], None], said: str) -> None:
    doctor(left)

    verdict = left.check()

    assert any(said in violation for violation in verdict.violations), verdict.violations


def test_any_task_that_comes_too_early_is_noticed(model: Expected) -> None:
    """Not only the last one: each with what it needed, moved to the front of the ledger."""
    for ran, cause in model.causes.items():
        if not cause.of:
            continue
        left = honest(model)
        own = [c for c in left.ledger if (c.task, c.cycle) == ran]
        rest = [c for c in left.ledger if (c.task, c.cycle) != ran]
        left.ledger = [c._replace(sequence=n) for n, c in enumerate([*own, *rest], 1)]

        assert any(f"{ran[0]} (cycle {ran[1]}) was committed before" in v for v in left.check().violations)


def test_at_least_two_of_four_may_be_any_two(model: Expected) -> None:
    """A group that goes on early is no violation: of its members so many have to be there, whichever."""
    run, cause = next((r, c) for r, c in model.causes.items() if 0 < c.need < len(c.of))
    left = honest(model)
    by_run = {(c.task, c.cycle): c for c in left.ledger}
    members = [by_run.pop(member) for member in sorted(cause.of)]
    early, late = members[: cause.need], members[cause.need :]
    passed = by_run.pop(run)
    left.ledger = [*by_run.values(), *early, passed, *late]
    left.ledger = [c._replace(sequence=n) for n, c in enumerate(left.ledger, 1)]

    found = left.check().violations

    assert not any(violation.startswith(f"{run[0]} (cycle") for violation in found)

    left.ledger = [*by_run.values(), *early[1:], passed, *late, early[0]]
    left.ledger = [c._replace(sequence=n) for n, c in enumerate(left.ledger, 1)]
    assert any(violation.startswith(f"{run[0]} (cycle") for violation in left.check().violations)


def test_a_body_that_ran_twice_is_counted_and_no_violation(left: Left) -> None:
    line = next(line for line in left.lines if line.what == "ended")
    for what in ("began", "ended"):
        left.lines.append(line._replace(what=what, token="e1t9", pid=78))

    verdict = left.check()

    assert verdict.violations == []
    assert verdict.figures["ran more than once"] == 1
    assert [refused.token for refused in verdict.refused] == ["e1t9"]


def test_records_are_read_as_they_are_written(tmp_path: Path) -> None:
    entry = b"\x1f".join([b"12", b"7", b"t3", b"1", b"9", b"completed", b"e1t4"])

    assert commits([entry]) == [Commit(12, 7, "t3", 1, 9, "completed", "e1t4")]

    file = tmp_path / "runs"
    file.write_text("began 1.500000 77 t3 1 9 0 e1t4\n")
    assert lines(file) == [Line("began", 1.5, 77, "t3", 1, 9, 0, "e1t4")]
