"""What a run leaves behind: the commit ledger, the file of executions, and what is still in Redis.

The ledger is written by the script that commits, so it cannot say less or more than what was
committed; the executions are lines in a file that no server and no worker takes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from graflow_ckpt.checkpoint.seals.cells import SealedCells
from graflow_ckpt.core.facts import RESULT
from graflow_ckpt.engine.attempt import from_cells
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import keys_of
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import read_state
from graflow_ckpt.stores.around.keys import Keyring

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
