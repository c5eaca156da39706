"""A crew: workers, submitters, a sweeper and RQ, in one thread and by a clock of their own.

What RQ is trusted with is a bag of tokens that may be lost or handed out twice. `Crew.check` holds
after every move, `Crew.finish` lets fair workers come until nothing is left to do.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from graflow_ckpt.core.errors import Fenced
from graflow_ckpt.core.facts import Claim, Op
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.sessions.redis.keys import RENEW, START, STEP, keys_of
from graflow_ckpt.sessions.redis.sender import new_nonce
from graflow_ckpt.sessions.redis.tables import FIELDS, write_state
from tests.unit.sessions.moves import Chooser
from tests.unit.sessions.pair import ENDS, SESSION, Plain, Recorded

LEASE = 15.0
QUEUES = ["default", "gpu"]
TTL, KEPT = 100_000, 200_000
SPENT = 10_000  # of these at most: keys expire by the server's clock, which goes on where the machine stalls

_PEEK = """
local P = string.sub(KEYS[1], 1, -2)
local found = {c = {}, ttls = {}, ready = {}}
for _, name in ipairs({'own', 'qt', 'c'}) do
  local all, one = redis.call('HGETALL', P .. name), {}
  for n = 1, #all, 2 do one[all[n]] = all[n + 1] end
  found[name] = one
end
local all, tok = redis.call('ZRANGE', P .. 'tok', 0, -1, 'WITHSCORES'), {}
for n = 1, #all, 2 do tok[all[n]] = tonumber(all[n + 1]) end
found.tok = tok
for _, name in ipairs(ARGV) do
  for _, spec in ipairs(redis.call('ZRANGE', P .. 'q:' .. name, 0, -1)) do
    table.insert(found.ready, {name, string.match(spec, '^[^\\31]*\\31([^\\31]*)')})
  end
end
for _, key in ipairs(redis.call('KEYS', 'graflow:*')) do
  if not string.find(key, ':x:', 1, true) and not string.find(key, ':~', 1, true) then
    table.insert(found.ttls, {key, redis.call('TTL', key)})
  end
