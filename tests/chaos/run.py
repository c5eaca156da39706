"""Chaos on a fleet: a DAG runs on four workers of two pools while a monkey is about.

    python -m tests.chaos.run --seed 7             the long run: `make chaos SEED=7`
    python -m tests.chaos.run --tasks 200 …        a smaller one

A seed gives the same DAG and the same schedule of blows. At the end the ledger of the commit script, the
executions noted outside of Redis, the session and the model must agree: see records.py.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic

from graflow_ckpt.core.errors import GraflowError
from graflow_ckpt.fleet.client import Client, Terms
from tests.chaos.model import Expected, Plan, draw, expected, printed, schedule
from tests.chaos.monkey import Deed, Monkey
from tests.chaos.records import Commit, Line, Verdict, check, ledger_of, lines, session_of, tokens_left
from tests.chaos.tasks import PACE, RUNS, build
from tests.pools import KEY, Pool, client_at, surroundings
from tests.servers import Server
from tests.stretch import comes

SESSION = "chaos"
STALLED = 45.0
"""Seconds without a commit, with nobody stopped and nothing down, after which a run has come to a halt."""

TIDY = 25.0
"""Seconds after which stewards have had RQ forget what workers left in it that were killed in the act."""


@dataclass(slots=True)
class Report:
    """What came of it."""

    plan: Plan
    deeds: list[Deed]
    began: float  # wall clock
    seconds: float
    verdict: Verdict = field(default_factory=Verdict)
    zombies: list[Line] = field(default_factory=list)  # came back after their lease and were refused
    late: list[Line] = field(default_factory=list)  # came back before anybody had taken over
    takeovers: list[float] = field(default_factory=list)  # seconds from a kill to the next execution
    logs: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> bool:
        """Whether somebody who was stopped came back after his lease and was refused: chance decides."""
        return not self.plan.stops or bool(self.zombies)


def run(plan: Plan, folder: Path) -> Report:
    """One run, from an empty server to the verdict."""
    program = draw(plan.seed, plan.tasks)
    model = expected(program)
    runs = folder / "runs"
    with ExitStack() as stack:
        server = stack.enter_context(Server({"appendonly": "yes", "appendfsync": plan.fsync}))
        given = surroundings(redis_url=server.url, key=KEY, lease=plan.lease, workers=2)
        given |= {RUNS: str(runs), PACE: str(plan.pace)}
        several = [Pool(server.url, folder, given, name=f"pool{n}") for n in range(plan.pools)]
        for pool in several:
            stack.enter_context(pool)
        flow = build(program, SESSION)
        began = time.time()
        with closing(client_at(server.url)) as client:
            client.submit(flow.graph, flow.settings, (program.start,), {}, Terms(SESSION, ledger=True))
            monkey = Monkey(schedule(plan), server, several, runs, model.end.steps)
            try:
                watch(client, monkey)
            finally:
                monkey.calm()
        seconds = time.time() - began
        with closing(client_at(server.url)) as client:
            comes(lambda: not tokens_left(client.link, client.carrier.connection, SESSION), TIDY)
            # one that has only just been started would be ended by SIGTERM like any program
            comes(lambda: all(len(pool.family()) > 2 for pool in several))
            statuses = [pool.end() for pool in several]
            report = Report(plan, monkey.deeds, began, seconds)
            return judge(report, client, model, runs, several, statuses, monkey)


def watch(client: Client, monkey: Monkey) -> None:
    """Until the session has ended and the monkey has had enough; or nothing happens any more."""
    handle = client.session(SESSION)
    steps, since, status = 0, monotonic(), ""
    while monotonic() - since < STALLED:
        try:
            now = handle.status()
            if now.steps > steps:
                since = monotonic()
            steps, status = now.steps, now.status
        except GraflowError:
            since = monotonic()  # the server is down
        monkey.look(steps)
        if status not in ("running", "init") and monkey.idle:
            return
        time.sleep(0.01)


# --- the verdict -----------------------------------------------------------------------


def judge(
    report: Report, client: Client, model: Expected, runs: Path, several: Sequence[Pool],
    statuses: Sequence[int], monkey: Monkey,
) -> Report:  # fmt: skip
    """Hold everything that was left behind against the model."""
    rq = client.carrier.connection
    ledger, written = ledger_of(client.link, SESSION), lines(runs)
    verdict = report.verdict = check(
        model, ledger, written, session_of(client.link, rq, SESSION, client.keyring)
    )
    judge_zombies(report, written, ledger)
    report.takeovers = takeovers(report.deeds, written)
    report.logs = {pool.name: pool.said for pool in several}
    verdict.say("pools that did not end well", [f"status {status}" for status in statuses if status])
    verdict.say("orphans", [pid for pool in several for pid in pool.orphans()])
    verdict.say("blows that never fell", monkey.pending)
    return report


def judge_zombies(report: Report, written: Sequence[Line], ledger: Sequence[Commit]) -> None:
    """Bodies that were stopped for longer than their lease, and came to their end after that."""
    committed = Counter((commit.key, commit.token) for commit in ledger)
    for deed in report.deeds:
        if deed.blow.what != "stop" or deed.line is None:
            continue
        mine = (deed.line.key, deed.line.token)
        ends = [line for line in written if (line.key, line.token) == mine and line.what != "began"]
        # the last thing that its token did with this spec; earlier attempts of it may have been committed
        if ends and ends[-1].pid == deed.pid and ends[-1].at >= deed.until - 0.05:
            (report.zombies if committed[mine] < len(ends) else report.late).append(ends[-1])


def takeovers(deeds: Sequence[Deed], written: Sequence[Line]) -> list[float]:
    """For each body that was killed: how long until it was run again, by whomever."""
    found = []
    for deed in deeds:
        if deed.blow.what == "kill" and deed.line is not None:
            after = [line.at for line in written if line.key == deed.line.key and line.at > deed.at]
            if after:
                found.append(min(after) - deed.at)
    return sorted(found)


# --- by hand ---------------------------------------------------------------------------


def show(report: Report) -> None:
    """The table at the end."""
    plan, figures = report.plan, report.verdict.figures
    blows = Counter(f"{deed.blow.what} {deed.blow.whom}".strip() for deed in report.deeds)
    waits = report.takeovers
    taken = f"{median(waits):.2f} s / {waits[-1]:.2f} s" if waits else ""
    rows = [
        ("seed", plan.seed),
        ("appendfsync", plan.fsync),
        ("pools", " + ".join(["2"] * plan.pools)),
        ("seconds", f"{report.seconds:.1f}"),
        *((f"blows: {what}", n) for what, n in sorted(blows.items())),
        ("committed once", f"{figures['committed once']} of {figures['committed']}"),
        ("executions", figures["executions"]),
        ("ran more than once", figures["ran more than once"]),
        ("bodies that ended and were not committed", figures["ended and not committed"]),
        ("zombies refused", len(report.zombies)),
        ("zombies back before anybody took over", len(report.late)),
        ("taken over after a kill, median / longest", taken),
        ("violations", len(report.verdict.violations)),
    ]
    began = report.began
    for deed in report.deeds:
        doing = f" at {deed.line.task}" if deed.line else ""
        print(f"  {deed.at - began:6.2f} s  {deed.blow}: pid {deed.pid}{doing}")
    for name, value in rows:
        print(f"  {name:<44} {value}")
    for violation in report.verdict.violations:
        print(f"  VIOLATION {violation}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    usual = Plan(seed=0)
    for name in ("tasks", "kills", "stops", "servers", "losses", "freezes", "lease", "pace"):
        value = getattr(usual, name)
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--fsync", choices=["everysec", "always", "both"], default="both")
    parser.add_argument("--keep", type=Path, help="a folder for logs and executions")
    given = vars(parser.parse_args(arguments))
    keep, fsync = given.pop("keep"), given.pop("fsync")
    good = True
    for each in ["everysec", "always"] if fsync == "both" else [fsync]:
        plan = Plan(**given, fsync=each)
        print(
            f"chaos with seed {plan.seed}, appendfsync {each}; the blows:\n{printed(schedule(plan))}",
            flush=True,
        )
        with tempfile.TemporaryDirectory(prefix="graflow-ckpt-chaos-") as name:
            folder = (keep or Path(name)) / f"{plan.seed}-{each}"
            folder.mkdir(parents=True)  # what an earlier run wrote would be taken for this one's
            report = run(plan, folder)
        show(report)
        if not report.shown:
            print("  NOTHING SHOWN: no worker came back after its lease and was refused")
        good = good and report.shown and not report.verdict.violations
    print(
        f"{'all is well' if good else 'SOMETHING IS WRONG'}; the same again: make chaos SEED={given['seed']}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
