"""The checker: whether what a run left behind is what the model says, whatever happened on the way.

    once      each (task, cycle) ended as often and in the ways that the model says: in the ledger
    order     nothing was committed before what leads to it; sequences and steps rise
    executed  each end in the ledger has an execution, by the same token, which reached its end
    channel   values, results, tasks and counts are the model's
    clean     nothing is claimed, ready, delayed or waited for; no token is left

It says what is wrong, by name, and counts what ran more than once and what was refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.model import Expected, Run
from tests.chaos.records import Commit, Line, Session

MOST = 8  # of one kind that are named


@dataclass(slots=True)
class Verdict:
    """What was found."""

    violations: list[str] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)
    refused: list[Line] = field(default_factory=list)  # bodies that came to their end and were not committed

    def say(self, what: str, which: Iterable[object]) -> None:
        """A violation, if there are any."""
        found = sorted(str(one) for one in which)
        if found:
            more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
            self.violations.append(f"{what}: {', '.join(found[:MOST])}{more}")


def check(
    expected: Expected, ledger: Sequence[Commit], lines: Sequence[Line], session: Session | None
) -> Verdict:
    """Everything, as far as it can be known without the session if it is gone."""
    verdict = Verdict()
    check_once(expected, ledger, verdict)
    check_order(expected, ledger, verdict)
    check_executed(ledger, lines, verdict)
    if session is not None:
        check_channel(expected, ledger, session, verdict)
        check_clean(session, verdict)
    return verdict


def check_once(expected: Expected, ledger: Sequence[Commit], verdict: Verdict) -> None:
    found, model = Counter((c.task, c.cycle, c.how) for c in ledger), Counter(expected.ends)
    verdict.say("ended too often", [named(end, n) for end, n in (found - model).items()])
    verdict.say("missing in the ledger", [named(end, n) for end, n in (model - found).items()])
    keys = Counter(c.key for c in ledger if c.how != "retry")
    verdict.say("specs that ended twice", [key for key, n in keys.items() if n > 1])
    verdict.figures["committed"] = sum(c.how == "completed" for c in ledger)
    verdict.figures["committed once"] = len({(c.task, c.cycle) for c in ledger if c.how == "completed"})


def check_order(expected: Expected, ledger: Sequence[Commit], verdict: Verdict) -> None:
    falls = [b.sequence for a, b in pairwise(ledger) if b.sequence <= a.sequence]
    verdict.say("sequences that do not rise", falls)
    steps = [c.steps for c in ledger if c.how == "completed"]
    verdict.say("steps out of order", [s for n, s in enumerate(steps, 1) if s != n])
    first: dict[Run, int] = {}
    last: dict[Run, int] = {}
    for commit in ledger:
        first.setdefault((commit.task, commit.cycle), commit.sequence)
        if commit.how != "retry":
            last[commit.task, commit.cycle] = commit.sequence
    for run, sequence in first.items():
        cause = expected.causes.get(run)
        if cause is None:
            continue
        before = sum(last.get(other, sequence) < sequence for other in cause.of)
        if before < cause.need:
            late = [other for other in cause.of if last.get(other, sequence) >= sequence]
            verdict.say(f"{run[0]} (cycle {run[1]}) was committed before what leads to it", late)


def check_executed(ledger: Sequence[Commit], lines: Sequence[Line], verdict: Verdict) -> None:
    """An end without a body's execution by the same token was made up by somebody."""
    reached = {"completed": "ended", "retry": "failed", "lost": "failed"}
    began = {(line.key, line.token) for line in lines if line.what == "began"}
    ended = {(line.what, line.key, line.token) for line in lines if line.what != "began"}
    tasks = {line.task for line in lines}
    bodies = [c for c in ledger if c.how in reached and not (c.how == "lost" and c.task not in tasks)]
    verdict.say("never began", [told(c) for c in bodies if (c.key, c.token) not in began])
    verdict.say("did not end", [told(c) for c in bodies if (reached[c.how], c.key, c.token) not in ended])
    committed = {(reached[c.how], c.key, c.token) for c in bodies}
    verdict.refused = [
        line for line in lines if line.what != "began" and (line.what, line.key, line.token) not in committed
    ]
    runs = Counter((line.task, line.cycle, line.retry) for line in lines if line.what == "began")
    verdict.figures["executions"] = sum(runs.values())
    verdict.figures["ran more than once"] = sum(n > 1 for n in runs.values())
    verdict.figures["ended and not committed"] = len(verdict.refused)


def check_channel(expected: Expected, ledger: Sequence[Commit], session: Session, verdict: Verdict) -> None:
    end = expected.end
    if session.status != end.status:
        verdict.violations.append(f"the session is {session.status}, not {end.status}")
    if not session.steps == end.steps == sum(c.how == "completed" for c in ledger):
        verdict.violations.append(f"{session.steps} steps, the model has {end.steps}")
    mine = {n: sorted(v) if n in expected.lists else v for n, v in session.values.items()}
    model = {n: sorted(v) if n in expected.lists else v for n, v in end.values.items()}
    for what, found, should in (
        ("value", mine, model),
        ("result", session.results, end.results),
        ("cycles of", session.cycles, end.cycles),
    ):
        names = found.keys() | should.keys()
        verdict.say(
            f"{what} differs",
            [f"{n} is {found.get(n)}, not {should.get(n)}" for n in names if found.get(n) != should.get(n)],
        )
    for what, got, wanted in (
        ("completed", session.completed, set(end.completed)),
        ("skipped", session.skipped, end.skipped),
        ("failed", session.errors, end.errors),
    ):
        verdict.say(f"{what}, and should not be", got - wanted)
        verdict.say(f"not {what}, and should be", wanted - got)


def check_clean(session: Session, verdict: Verdict) -> None:
    for table, left in session.left.items():
        verdict.say(f"left behind, {table}", left)


def named(end: tuple[str, int, str], count: int) -> str:
    task, cycle, how = end
    return f"{task} (cycle {cycle}) {how}" + (f" ×{count}" if count > 1 else "")


def told(commit: Commit) -> str:
    return f"{commit.task} (cycle {commit.cycle}, {commit.how}, {commit.token})"
