"""Two workers and one session, at random: `python -m tests.crash.histories --count 1000`.

Two real processes acquire the session, take it over, save, append, go back, release, and use leases that they
have lost. At any moment one of them is stopped (SIGSTOP), also in the middle of a write, and goes on later
(SIGCONT) with what it was about to do. Meanwhile the store's clock is stepped: where a lease ends by a clock,
its end is moved, back and forth, which is the same thing. A history is random by its seed; what the scheduler
makes of it is not.

However it went, it ends in one line of epochs (`judged`): no epoch twice, none lower than one before it,
nothing written under an epoch after a higher one was given out, nothing lost that was confirmed, nothing
there that was refused.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import redis

from graflow_ckpt.core.errors import Fenced, JournalFailed, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Journal, Lease
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.drivers.redis.driver import PREFIX
from graflow_ckpt.stores.drivers.redis.store import RedisStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.head import head_key, lease_key
from tests.conformance.companion import Companion, Heard, Say, Silence
from tests.object_servers import CREDENTIALS, object_server
from tests.servers import Server
from tests.trios import own_name, parts_of, path_of, read

Opener = Callable[[], CheckpointStore]
Step = Callable[[str, int], None]
"""(session, milliseconds) -> the clock that its lease ends by is that much later."""

LEASE = 0.3
_PATIENCE = 60.0
_STUCK = 0.5  # seconds after which a worker is taken to wait for a lock of the one that is stopped


@dataclass
class Said:
    """One thing that a worker was told to do, and what came of it. Times are those of the one who tells."""

    number: int
    op: str
    told: int
    answered: int = 0
    result: str = ""
    epoch: int = 0


class Worker(Companion):
    """A process that does what it is told, one after the other (see `obey`)."""

    def __init__(self, opener: Opener) -> None:
        super().__init__(opener, obey)
        self.stopped = False
        self.pending: list[Said] = []

    def tell(self, said: Said, *arguments: Any) -> None:
        self.pending.append(said)
        self.say([said.number, said.op, *arguments])

    def answer(self, patience: float) -> tuple[int, str, int] | None:
        """Number, result and epoch of the next answer; None if there is none in time."""
        try:
            number, result, epoch = self.hear(patience)
        except Silence:
            return None
        return number, result, epoch

    def stop(self) -> None:
        super().stop()
        self.stopped = True

    def wake(self) -> None:
        super().wake()
        self.stopped = False


class Holder:
    """One session as this process sees it: its lease, and the one that it had before."""

    def __init__(self, store: CheckpointStore, session: str) -> None:
        self.store, self.session = store, session
        self.held: list[tuple[Lease, Journal | None]] = []

    def do(self, op: str, number: int) -> tuple[str, int]:
        if op in ("acquire", "take"):
            lease = self.store.acquire(self.session, take_over=op == "take")
            self.held = [(lease, None), *self.held][:2]
            return "owner", lease.epoch
        old = op.endswith("_old")
        if len(self.held) <= old:
            return "none", 0
        lease, journal = self.held[old]
        try:
            match op.removesuffix("_old"):
                case "put":
                    stage = f"e{lease.epoch}n{number}"
                    parts = parts_of(stage, session=self.session, sequence=number)
                    path = path_of(self.store, own_name(self.session, number))
                    self.store.put(path, parts, lease=lease, stage=stage)
                case "append":
                    if journal is None:
                        journal = self.store.journal(lease, 0)
                        self.held[old] = (lease, journal)
                    journal.append(b"e%dn%d;" % (lease.epoch, number))
                case "check":
                    lease.check()
                case "release":
                    lease.release()
        except Fenced:
            return "fenced", lease.epoch
        except JournalFailed as error:  # a fence may close a segment for good
            return ("fenced" if "closed" in error.message else repr(error)), lease.epoch
        return "done", lease.epoch


def obey(store: CheckpointStore, say: Say, heard: Heard) -> None:
    """For each number, operation and session, say the number, the result and the epoch."""
    holders: dict[str, Holder] = {}
    while True:
        number, op, session = heard()
        if session not in holders:
            holders = {session: Holder(store, session)}
        try:
            say([number, *holders[session].do(op, number)])
        except SessionBusy:
            say([number, "busy", 0])
        except Fenced:  # taken over while it was acquiring: some stores find out before it is theirs
            say([number, "fenced", 0])
        except Exception as error:  # noqa: BLE001  the one who judges wants to see it
            say([number, f"{type(error).__name__}: {error}", 0])


@dataclass
class History:
    """One session, and all that happened in it."""

    session: str
    said: list[Said] = field(default_factory=list)
    now: int = 0

    def tick(self) -> int:
        self.now += 1
        return self.now

    def tell(self, worker: Worker, op: str) -> Said:
        said = Said(len(self.said) + 1, op, self.tick())
        self.said.append(said)
        worker.tell(said, self.session)
        return said

    def hear(self, worker: Worker, patience: float) -> bool:
        """Whether the worker has answered everything."""
        while worker.pending:
            heard = worker.answer(patience)
            if heard is None:
                return False
            said = worker.pending.pop(0)
            assert heard[0] == said.number, (heard, said)
            said.answered = self.tick()
            _, said.result, said.epoch = heard
        return True


_OPS = ("acquire", "take", "put", "put", "append", "append", "put_old", "append_old", "check", "release")


def play(workers: list[Worker], session: str, rng: Random, step: Step | None) -> History:
    """A random history; at its end both workers run, and have answered."""
    history = History(session)
    first = rng.randrange(2)
    for op in ("acquire", "put", "append"):
        history.tell(workers[first], op)
    _settled(history, workers, workers[first])
    for _ in range(rng.randrange(6, 20)):
        worker, other = rng.sample(workers, 2)
        if step is not None and rng.random() < 0.15:
            step(session, rng.choice((-(10**6), -1000, 1000, 10**6)))
        if worker.stopped:
            if rng.random() < 0.5 and not worker.pending:
                history.tell(worker, rng.choice(("put", "append", "check")))  # what it wakes up to
            elif rng.random() < 0.5:
                worker.wake()
                _settled(history, workers, worker)
            continue
        history.tell(worker, rng.choice(_OPS))
        if rng.random() < 0.3 and not other.stopped:
            time.sleep(rng.choice((0, 0, 0.0005, 0.002)))  # somewhere in the middle of what it was told
            worker.stop()
            history.tell(other, rng.choice(("take", "take", "acquire")))
            _settled(history, workers, other)
            history.tell(other, rng.choice(("put", "append", "check")))
            _settled(history, workers, other)
        else:
            _settled(history, workers, worker)
    for worker in workers:
        if worker.stopped:
            worker.wake()
    for worker in workers:
        assert history.hear(worker, _PATIENCE), "a worker says nothing more"
    for worker in workers:
        history.tell(worker, "release")
        assert history.hear(worker, _PATIENCE)
    return history


def _settled(history: History, workers: list[Worker], worker: Worker) -> None:
    """It has answered; the one that is stopped may have to let go of a lock first."""
    while not history.hear(worker, _STUCK):
        for other in workers:
            if other.stopped:
                other.wake()


# --- what has to hold ------------------------------------------------------------------


def judged(history: History, store: CheckpointStore) -> list[str]:
    """What is wrong with how it ended."""
    wrong = []
    granted = [said for said in history.said if said.op in ("acquire", "take") and said.result == "owner"]
    epochs = Counter(said.epoch for said in granted)
    wrong += [f"epoch {epoch} was given out {count} times" for epoch, count in epochs.items() if count > 1]
    for one in granted:
        for later in granted:
            if one.answered < later.told and later.epoch <= one.epoch:
                wrong.append(f"epoch {later.epoch} came after {one.epoch}")
    for said in history.said:
        if said.result == "done":
            higher = [g.epoch for g in granted if g.epoch > said.epoch and g.answered < said.told]
            if higher and said.op != "release":
                wrong.append(
                    f"{said.op} {said.number} went through under {said.epoch}, and {higher[0]} was there"
                )
        elif said.result not in ("owner", "busy", "fenced", "none"):
            wrong.append(f"{said.op} {said.number}: {said.result}")
    return [*wrong, *_trios(history, store), *_frames(history, store)]


def _trios(history: History, store: CheckpointStore) -> list[str]:
    listed = {path.rpartition("/")[2].removesuffix(".pkl") for path, _ in store.list(history.session)}
    wrong = []
    for said in history.said:
        if said.op in ("put", "put_old") and said.result != "none":
            name = own_name(history.session, said.number)
            there = name.removesuffix(".pkl") in listed
            if there != (said.result == "done"):
                wrong.append(f"put {said.number} is {said.result}, and {'there' if there else 'not there'}")
            elif there and read(store, path_of(store, name)).stage != f"e{said.epoch}n{said.number}":
                wrong.append(f"put {said.number} is another one")
    return wrong


def _frames(history: History, store: CheckpointStore) -> list[str]:
    found = [(epoch, raw) for epoch, _, raw in store.segments(history.session)]
    wrong = [] if [e for e, _ in found] == sorted(e for e, _ in found) else ["segments are out of order"]
    done = Counter[int]()
    appended: dict[int, bytes] = {}
    for said in history.said:
        if said.op in ("append", "append_old") and said.result == "done":
            appended[said.epoch] = appended.get(said.epoch, b"") + b"e%dn%d;" % (said.epoch, said.number)
            done[said.epoch] += 1
    there = {epoch: raw.rstrip(b"\0") for epoch, raw in found if raw.rstrip(b"\0")}
    if there != appended:
        wrong.append(f"the journal is {there}, and confirmed was {appended}")
    return wrong


# --- where -----------------------------------------------------------------------------


@contextmanager
def local(folder: Path) -> Iterator[tuple[Opener, Step | None]]:
    yield partial(LocalStore, folder / "checkpoints"), None  # flocks: no clock


@contextmanager
def sqlite(folder: Path) -> Iterator[tuple[Opener, Step | None]]:
    file = folder / "x.db"

    def step(session: str, by: int) -> None:
        with closing(sqlite3.connect(file, timeout=60)) as connection, connection:
            change = "UPDATE things SET at = at - ? WHERE key = ? OR key GLOB ?"
            with suppress(sqlite3.OperationalError):  # somebody is stopped in the middle of a write
                connection.execute("PRAGMA busy_timeout = 50")
                connection.execute(change, (by / 1000, head_key(session), lease_key(session, "*")))

    yield partial(SqliteStore, file, lease=LEASE), step


_EARLIER = """
for _, key in ipairs(KEYS) do
    if redis.call('STRLEN', key) >= 20 then
        local at = struct.unpack('>d', redis.call('GETRANGE', key, 12, 19))
        redis.call('SETRANGE', key, 12, struct.pack('>d', at - ARGV[1]))
    end
