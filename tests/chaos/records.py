"""What a run leaves behind: the commit ledger, the file of executions, and what is still in Redis.

The ledger is written by the script that commits, so it cannot say less or more than what was
committed; the executions are lines in a file that no server and no worker takes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from graflow_ckpt.checkpoint.seals import SealedCells
from graflow_ckpt.core.facts import RESULT
from graflow_ckpt.engine.body.live import from_cells
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import keys_of
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import read_state
from graflow_ckpt.stores.around.keys import Keyring
from tests.chaos.model import Expected, Run

_PAGE = 500


class Commit(NamedTuple):
    """One line of the ledger."""

    sequence: int
    steps: int
    task: str
    cycle: int
    key: int
    how: str  # completed, retry, lost, passed, skipped, …
    token: str


class Line(NamedTuple):
    """One line of the file of executions."""

    what: str  # began, ended, failed
    at: float
    pid: int
    task: str
    cycle: int
    key: int
    retry: int
    token: str


@dataclass(slots=True)
class Session:
    """What Redis holds when all is over."""

    status: str
    steps: int
    values: dict[str, Any]
    results: dict[str, Any]
    completed: set[str]
    skipped: set[str]
    errors: set[str]
    cycles: dict[str, int]
    left: dict[str, list[str]] = field(default_factory=dict)  # what should be gone, by its table


def commits(entries: Iterable[bytes]) -> list[Commit]:
    """The ledger as it is in Redis."""
    found = []
    for entry in entries:
        sequence, steps, task, cycle, key, how, token = entry.decode().split("\x1f")
        found.append(Commit(int(sequence), int(steps), task, int(cycle), int(key), how, token))
    return found


def lines(file: Path) -> list[Line]:
    """The executions so far; a line is whole, for it was one write."""
    return [parse_line(text) for text in file.read_text().splitlines()] if file.exists() else []


def parse_line(text: str) -> Line:
    what, at, pid, task, cycle, key, retry, token = text.split(" ")
    return Line(what, float(at), int(pid), task, int(cycle), int(key), int(retry), token)


# --- what is in Redis ------------------------------------------------------------------


def ledger_of(link: RedisLink, session: str) -> list[Commit]:
    return commits(_client(link, session).lrange(f"{keys_of(session)}ledger", 0, -1))


def session_of(link: RedisLink, rq: Any, session: str, keyring: Keyring) -> Session:
    """The session and all that may be left of its running."""
    cells = SealedCells(session, keyring)
    state = read_state(link, session, cells, values=False)
    reader = RedisSession(link, session, cells)
    try:
        values = _values(reader, reader.names())
    finally:
        reader.close()
    return Session(
        state.status,
        state.steps,
        {name: value for name, value in values.items() if not name.endswith(RESULT)},
        {name.removesuffix(RESULT): value for name, value in values.items() if name.endswith(RESULT)},
        set(state.completed),
        set(state.skipped),
        set(state.errors),
        {name: count - 1 for name, count in state.counts.items() if count > 1},
        {**_tables_left(state), **tokens_left(link, rq, session)},
    )


def _values(reader: RedisSession, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for start in range(0, len(names), _PAGE):
        page = names[start : start + _PAGE]
        for name, (value, _) in zip(page, reader.read_all(page), strict=True):
            assert value is not None
            found[name] = from_cells(name, value[0], value[2])
    return found


def _tables_left(state: Any) -> dict[str, list[str]]:
    def tasks(keys: Iterable[int]) -> list[str]:
        return [state.specs[key].task_id for key in keys]

    tables: Mapping[str, list[str]] = {
        "claims": tasks(state.claimed),
        "ready": tasks(key for *_, key in state.ready),
        "delayed": tasks(key for _, key in state.delayed),
        "dead": tasks(state.dead),
        "gates": list(state.gates),
    }
    return {name: left for name, left in tables.items() if left}


def tokens_left(link: RedisLink, rq: Any, session: str) -> dict[str, list[str]]:
    """Tokens of the session, and jobs of RQ that carry one."""
    client, prefix = _client(link, session), keys_of(session)
    found = {
        "tokens": client.zrange(f"{prefix}tok", 0, -1),
        "owners": client.hkeys(f"{prefix}own"),
        "waiting tokens": client.hvals(f"{prefix}qt"),
        "replies": client.hkeys(f"{prefix}rp"),
        "jobs of RQ": list(rq.scan_iter(f"rq:job:{session}-*", count=1000)),
        "queued in RQ": [
            job
            for queue in rq.smembers("rq:queues")
            for job in rq.lrange(queue, 0, -1)
            if job.startswith(f"{session}-".encode())
        ],
    }
    return {name: [item.decode() for item in items] for name, items in found.items() if items}


def _client(link: RedisLink, session: str) -> Any:
    return link.client


# --- the checker ------------------------------------------------------------------------


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
