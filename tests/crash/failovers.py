"""A session in Redis, and servers that go back: `python -m tests.crash.failovers --count 1000`.

Several workers, a submitter and a steward work on one session, in one thread and in a random order. At random
moments the server comes back with an older history: a replica that had stopped to follow is promoted
(`replica`), or the server is killed and begins from its snapshot (`snapshot`). With replicas each client
hears of it at a moment of its own, and until then goes on with the old master, which confirms what it gets.
The jobs of lost histories stay in RQ. A history is random by its seed; nothing else decides.

Each execution has an id, and its transition appends that to a log in the session, with the ids of all that it
has read. However it went (`judged`): the log begins with what the surviving server had; no execution is there
twice; what is read was written before, in the same history; a value that is changed is the one that was read;
nothing follows what was lost; each task has completed once.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from random import Random
from typing import Any

from graflow_ckpt.core.errors import Fenced, NoSession, SessionBusy, SessionError, WriteConflict
from graflow_ckpt.core.facts import RESULT, Claim, Op
from graflow_ckpt.engine.reaping import release
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.sessions.redis.keys import CREATE, START, keys_of, whole
from graflow_ckpt.sessions.redis.sender import new_nonce
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.sessions.redis.tables import read_state
from graflow_ckpt.sessions.redis.values import AttemptReader
from tests.crash.histories import Found, asked
from tests.servers import Server
from tests.stretch import until
from tests.unit.sessions.pair import Plain

KEY = keys_of("s") + "c"
DISCARD = (files("graflow_ckpt.fleet") / "scripts" / "discard.lua").read_text(encoding="utf-8")
TASKS = 12
VALUES = ["x", "y"]
LOG = "log"


@dataclass
class Run:
    """One execution of a task that a worker has begun on."""

    id: str
    claim: Claim
    reader: AttemptReader
    reads: dict[str, list[str]] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)


@dataclass
class Client:
    """Somebody who talks to the server that it takes for the master."""

    link: RedisLink
    server: Server
    session: RedisSession | None = None  # of a worker with a token
    run: Run | None = None
    confirmed: list[str] = field(default_factory=list)  # what this session was told is committed, in order

    def move(self, server: Server) -> None:
        """From here on it talks to that one; what was open is gone."""
        self.server = server
        pool: Any = self.link.client.connection_pool
        pool.connection_kwargs.update(host=server.host, port=server.port)
        pool.disconnect()
        pool.reset()
        wires: list[Any] = [*self.link._wires._idle]
        if self.session is not None:
            wires.append(self.session.sender._wire)
        for wire in wires:
            if wire is not None and wire._connection is not None:
                with suppress(OSError):  # the server has gone, and it has noticed
                    wire._connection._sock.shutdown(2)

    def leave(self) -> None:
        if self.session is not None:
            self.session.close()
        self.session, self.run, self.confirmed = None, None, []


class World:
    """One session, its clients, and the servers that they take for its master."""

    def __init__(self, rng: Random, servers: list[Server], kind: str) -> None:
        self.rng, self.kind = rng, kind
        self.master, self.other = servers
        self.workers = [Client(open_link(self.master.url), self.master) for _ in range(3)]
        self.steward = Client(open_link(self.master.url), self.master)
        self.user = Client(open_link(self.master.url), self.master)
        self.rq: list[str] = []
        self.ids = 0
        self.submitted = False
        self.kept: list[str] = []  # the log of the surviving server, at its last failover
        self.cut: bool = False  # from here on nothing reaches the server that will survive
        self.senders: list[list[str]] = []  # what each sender was told, in order
        self.refused: set[int] = set()  # those that were refused afterwards
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def clients(self) -> list[Client]:
        return [*self.workers, self.steward, self.user]

    def close(self) -> None:
        for client in self.clients:
            client.leave()
            client.link.close()

    def id(self) -> str:
        self.ids += 1
        return f"i{self.ids}"

    # --- servers -----------------------------------------------------------------------

    def detach(self) -> None:
        """The server that will survive gets nothing from here on."""
        self.cut = True
        if self.kind == "replica":
            self.master.ask("WAIT", 1, 1000)
            self.other.ask("REPLICAOF", "NO", "ONE")
        else:
            self.master.ask("SAVE")

    def fail_over(self) -> None:
        self.counts[f"failover {self.kind}"] += 1
        self.cut = False
        if self.kind == "replica":
            self.master, self.other = self.other, self.master
        else:
            self.master.restart()
            for client in self.clients:
                client.move(self.master)
        self.kept = self.log()

    def discover(self) -> None:
        """Some hear of it now; when all have, the old master follows the new one."""
        late = [client for client in self.clients if client.server is not self.master]
        for client in late:
            if self.rng.random() < 0.4:
                client.move(self.master)

    def all_know(self) -> bool:
        return all(client.server is self.master for client in self.clients)

    def follow(self) -> None:
        if self.kind == "replica":
            self.other.ask("REPLICAOF", self.master.host, self.master.port)
            until(lambda: self.other.info().get("master_link_status") == "up")

    def log(self) -> list[str]:
        items = self.master.ask("LRANGE", f"{KEY[:-1]}a:{LOG}", 0, -1)
        return [json.loads(item)["id"] for item in items]

    # --- what clients do ---------------------------------------------------------------

    def noted(self, client: Client, told: list[str], ident: str) -> None:
        """The server has confirmed it."""
        told.append(ident)
        self.counts["confirmed"] += 1

    def submit(self) -> None:
        """A session of several pages; one that was lost half way is taken away and made anew."""
        link = self.user.link
        sender = RedisSession(link, "s", Plain())
        sender.posts_by(lambda token, queue: self.rq.append(token))
        line = "init|0|0|1|1|1|||fl||"
        try:
            reply = link.script(CREATE)([KEY], [line, *sender.begins(), "epoch", "1", "maker", "me"])
            if reply == b"exists":
                link.script(whole(DISCARD))([KEY], ["me"])
                return
            for page in range(0, TASKS, 4):
                self.jolt()
                names = [f"t{n}" for n in range(page, page + 4)]
                sender.commit([("enqueue", name, None, 0, 5, "default", "direct") for name in names])
            self.jolt()
            sender.commit([("status", "running", "")])
            self.submitted = True
        except (SessionError, NoSession):
            self.counts["submission refused"] += 1
        finally:
            sender.close()

    def write(self) -> None:
        """Somebody outside sets a value, twice: the second follows the first."""
        sender = RedisSession(self.user.link, "s", Plain())
        told: list[str] = []
        self.senders.append(told)
        at = len(self.senders) - 1
        try:
            for _ in range(2):
                ident = self.id()
                sender.commit([("put", "y", _cell(ident), -1), _line(ident, {}, "y", "")])
                self.noted(self.user, told, ident)
                self.jolt()
        except (SessionError, NoSession):
            self.refused.add(at)
            self.counts["refused outside"] += 1
        finally:
            sender.close()

    def begin(self, client: Client) -> None:
        """A worker is given a job by RQ, which may be of a lost history, or one that another one has, too."""
        if not self.rq:
            return
        token = self.rq.pop(self.rng.randrange(len(self.rq)))
        if self.rng.random() < 0.2:
            self.rq.append(token)
        reply = client.link.script(START)([KEY], [token, f"w{id(client)}", 3_600_000, "", new_nonce()])
        if len(reply) < 4:
            self.counts["void job"] += 1
            return
        queue, began = reply[2].decode(), reply[3].decode()
        client.session = RedisSession(client.link, "s", Plain(), token, began, queue=queue, retires=True)
        client.session.posts_by(lambda other, queue: self.rq.append(other))
        client.confirmed = []
        self.senders.append(client.confirmed)

    def work(self, client: Client) -> None:
        """One move of a worker: begin, claim, read, commit."""
        session, run = client.session, client.run
        try:
            if session is None:
                self.begin(client)
            elif session.retired:
                client.leave()
            elif run is None:
                claims = session.commit([("claim", 1)])
                if claims:
                    client.run = Run(self.id(), claims[0], session.reader(claims[0].spec.key))
            elif len(run.reads) < 2 and self.rng.random() < 0.6:
                self.read(run, self.rng.choice([*VALUES, "z", f"t{self.rng.randrange(TASKS)}{RESULT}"]))
            elif self.rng.random() < 0.08:
                client.leave()  # it dies
            else:
                self.end(client, session, run)
        except (Fenced, NoSession) as error:
            self.counts[type(error).__name__] += 1
            self.give_up(client)

    def read(self, run: Run, name: str) -> None:
        found = run.reader.read(name)
        cells = [] if found is None else [cell for cell in (found[0], *found[2]) if cell != b"\x90"]
        run.reads[name] = [json.loads(cell)["id"] for cell in cells if isinstance(cell, bytes)]
        run.versions[name] = 0 if found is None else found[1]

    def end(self, client: Client, session: RedisSession, run: Run) -> None:
        changed = next((name for name in VALUES if name in run.reads and self.rng.random() < 0.7), "")
        ops: list[Op] = [("end", run.claim.spec.key, run.claim.number, "completed", _cell(run.id))]
        if changed:
            ops.append(("put", changed, _cell(run.id), run.versions[changed]))
        if self.rng.random() < 0.3:
            ops.append(("append", "z", _cell(run.id)))
        ops.append(_line(run.id, run.reads, changed, run.claim.spec.task_id))
        try:
            claims = session.commit([*ops, ("claim", 1)])
        except WriteConflict:
            self.counts["conflict"] += 1
            key, number = run.claim.spec.key, run.claim.number
            claims = session.commit([("end", key, number, "retry", 0.0, "WriteConflict"), ("claim", 1)])
        else:
            self.noted(client, client.confirmed, run.id)
        client.run = None
        if claims:
            client.run = Run(self.id(), claims[0], session.reader(claims[0].spec.key))

    def give_up(self, client: Client) -> None:
        """What a slice does that was refused: what it holds goes back, if it is still its own."""
        session = client.session
        if session is not None and session.broken is None and not session.retired:
            with suppress(SessionError, NoSession):
                ops: list[Op] = [("release", key, 0) for key in session.held]
                session.commit([*ops, ("claim", 0)], mode="q")
        for at, told in enumerate(self.senders):
            if told is client.confirmed:
                self.refused.add(at)
        client.leave()

    def sweep(self) -> None:
        """What stewards do: the dead are reaped, tokens that wait are posted again, the session is woken."""
        link: Any = self.steward.link
        alive = {one.session.token for one in self.workers if one.session is not None}
        with suppress(NoSession, SessionBusy, Fenced):
            owners = link.client.hkeys(KEY[:-1] + "own")
            waiting = link.client.hvals(KEY[:-1] + "qt")
            for token in (token.decode() for token in owners):
                if token not in alive:
                    made = release(link, "s", Plain(), token, "dead", forced=True, crashed=False)
                    self.rq += [other for other, _ in made or ()]
            self.rq += [token.decode() for token in waiting]
            sender = RedisSession(link, "s", Plain())
            sender.posts_by(lambda token, queue: self.rq.append(token))
            try:
                sender.commit([("claim", 0)])
            finally:
                sender.close()

    def jolt(self) -> None:
        """The moments at which something may happen to the servers."""
        if self.plan and not self.cut and not self.scattered and self.moves >= self.plan[0][0]:
            self.detach()
        if self.cut and self.moves >= self.plan[0][1]:
            self.fail_over()
            self.plan.pop(0)
            self.scattered = self.kind == "replica"
        elif self.scattered:
            self.discover()
            if self.all_know():
                self.follow()
                self.scattered = False
        self.moves += 1

    plan: list[tuple[int, int]]
    moves = 0
    scattered = False

    # --- a history ---------------------------------------------------------------------

    def play(self) -> None:
        first = self.rng.randrange(40)
        lag = self.rng.randrange(9)
        self.plan = [(first, first + lag)]
        if self.rng.random() < 0.4:
            second = first + lag + self.rng.randrange(25, 45)
            self.plan.append((second, second + self.rng.randrange(9)))
        while self.moves < 400:
            if not self.submitted or not self.there():
                self.submit()
                continue
            match self.rng.choice(["work"] * 12 + ["sweep", "write"]):
                case "work":
                    self.work(self.rng.choice(self.workers))
                case "sweep":
                    self.sweep()
                case _:
                    self.write()
            self.jolt()
            if not self.plan and not self.scattered and self.over():
                break
        self.finish()

    def there(self) -> bool:
        """Whether the submission is in the history that the user sees."""
        line: Any = self.user.link.client.hget(KEY, "c")
        self.submitted = line is not None and not line.startswith(b"init|")
        return self.submitted

    def over(self) -> bool:
        line: Any = self.master.ask("HGET", KEY, "c")
        return line is not None and line.startswith(b"completed|")

    def finish(self) -> None:
        for _ in range(60):
            if not self.plan and not self.scattered and self.over():
                return
            self.jolt()
            if not self.submitted or not self.there():
                self.submit()
            self.sweep()
            for client in self.workers * 12:
                self.work(client)
        self.wrong.append("it has not ended")


def _cell(ident: str) -> bytes:
    return json.dumps({"id": ident}).encode()


def _line(ident: str, reads: dict[str, list[str]], changed: str, task: str) -> Op:
    entry = {"id": ident, "reads": reads, "changed": changed, "task": task}
    return ("append", LOG, json.dumps(entry).encode())


# --- what has to hold ------------------------------------------------------------------


def judged(world: World, prefixes: list[list[str]]) -> list[str]:
    """What is wrong with how it ended."""
    link = world.user.link
    state = read_state(link, "s", Plain())
    log = [json.loads(item) for item in state.appended.get(LOG, []) if isinstance(item, bytes)]
    ids = [entry["id"] for entry in log]
    wrong = list(world.wrong)
    wrong += [f"{one} was committed {n} times" for one, n in Counter(ids).items() if n > 1]
    for prefix in prefixes:
        if ids[: len(prefix)] != prefix:
            wrong.append(f"the surviving server had {prefix[-3:]}, and has lost some of it")
    done = Counter(entry["task"] for entry in log if entry["task"])
    wrong += [f"{task} has completed {n} times" for task, n in done.items() if n > 1]
    if set(done) != {f"t{n}" for n in range(TASKS)} and state.status == "completed":
        wrong.append(f"completed are {sorted(done)}")
    seen: set[str] = set()
    last: dict[str, list[str]] = {}
    for entry in log:
        for read in entry["reads"].values():
            wrong += [f"{entry['id']} has read {one} of another history" for one in read if one not in seen]
        changed = entry["changed"]
        if changed:
            was = last.get(changed, [])
            if entry["reads"].get(changed, was) != was:
                wrong.append(f"{entry['id']} changed {entry['reads'][changed]}, and {changed} was {was}")
            last[changed] = [entry["id"]]
        seen.add(entry["id"])
    for at, told in enumerate(world.senders):
        lost = [one for one in told if one not in seen]
        world.counts["lost"] += len(lost)
        if lost and any(one in seen for one in told[told.index(lost[0]) :]):
            wrong.append(f"sender {at} went on from {lost[0]}, which is lost")
    return wrong


# --- many ------------------------------------------------------------------------------


@contextmanager
def servers() -> Iterator[dict[str, list[Server]]]:
    with ExitStack() as stack:
        master = stack.enter_context(Server())
        replica = stack.enter_context(Server(replica_of=master))
        alone = stack.enter_context(Server({"dbfilename": "dump.rdb"}))
        yield {"replica": [master, replica], "snapshot": [alone, alone]}


def run(seeds: range, until: Callable[[Found], bool] = lambda found: False) -> Found:
    found = Found()
    with servers() as kinds:
        for seed in seeds:
            kind = ("replica", "snapshot")[seed % 2]
            pair = kinds[kind]
            pair[0].ask("FLUSHALL")
            world = World(Random(seed), pair, kind)
            prefixes: list[list[str]] = []
            fail_over = world.fail_over

            def noted(fail_over: Any = fail_over, world: World = world, prefixes: Any = prefixes) -> None:
                fail_over()
                prefixes[:] = [world.kept]

            world.fail_over = noted  # type: ignore[method-assign]
            try:
                world.play()
                found.wrong += [f"seed {seed} ({kind}): {what}" for what in judged(world, prefixes)]
            finally:
                world.close()
                kinds[kind] = [world.master, world.other]
            found.counts.update(world.counts)
            found.counts["histories"] += 1
            if until(found):
                break
    return found


def main() -> int:
    given = asked(__doc__ or "")
    logging.disable(logging.ERROR)  # that servers are away is the point
    began = time.monotonic()
    found = run(range(given.seed, given.seed + given.count))
    print(f"{dict(found.counts)}, {time.monotonic() - began:.0f} s", flush=True)
    for wrong in found.wrong[:20]:
        print(f"WRONG {wrong}", flush=True)
    return bool(found.wrong)


if __name__ == "__main__":
    raise SystemExit(main())