end
"""


@contextmanager
def on_redis(folder: Path) -> Iterator[tuple[Opener, Step | None]]:
    synced = {"appendonly": "yes", "appendfsync": "always"}  # else it keeps no journal
    with Server(synced) as server, closing(redis.Redis.from_url(server.url)) as client:
        earlier = client.register_script(_EARLIER)

        def step(session: str, by: int) -> None:
            shown = client.keys(PREFIX + lease_key(session, "*"))
            earlier([PREFIX + head_key(session), *shown], [by / 1000])

        yield partial(RedisStore, server.url, lease=LEASE), step


@contextmanager
def postgres(folder: Path) -> Iterator[tuple[Opener, Step | None]]:
    from tests.postgres_servers import PostgresServer

    with PostgresServer() as server:
        url = server.database()
        store = PostgresStore(url)
        store.schema.upgrade()
        store.close()

        def step(session: str, by: int) -> None:
            change = "update graflow_ckpt.things set at = at - %s where key = %s or starts_with(key, %s)"
            keys = (head_key(session), lease_key(session, ""))
            server.ask(change, by / 1000, *keys, database=url.rpartition("/")[2])

        yield partial(PostgresStore, url, lease=LEASE), step


@contextmanager
def objects(folder: Path) -> Iterator[tuple[Opener, Step | None]]:
    os.environ.update(CREDENTIALS)
    with object_server() as server:
        yield partial(ObjectStore, server.url, lease=LEASE), None  # its clock is the bucket's own


PLACES = {"local": local, "sqlite": sqlite, "redis": on_redis, "postgres": postgres, "objects": objects}


@dataclass
class Found:
    """What so many histories have come to."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def run(
    opener: Opener, step: Step | None, seeds: range, until: Callable[[Found], bool] = lambda found: False
) -> Found:
    """One history for each seed, each in a session of its own."""
    found = Found()
    with ExitStack() as stack:
        workers = [Worker(opener), Worker(opener)]
        for worker in workers:
            stack.enter_context(worker)
        store = opener()
        for seed in seeds:
            history = play(workers, f"h{seed}", Random(seed), step)
            found.counts.update(said.result for said in history.said)
            found.wrong += [f"seed {seed}: {what}" for what in judged(history, store)]
            if until(found):
                break
    return found


def asked(doc: str, places: Iterable[str] = ()) -> argparse.Namespace:
    """What the command line says: how many histories, from which seed, and where."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--place", action="append", choices=list(places))
    return parser.parse_args()


def main() -> int:
    given = asked(__doc__ or "", PLACES)
    places, failed = given.place or list(PLACES), False
    for place in places:
        began, seeds = time.monotonic(), range(given.seed, given.seed + given.count // len(places))
        with tempfile.TemporaryDirectory() as folder, PLACES[place](Path(folder)) as (opener, step):
            found = run(opener, step, seeds)
        failed |= bool(found.wrong)
        took = time.monotonic() - began
        print(f"{place}: {len(seeds)} histories, {dict(found.counts)}, {took:.0f} s", flush=True)
        for wrong in found.wrong[:20]:
            print(f"WRONG {place} {wrong}", flush=True)
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
