"""The short chaos: what `make chaos` does for minutes, in half a one. Seeds are fixed, moments are not.

And that its checker sees whatever is wrong in a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.model import KILLED, Expected, Plan, draw, expected, schedule
from tests.chaos.records import Commit, Line, Session, Verdict, check, commits, lines
from tests.chaos.run import main, run


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

    @property
    def completed(self) -> Commit:
        """The one in the middle, which is spoilt by those below."""
        return self.ledger[self.at("completed")]

    def change(self, **facts: Any) -> None:
        n = self.at("completed")
        self.ledger[n] = self.ledger[n]._replace(**facts)

    def forget(self, *whats: str) -> None:
        key = self.completed.key
        self.lines = [line for line in self.lines if line.what not in whats or line.key != key]


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


def again(values: dict[str, Any], name: str) -> None:
    """The first item of that list once more."""
    values[name] = [*values[name], values[name][0]]


def more(values: dict[str, Any], *, of: str) -> None:
    """One more under the first name that begins so."""
    values[next(name for name in sorted(values) if name.startswith(of))] += 1


def swapped_order(left: Left) -> None:
    """The last task, which everything leads to, before the one that was committed in the middle."""
    last, middle = left.at("completed", last=True), left.at("completed")
    a, b = left.ledger[last], left.ledger[middle]
    left.ledger[middle] = a._replace(sequence=b.sequence, steps=b.steps)
    left.ledger[last] = b._replace(sequence=a.sequence, steps=a.steps)


Doctor = Callable[[Left], object]
WRONG: dict[str, tuple[Doctor, tuple[str, ...]]] = {
    "committed twice": (
        lambda left: left.ledger.append(
            left.completed._replace(sequence=len(left.ledger) + 1, steps=left.session.steps + 1)
        ),
        ("ended too often", "specs that ended twice"),
    ),
    "a commit is missing": (
        lambda left: left.ledger.pop(left.at("completed")), ("missing in the ledger", "steps out of order"),
    ),
    "a retry is missing": (lambda left: left.ledger.pop(left.at("retry")), ("missing in the ledger",)),
    "lost instead": (lambda left: left.change(how="lost"), ("missing in the ledger",)),
    "swapped": (swapped_order, ("committed before what leads to it",)),
    "a sequence falls": (
        lambda left: left.change(sequence=left.ledger[left.at("completed") - 1].sequence),
        ("sequences that do not rise",),
    ),
    "a step twice": (lambda left: left.change(steps=left.completed.steps - 1), ("steps out of order",)),
    "another token": (lambda left: left.change(token="e1t99"), ("never began",)),
    "its body did not end": (lambda left: left.forget("ended"), ("did not end",)),
    "its body never began": (lambda left: left.forget("began", "ended"), ("never began",)),
    "a claim is left": (
        lambda left: left.session.left.update(claims=["t3"]), ("left behind, claims: t3",),
    ),
    "a token is left": (
        lambda left: left.session.left.update(tokens=["e1t4"]), ("left behind, tokens: e1t4",),
    ),
    "it still runs": (
        lambda left: setattr(left.session, "status", "running"), ("the session is running, not completed",),
    ),
    "a step is missing": (
        lambda left: setattr(left.session, "steps", left.session.steps - 1), ("steps, the model has",),
    ),
    "appended twice": (
        lambda left: again(left.session.values, sorted(left.model.lists)[0]), ("value differs",),
    ),
    "a sum is off": (lambda left: more(left.session.values, of="sum"), ("value differs",)),
    "a value is missing": (lambda left: left.session.values.popitem(), ("value differs",)),
    "a value too many": (lambda left: left.session.values.update(ghost=1), ("value differs",)),
    "another result": (lambda left: more(left.session.results, of="t0"), ("result differs",)),
    "not completed": (
        lambda left: left.session.completed.discard("t0"), ("not completed, and should be",),
    ),
    "skipped": (lambda left: left.session.skipped.add("t0"), ("skipped, and should not be",)),
    "failed": (lambda left: left.session.errors.add("t0"), ("failed, and should not be",)),
    "a cycle is missing": (lambda left: left.session.cycles.popitem(), ("cycles of differs",)),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_it_says_what_is_wrong(left: Left, wrong: str) -> None:
    doctor, said = WRONG[wrong]

    doctor(left)

    violations = left.check().violations
    assert all(any(words in violation for violation in violations) for words in said), violations


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
