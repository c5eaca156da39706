"""The status of sessions: counters as of one moment, and failed tasks. Changes nothing, opens no value.

    set aside    its spec is kept: resume runs it again      (the session failed, or was paused)
    given up     its error is kept, nothing else             (the session continued without it)

Failures are read in pages, since each may have a traceback.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from graflow_ckpt.core.errors import GraflowError, KeyTaken, SchemaUnsupported, SessionDamaged
from graflow_ckpt.engine.announcer import Account
from graflow_ckpt.links.complaints import readable, translated
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import keys_of, whole
from graflow_ckpt.sessions.redis.tables import parse_line

UNKNOWN = "unknown"
"""The status of a session that cannot be read: its format is not known here, or its tables are damaged."""

ENDED = frozenset({"completed", "failed", "cancelled", "stopped", "stalled"})

_FACTS = ("workflow", "reason", "created", "ended", "cut_path", "calls", "tasks")
_COUNTS = """
local P = string.sub(KEYS[1], 1, -2)
--KNOWN--
if not line then return {} end
local function size(command, name) return redis.call(command, P .. name) end
local queues = string.match(line, '^' .. string.rep('[^|]*|', 9) .. '([^|]*)|')
local ready = {}
for name in string.gmatch(queues, '[^,]+') do
  ready[#ready + 1] = name
  ready[#ready + 1] = size('ZCARD', 'q:' .. name)
end
local slices = {}
for _, owner in ipairs(redis.call('HVALS', P .. 'own')) do
  slices[#slices + 1] = string.match(owner, '\\30([^\\30]*)$') or '*'
end
local claims = tonumber(string.match(line, '^' .. string.rep('[^|]*|', 10) .. '(%d+)') or '0')
return {
  line, ready, slices, redis.call('HMGET', P .. 'h', unpack(ARGV)),
  size('ZCARD', 'done'), claims, size('ZCARD', 'dl'), size('HLEN', 'dead'), size('HLEN', 'sk'),
  size('ZCARD', 'tok'), size('HLEN', 't'),
}
"""


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a session: how far it is."""

    session: str
    workflow: str
    status: str
    reason: str  # one line
    steps: int
    completed: int  # tasks
    ready: int
    running: int
    delayed: int
    failed: int
    skipped: int
    created: float
    ended: float | None
    tokens: int
    checkpoint: str | None
    max_steps: int | None
    cap: int | None
    calls: int | None  # of a session that submit_many has made
    tasks: int | None  # that it has by now; how many of them will run, only the run itself finds out
    queues: tuple[tuple[str, int], ...]  # of its tasks, with how many are ready in each
    slices: tuple[tuple[str, int], ...]  # how many workers are at it, by the queue that they work on
    fleet: bool  # workers run it; else the processes with a context of it

    @property
    def over(self) -> bool:
        return self.status in ENDED


def read(link: RedisLink, session: str) -> Status | None:
    """Return the status of one session; None if there is none."""
    with readable(session, link.address):
        reply = link.script(whole(_COUNTS))([f"{keys_of(session)}c"], _FACTS)
        return _status(session, *reply) if reply else None


def read_all(link: RedisLink, sessions: Iterable[str]) -> Iterator[Status]:
    """Yield those of them that are there; also one of an unknown format, and one that is damaged."""
    for session in sessions:
        try:
            found = read(link, session)
        except (SchemaUnsupported, SessionDamaged, KeyTaken) as error:
            found = _unknown(session, error)
        if found is not None:
            yield found


def _unknown(session: str, error: GraflowError) -> Status:
    """Return the status of a session that cannot be read here: only the reason is known."""
    nothing: tuple[tuple[str, int], ...] = ()
    return Status(
        session, "", UNKNOWN, error.message, 0, 0, 0, 0, 0, 0, 0, 0.0, None, 0, None, None, None, None, None,
        nothing, nothing, False,
    )  # fmt: skip


# Any: what the script answers.
def _status(
    session: str, line: bytes, ready: list[Any], slices: list[bytes], facts: list[Any], *counts: int
) -> Status:
    c = parse_line(session, line)
    completed, running, delayed, failed, skipped, tokens, made = counts
    h = {name: (fact or b"").decode(errors="replace") for name, fact in zip(_FACTS, facts, strict=True)}
    queues = tuple((name.decode(), size) for name, size in zip(ready[::2], ready[1::2], strict=True))
    waiting = sum(size for _, size in queues)
    calls = int(h["calls"]) if h["calls"] else None
    if calls is not None and c["status"] != "init":
        # a call that has failed is kept nowhere, and the others continue
        failed = max(failed, calls - completed - waiting - running - delayed - skipped)
    return Status(
        session, h["workflow"], c["status"], h["reason"].partition("\n")[0],
        int(c["steps"]), completed, waiting, running, delayed, failed, skipped, float(h["created"] or 0),
        float(h["ended"]) if h["ended"] and c["status"] in ENDED else None, tokens, h["cut_path"] or None,
        int(c["max_steps"]) if c["max_steps"] else None, int(c["cap"]) if c["cap"] else None, calls,
        calls or (int(h["tasks"]) + made if h["tasks"] else None), queues,
        tuple(sorted(Counter(name.decode() for name in slices).items())), "f" in c["flags"],
    )  # fmt: skip


_PAGE = 200


@dataclass(frozen=True, slots=True)
class Failure:
    """One task that has failed."""

    session: str
    task: str
    type: str  # of its exception
    message: str
    traceback: str
    attempts: int | None  # None: not known any more
    crashes: int  # how often it has taken its worker down
    queue: str | None
    set_aside: bool


def failures(link: RedisLink, session: str) -> Iterator[Failure]:
    """Yield those of one session, by the names of their tasks within a page."""
    prefix = keys_of(session)
    with readable(session, link.address), translated(link.address):
        aside = dict(_spec(record) for record in link.client.hvals(f"{prefix}dead"))
        cursor: int | None = None
        seen: set[str] = set()
        while cursor != 0:
            cursor, page = link.client.hscan(f"{prefix}er", cursor or 0, count=_PAGE)
            found = {n.decode(): e[1:].decode(errors="replace") for n, e in page.items() if e[:1] == b"f"}
            for task in sorted(found.keys() - seen):
                attempts, crashes, queue = aside.get(task) or (None, 0, None)
                known = Account.read(found[task])
                yield Failure(session, task, *known, attempts, crashes, queue, task in aside)
            seen |= found.keys()


def _spec(record: bytes) -> tuple[str, tuple[int, int, str]]:
    """Return task, attempts, crashes and queue of what is set aside; its data is not looked at."""
    _, size, rest = record.split(b"\x1e", 2)
    fields = rest[int(size) :].split(b"\x1f", 10)
    return fields[1].decode(), (int(fields[3]) + 1, int(fields[9]), fields[8].decode())