end
return cjson.encode(found)
"""


class Peek:
    """What is there now."""

    def __init__(self, found: dict[str, Any]) -> None:
        tables = {name: dict(found[name]) for name in ("own", "qt", "c", "tok")}
        self.line = dict(zip(FIELDS, tables["c"].pop("c", "").split("|"), strict=False))
        self.status = self.line["status"]
        self.over = "e" in self.line["flags"]
        self.leases: dict[str, float] = tables["tok"]
        self.owners: dict[str, str] = tables["own"]
        self.unbegun: dict[str, str] = {token: queue for queue, token in tables["qt"].items()}
        self.lifetimes: dict[str, int] = dict(found["ttls"])
        self.ready: dict[str, list[str]] = {}
        for queue, task in found["ready"]:
            self.ready.setdefault(queue, []).append(task)
        records = {int(name): record for name, record in tables["c"].items() if name.isdecimal()}
        self.claims: dict[int, str] = {key: record.split("\x1f")[1] for key, record in records.items()}


@dataclass(eq=False)
class Worker:
    """Somebody with a token. Whoever is not `alive` gets no replies, and may have been stopped only."""

    session: Recorded
    held: list[Claim] = field(default_factory=list)
    alive: bool = True
    slots: int = 1

    @property
    def token(self) -> str:
        return self.session.token


class Crew:
    """A session, and all who have to do with it."""

    def __init__(
        self,
        link: RedisLink,
        *,
        step: str = STEP,
        start: str = START,
        flags: str = "f",
        status: str = "running",
    ) -> None:
        link.client.flushall()
        self.link = link
        self.now = 1_700_000_000.0
        self._key = keys_of(SESSION) + "c"
        self._step, self._start, self._renew, self._peek = map(link.script, (step, start, RENEW, _PEEK))
        state = SessionState(SESSION, ("a",))
        state.status = status
        facts = {"ttl": str(TTL), "kept": str(KEPT)}
        write_state(link, state, Plain(), facts, verb="create", flags=flags)
        self.rq: list[tuple[str, str]] = []  # (token, queue)
        self.workers: list[Worker] = []
        self.counts: Counter[str] = Counter()
        self.completed: Counter[int] = Counter()  # keys of specs
        self.submitted = self.named = self.begun = 0
        self.outside = self.sender("")

    def close(self) -> None:
        for one in (self.outside, *(worker.session for worker in self.workers)):
            one.close()

    def peek(self) -> Peek:
        return Peek(json.loads(self._peek([self._key], QUEUES)))

    # --- what they do ------------------------------------------------------------------

    def sender(self, token: str, queue: str = "*", began: str = "") -> Recorded:
        one = Recorded(self.link, SESSION, Plain(), token, began, queue=queue, retires=bool(token))
        one._step = self._step
        return one

    def commit(self, sender: Recorded, ops: list[Op], mode: str = "", *, lose: bool = False) -> list[Claim]:
        """And post the tokens that it has to carry, unless the sender dies before it can."""
        before = self.peek().unbegun
        sender.sender.stamp = repr(self.now)
        sender.emitted.clear()
        claims = sender.commit(ops, mode)
        after = self.peek().unbegun
        assert dict(sender.emitted) == {t: q for t, q in after.items() if t not in before}
        self.rq += [] if lose else sender.emitted
        self.counts["called"] += len(sender.emitted)
        for op in ops:
            self.submitted += op[0] in ("enqueue", "later")
            if op[0] == "end" and op[3] == "completed":
                self.completed[op[1]] += 1
        assert all(sender.queue in ("*", claim.spec.queue) for claim in claims)
        return claims

    def spec(self, queue: str) -> Op:
        """A new task, once in a session."""
        self.named += 1
        return (f"t{self.named}", None, self.named % 3, 9, queue, "direct")

    def submit(self, queue: str = "default", *, due: float = 0.0, lose: bool = False) -> None:
        spec = self.spec(queue)
        self.commit(self.outside, [("later", *spec, due) if due else ("enqueue", *spec)], lose=lose)

    def tell(self, *ops: Op, mode: str = "") -> None:
        """Somebody outside: pause, cancel, a cap, a resume."""
        self.commit(self.outside, list(ops), mode)

    def start(self, token: str, owner: str) -> list[bytes]:
        lease, now = int(LEASE * 1000), int(self.now * 1000)
        reply: list[bytes] = self._start([self._key], [token, owner, lease, now, new_nonce()])
        return reply

    def begin(self, at: int = 0, *, twice: bool = False, slots: int = 1) -> Worker | None:
        """A worker is given a token by RQ, which may give it to another one, too."""
        token, queue = self.rq[at] if twice else self.rq.pop(at)
        self.begun += 1
        reply = self.start(token, f"worker-{self.begun}")
        if reply[0] in (b"fenced", b"gone"):
            self.counts["not begun"] += 1
            return None
        assert reply[1:3] == [token.encode(), queue.encode()]
        found = self.peek()
        assert found.leases[token] == (self.now + LEASE) * 1000
        assert token not in found.unbegun
        worker = Worker(self.sender(token, queue, reply[3].decode()), slots=slots)
        self.workers.append(worker)
        self.work(worker, [])
        return worker

    def work(self, worker: Worker, ops: list[Op], *, limit: int | None = None, mode: str = "") -> None:
        """One transition of a slice; refused exactly if its token is void."""
        limit = worker.slots - len(worker.held) if limit is None else limit
        session, known = worker.session, worker.token in self.peek().leases
        try:
            worker.held += self.commit(session, [*ops, ("claim", limit)], mode, lose=not worker.alive)
        except Fenced:
            assert not known, "it has its token and was refused"
            self.counts["fenced"] += 1
            self.leave(worker)
            return
        assert known, "its token is void, and it was not refused"
        if not worker.alive:
            worker.held.clear()  # the reply has not reached it
        elif session.retired or (not worker.held and (limit or mode)):
            assert session.retired, "it has got nothing, and its token is not retired"
            assert not worker.held
            self.counts["retired"] += 1
            self.leave(worker)

    def end(self, worker: Worker, *how: Any, more: list[Op] | None = None, limit: int | None = None) -> None:
        claim = worker.held.pop(0)
        self.work(worker, [("end", claim.spec.key, claim.number, *how), *(more or [])], limit=limit)

    def quit(self, worker: Worker) -> None:
        """Its time is over: it gives back what it holds, and the token."""
        ops: list[Op] = [("release", claim.spec.key, 0) for claim in worker.held]
        worker.held.clear()
        self.work(worker, ops, limit=0, mode="q")

    def leave(self, worker: Worker) -> None:
        worker.session.close()
        self.workers.remove(worker)

    def renew(self) -> None:
        """What the keepers of those that are alive do."""
        found = self.peek()
        for worker in [worker for worker in self.workers if worker.alive]:
            words = [worker.token, worker.session.sender.name, int(LEASE * 1000), int(self.now * 1000)]
            said = self._renew([self._key], words)
            assert said.decode() == (found.status if worker.token in found.leases else "fenced")

    def reap(self, token: str, *, forced: bool = False, grace: float = 0.0) -> None:
        """Give back what the dead one held; Fenced if it may not be reaped."""
        ops: list[Op] = [("release", key, 1) for key, holder in self.peek().claims.items() if holder == token]
        reaper = self.sender("")
        try:
            how = "!" if forced else f"~{grace * 1000:.0f}" if grace else ""
            self.commit(reaper, [*ops, ("claim", 0)], f"T{token}{how}")
        finally:
            reaper.close()
        self.counts["reaped"] += 1

    def sweep(self, *, forced: bool = False) -> None:
        """What stewards do: the dead are reaped, tokens that nobody began on posted again, the due woken."""
        found = self.peek()
        dead = {worker.token for worker in self.workers if not worker.alive and forced}
        for token, lease in found.leases.items():
            over = lease <= self.now * 1000
            if token in found.unbegun and over:
                self.rq.append((token, found.unbegun[token]))
            elif token in found.owners and (over or token in dead):
                self.reap(token, forced=token in dead)
        self.tell(("claim", 0))

    # --- what holds --------------------------------------------------------------------

    def check(self) -> None:
        """After every move."""
        found = self.peek()
        assert set(found.leases) == set(found.owners) | set(found.unbegun)
        assert not set(found.owners) & set(found.unbegun)
        assert set(found.claims.values()) <= set(found.owners), "nobody would find these claims"
        assert int(found.line["held"] or 0) == len(found.claims)
        assert found.over == (found.status in ENDS and not found.claims)
        if found.over:
            assert not found.leases
            whole = TTL if found.status == "completed" else KEPT
            assert {whole - SPENT < left <= whole for left in found.lifetimes.values()} == {True}
        else:
            assert set(found.lifetimes.values()) == {-1}
        if found.status == "running" and len(found.claims) < int(found.line["cap"] or 10**9):
            going = {owner.rpartition("\x1e")[2] for owner in found.owners.values()}
            for queue in found.ready:
                assert queue in going or queue in found.unbegun.values(), f"nobody comes for {queue}"

    def finish(self) -> None:
        """Everybody dead is found out, everybody alive goes on, RQ hands out what it has."""
        self.tell(("cap", None), ("status", "running", ""))
        self.tell(("reopen", 2, None))
        for _ in range(20):
            self.now += LEASE + 1
            self._go_on()
            self.sweep()
            while self.rq:
                self.begin()
                self._go_on()
            if self.peek().over:
                break
        found = self.peek()
        assert (found.status, found.over, found.claims) == ("completed", True, {})
        assert set(self.completed.values()) <= {1}, "each task is committed once"
        assert len(self.completed) == self.submitted

    def _go_on(self) -> None:
        while any(worker.alive for worker in self.workers):
            for worker in [worker for worker in self.workers if worker.alive]:
                if worker.held:
                    self.end(worker, "completed", b"\x01")
                else:
                    self.quit(worker)
                self.check()


# --- moves -----------------------------------------------------------------------------

_KINDS = [
    *["submit"] * 4, *["begin"] * 8, *["end"] * 12, *["sweep", "time", "tell"] * 2,
    *["spawn", "retry", "fail", "late", "quit", "die", "wake"] * 2, "later",
    "force", "renew", "again", "twice", "lost",
]  # fmt: skip


def play_crew(crew: Crew, choose: Chooser, moves: int) -> None:
    """So many moves, after each of which all is well."""
    for _ in range(moves):
        _move(crew, choose, choose.one(_KINDS))
        crew.check()


def _move(crew: Crew, choose: Chooser, kind: str) -> None:
    alive = [worker for worker in crew.workers if worker.alive]
    busy = [worker for worker in alive if worker.held]
    half: bool = choose.one([True, False])
    match kind:
        case "submit" | "lost":
            crew.submit(choose.one(QUEUES), lose=kind == "lost")
        case "later":
            crew.submit(choose.one(QUEUES), due=crew.now + choose.one([0.25, 3.0]))
        case "begin" | "twice" if crew.rq:
            crew.begin(choose.one(range(len(crew.rq))), twice=kind == "twice", slots=choose.one([1, 1, 2]))
        case "end" | "late" if busy:
            crew.end(choose.one(busy), "completed", b"\x01", limit=0 if kind == "late" else None)
        case "spawn" if busy:
            more = [("enqueue", *crew.spec(choose.one(QUEUES))) for _ in range(choose.one([1, 1, 3]))]
            crew.end(choose.one(busy), "completed", b"\x01", more=more)
        case "retry" if busy:
            crew.end(choose.one(busy), "retry", choose.one([0.0, crew.now + 1]), "E: no")
        case "fail" if busy:
            crew.end(choose.one(busy), "failed", "E: no")
        case "quit" if alive:
            crew.quit(choose.one(alive))
        case "die" if alive:
            worker = choose.one(alive)
            worker.alive = False
            if worker.held and half:  # in the middle of a commit
                crew.end(worker, "completed", b"\x01")
        case "wake" if crew.workers:  # it was stopped, and is not dead at all
            choose.one(crew.workers).alive = True
        case "sweep" | "force":
            crew.sweep(forced=kind == "force")
        case "time":
            crew.now += choose.one([0.5, 3.0, 6.0, LEASE + 1])
        case "renew":
            crew.renew()
        case "again" if busy:
            session = choose.one(busy).session
            if session.token in crew.peek().leases:
                reply = session.send_again()
                assert (reply[3], reply[4:]) == (session.reply[3], session.reply[4:])
        case "tell":
            told: list[Op] = [("cap", choose.one([None, 1, 2, 3])), ("reopen", 2, None)]
            told += [("status", status, "") for status in ("paused", "running", "running", "failing")]
            crew.tell(choose.one([*told, told[0]]))
        case _:
            pass
