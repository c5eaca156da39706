"""Leases of keyed stores: one owner, whose epoch grows, and who has lost it writes nothing.

Not here: what every store promises (tests/conformance), and saves that are stopped anywhere (test_trios.py).
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any

import psycopg
import pytest

from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    Fenced,
    ServerGone,
    ServerRefuses,
    SessionBusy,
)
from graflow_ckpt.core.protocols import Buffer, CheckpointStore
from graflow_ckpt.stores.driver import Put
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.objects.bucket import Bucket, Tag
from graflow_ckpt.stores.drivers.objects.names import place_of
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.head import head_key, lease_key
from graflow_ckpt.stores.owners import GRACE
from tests import things
from tests.unit.stores.interruptions import Killed, happening, killed, lost
from tests.unit.stores.kinds import (
    KINDS,
    PROCESSES,
    REDIS,
    SERVERS,
    InBucket,
    InPostgres,
    Kind,
    only,
)
from tests.unit.stores.programs import ROOT, command
from tests.unit.stores.texts import names, own_name, put, read

OWNER = """
lease = store.acquire("s")
print(lease.epoch, flush=True)
for line in sys.stdin:
    try:
        print(put(store, line.strip(), "theirs", lease), flush=True)
    except GraflowError as error:
        print(type(error).__name__, error, flush=True)
"""


@contextmanager
def owner_elsewhere(kind: Kind, lease: float) -> Iterator[subprocess.Popen[str]]:
    """A process that acquires the session, says so, and for each line puts a checkpoint of that name."""
    owning = command(kind.program(OWNER, lease=lease))
    with subprocess.Popen(owning, cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            yield process
        finally:
            process.kill()


# --- one owner, whose epoch grows --------------------------------------------------------


def test_a_session_puts_no_checkpoint_under_the_name_of_another_ones(store: CheckpointStore) -> None:
    lease = store.acquire("s")

    with pytest.raises(CheckpointError, match="name of a checkpoint of session 't'"):
        put(store, own_name(session="t"), "one", lease)

    path = put(store, own_name(session="t"), "one")  # a worker of that session, which is kept elsewhere
    assert [found for found, _ in store.list("t")] == [path.removesuffix(".pkl") + ".pkl"]
    lease.release()


@pytest.mark.parametrize("other", [LocalStore, lambda folder: MemoryStore(f"memory://{folder.name}")])
def test_a_lease_of_another_place_is_refused(
    store: CheckpointStore, tmp_path: Path, other: Callable[[Path], CheckpointStore]
) -> None:
    lease = other(tmp_path).acquire("s")

    for name in ("best", own_name()):
        with pytest.raises(TypeError, match="lease of this store"):
            put(store, name, "one", lease)

    lease.release()
    assert names(store) == []


def test_asking_for_an_owner_writes_nothing(store: CheckpointStore, kind: Kind) -> None:
    assert store.owner("s") is None
    assert kind.is_empty()


# --- dead, silent and stopped owners -----------------------------------------------------


@PROCESSES
def test_a_killed_owner_of_this_machine_is_followed_at_once(store: CheckpointStore, kind: Kind) -> None:
    with owner_elsewhere(kind, lease=600) as process:
        with pytest.raises(SessionBusy, match=f"process {process.pid} on"):
            store.acquire("s")
        process.kill()
        process.wait()
        assert store.owner("s") is None

        lease = store.acquire("s")

        assert lease.epoch == 2
        assert lease.taken_from is not None
        assert lease.taken_from.pid == process.pid
        lease.release()


def test_a_pid_that_somebody_else_has_now_keeps_nobody_out(store: CheckpointStore, kind: Kind) -> None:
    kind.owned(600, pid=os.getpid(), started="1")

    lease = store.acquire("s")

    assert lease.epoch == 5
    lease.release()


@contextmanager
def renewing(kind: Kind) -> Iterator[None]:
    """The owner that was written by `kind.owned` shows that it lives."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(0.01):
            kind.renew()

    keeper = threading.Thread(target=renew)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


def test_an_owner_of_another_machine_that_renews_its_lease_is_alive(
    store: CheckpointStore, kind: Kind
) -> None:
    owner = kind.owned(600, **kind.far)

    with renewing(kind):
        with pytest.raises(SessionBusy, match="on far"):
            store.acquire("s")
        assert store.owner("s") == owner


def test_an_owner_elsewhere_that_renews_its_lease_after_that_was_over_keeps_the_session(
    store: CheckpointStore, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind.owned(600, **kind.far)
    now = store.driver.now
    monkeypatch.setattr(store.driver, "now", lambda: now() + 700)  # the place was away for so long

    with renewing(kind), pytest.raises(SessionBusy, match="on far"):
        store.acquire("s")


# --- clocks and keepers ------------------------------------------------------------------


class ReadOnly(Bucket):
    """As with credentials that may write nothing."""

    def put(self, key: str, data: Buffer) -> Tag:
        raise ServerRefuses(f"{self.address} refuses: AccessDenied.")


@only("objects")
def test_who_may_only_read_is_told_who_the_owner_is(store: ObjectStore, kind: Kind) -> None:
    owner = kind.owned(600, **kind.far)
    store.driver.bucket = ReadOnly(place_of(kind.where))

    assert store.owner("s") == owner


@pytest.mark.parametrize("step", [0, -1e9, 1e9])
def test_a_silent_owner_of_another_machine_is_waited_for_until_its_lease_ends(
    store: CheckpointStore, kind: Kind, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    owner, now = kind.owned(0.3, **kind.far), store.driver.now
    monkeypatch.setattr(store.driver, "now", lambda: now() + step)  # of the place: it may have been set
    began = time.monotonic()

    lease = store.acquire("s")

    assert step > 0 or 0.29 <= time.monotonic() - began < 20
    assert (lease.epoch, lease.taken_from) == (5, owner)
    lease.release()


@PROCESSES
def test_a_lease_that_ends_in_years_is_not_waited_for(kind: Kind) -> None:
    kind.owned(1e9, **kind.far)  # by somebody's hand

    with pytest.raises(SessionBusy, match="on "):
        kind.open(lease=0.05).acquire("s")

    kind.open().acquire("s", take_over=True).release()


def test_an_owner_elsewhere_that_was_silent_for_long_is_not_waited_for(
    store: CheckpointStore, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind.owned(600, **kind.far)
    assert store.owner("s") is not None
    now = store.driver.now
    monkeypatch.setattr(store.driver, "now", lambda: now() + 700)

    assert store.owner("s") is None
    assert store.acquire("s").epoch == 5


@pytest.mark.parametrize("step", [-1e9, 1e9])
def test_a_clock_that_jumps_lets_nobody_write_who_was_taken_over(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    old, now = store.acquire("s"), store.driver.now
    monkeypatch.setattr(store.driver, "now", lambda: now() + step)
    put(store, own_name(1), "one", old)
    with pytest.raises(SessionBusy):
        store.acquire("s")  # it is near, and lives

    new = store.acquire("s", take_over=True)

    with pytest.raises(Fenced):
        put(store, own_name(2), "two", old)
    put(store, own_name(3), "three", new)
    assert names(store, "s") == [own_name(3), own_name(1)]
    new.release()


def tag_of(kind: Kind, lease: Any) -> str | None:
    (found,) = kind.driver.get(lease_key(lease.session, lease.claim))
    return found and found.tag


def until(comes: Any) -> None:
    deadline = time.monotonic() + 20
    while not comes():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@only(*(kind for kind in KINDS if kind != "memory"))  # where silence says something
def test_a_lease_is_renewed_for_as_long_as_its_owner_lives_and_goes_with_it(kind: Kind) -> None:
    lease = kind.open(lease=0.3).acquire("s")
    seen = {tag_of(kind, lease)}

    until(lambda: seen.add(tag_of(kind, lease)) or len(seen) > 3)

    lease.release()
    assert kind.listed("lease/") == []


@SERVERS
def test_a_renewal_that_fails_is_tried_again(kind: Kind) -> None:
    with kind.proxy() as (proxy, behind):
        lease = kind.open(behind, lease=0.3).acquire("s")
        proxy.refuse()
        last = tag_of(kind, lease)
        time.sleep(0.4)  # what is under way may still come through
        last = tag_of(kind, lease)

        proxy.resume()

        until(lambda: tag_of(kind, lease) != last)
        lease.check()  # nobody has taken it meanwhile
        lease.release()


@only(REDIS[0])
def test_a_renewal_that_failed_is_not_waited_for_as_long_as_one_that_is_due(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    with kind.proxy() as (proxy, behind):
        lease = kind.open(behind, lease=9).acquire("s")
        proxy.refuse()
        last = tag_of(kind, lease)
        until(lambda: "cannot renew" in caplog.text)
        proxy.resume()
        back = time.monotonic()

        until(lambda: tag_of(kind, lease) != last)

        assert time.monotonic() - back < GRACE
        lease.release()


def test_who_was_taken_over_renews_nobodys_lease_and_keeps_no_key_of_its_own(kind: Kind) -> None:
    store = kind.open(lease=600)
    old, new = store.acquire("s"), store.acquire("s", take_over=True)

    before = tag_of(kind, new)

    assert old._renew() is False
    old.release()

    assert tag_of(kind, new) == before
    assert kind.listed("lease/") == [lease_key("s", new.claim)]
    new.check()
    new.release()


# --- what could not be written -----------------------------------------------------------


def given_up(kind: Kind, lease: Any, store: Any) -> None:
    """Release it while the place does not answer."""
    with kind.impatient(0), happening(store, 0, lost, for_good=True):
        lease.release()
    assert kind.head().owner is not None


def test_a_release_that_could_not_be_written_does_not_keep_this_process_out(kind: Kind) -> None:
    store = kind.open(lease=600)
    lease = store.acquire("s")
    given_up(kind, lease, store)

    assert store.owner("s") is None
    with pytest.raises(Fenced, match="released"):
        put(store, own_name(), "late", lease)
    new = kind.open().acquire("s")

    assert new.epoch == 2
    new.release()


@PROCESSES
def test_a_release_that_could_not_be_written_is_written_later(kind: Kind) -> None:
    store = kind.open(lease=0.3)
    given_up(kind, store.acquire("s"), store)

    until(lambda: kind.head().owner is None)

    assert kind.run("store.acquire('s').release()") == []  # another process, while this one lives
    until(lambda: kind.listed("lease/") == [])
    until(lambda: "lease-s" not in [thread.name for thread in threading.enumerate()])


def test_an_owner_that_a_restored_backup_still_names_can_be_released(
    store: CheckpointStore, kind: Kind
) -> None:
    lease = store.acquire("s")
    (head,) = kind.driver.get(head_key("s"))
    put(store, own_name(1), "one", lease)
    kind.driver.batch([Put(head_key("s"), head.data, fresh=False)])
    with pytest.raises(Fenced, match="forgotten"):
        lease.check()

    lease.release()

    assert store.acquire("s").epoch == 2


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_claim_whose_outcome_is_unknown_does_not_keep_this_process_out(kind: Kind, after: bool) -> None:
    short = 0.3 if kind.type is not MemoryStore else 0
    for at in range(8):
        mine = kind.open(lease=short)
        mine.probe()
        with kind.impatient(0), happening(mine, at, lost, after=after, for_good=True), suppress(ServerGone):
            mine.acquire("s").release()

        kind.open(lease=short).acquire("s").release()

    until(lambda: kind.head().owner is None)


# --- what was lost -----------------------------------------------------------------------


def test_a_place_that_has_forgotten_the_session_fences_its_owner_and_gives_no_epoch_out_again(
    store: CheckpointStore, kind: Kind
) -> None:
    lease = store.acquire("s")
    put(store, own_name(), "one", lease, size=kind.chunk)
    kind.forget()

    with pytest.raises(Fenced, match="forgotten"):
        lease.check()
    for name in (own_name(2), "best"):
        with pytest.raises(Fenced, match="forgotten"):
            put(store, name, "two", lease)
    lease.release()

    assert store.acquire("s").epoch == 2


def test_an_epoch_that_no_session_reaches_is_not_gone_on_from(store: CheckpointStore, kind: Kind) -> None:
    for key in ("data/s/999999999999999999-0/m.x", "data/s/9999999999999999999999/m.x", "data/s/7-0/m.x"):
        things.write(store, key, b"by somebody's hand")
    things.write(store, "journal/s/99999999999999999999-000000000000-x/0000000000", b"-")

    lease = store.acquire("s")
    path = put(store, own_name(), "one", lease)

    assert lease.epoch == 8
    assert read(store, path)[0] == "one"
    lease.release()
    store.acquire("s").release()


@pytest.mark.parametrize("left", ["a frame", "nothing"])
def test_a_session_that_has_lost_everything_has_one_owner_still(
    store: CheckpointStore, kind: Kind, left: str
) -> None:
    old = store.acquire("s")
    segment = store.journal(old, 0)
    if left == "a frame":
        segment.append(b"frame")
    kind.forget()

    new = store.acquire("s")

    began = left == "a frame" or isinstance(kind, InBucket)
    assert new.epoch == (2 if began else 1)
    with pytest.raises(Fenced, match=r"forgotten|taken over"):
        put(store, own_name(), "late", old)
    put(store, own_name(), "one", new)
    new.release()


def test_an_owner_whose_last_change_the_place_has_lost_is_fenced_though_its_claim_still_stands(
    store: CheckpointStore, kind: Kind
) -> None:
    lease = store.acquire("s")
    put(store, own_name(1), "one", lease)
    (head,) = kind.driver.get(head_key("s"))
    put(store, own_name(2), "two", lease)
    segment = store.journal(lease, 2)
    kind.driver.batch([Put(head_key("s"), head.data, fresh=False)])  # a failover, to a replica that lags

    for call in (
        lambda: put(store, own_name(3), "three", lease),
        lease.check,
        lambda: store.journal(lease, 3),
    ):
        with pytest.raises(Fenced, match="forgotten"):
            call()
    if not isinstance(kind, InBucket):  # there an append asks for nothing else
        with pytest.raises(Fenced):
            segment.append(b"late")
    assert store.acquire("s", take_over=True).epoch == 2


@pytest.mark.parametrize("replaced", [False, True])
@only("sqlite")
def test_a_database_that_was_taken_away_fences_its_owners(store: SqliteStore, replaced: bool) -> None:
    lease = store.acquire("s")
    segment = store.journal(lease, 0)
    for ending in ("", "-wal", "-shm"):
        os.unlink(store.file + ending)
    if replaced:
        SqliteStore(store.url).probe()

    for call in (lease.check, lambda: put(store, "best", "one", lease), lambda: segment.append(b"x")):
        with pytest.raises(Fenced, match=r"removed or replaced|forgotten"):
            call()
    lease.release()
    assert list(store.list()) == []


# --- at every point at which a claim can be stopped --------------------------------------


def test_a_busy_owner_is_taken_over_all_the_same(kind: Kind) -> None:
    store, other = kind.open(), kind.open()
    old = store.acquire("s")

    def commit() -> None:  # between what the taker has read and what it writes
        put(store, own_name(), "one", old)

    with happening(other, 1, commit) as point:
        new = other.acquire("s", take_over=True)

    assert point.happened
    assert new.epoch == 2
    assert read(store, own_name())[0] == "one"
    new.release()


def test_of_two_that_take_over_at_once_one_is_refused(kind: Kind) -> None:
    store, other, won = kind.open(), kind.open(), list[Any]()
    store.acquire("s")

    def be_faster() -> None:
        won.append(store.acquire("s", take_over=True))

    with happening(other, 1, be_faster), pytest.raises(SessionBusy):
        other.acquire("s", take_over=True)

    won[0].check()
    won[0].release()


def test_a_claim_whose_reply_is_lost_is_made_once(kind: Kind) -> None:
    epochs = []
    for at in range(6):
        mine = kind.open(lease=600)
        with happening(mine, at, lost, after=True):
            lease = mine.acquire("s")

        epochs.append(lease.epoch)
        lease.check()
        lease.release()
    assert epochs == [1, 2, 3, 4, 5, 6]


@SERVERS
def test_over_a_wire_a_claim_whose_reply_is_lost_is_the_same_claim(kind: Kind) -> None:
    with kind.proxy() as (proxy, behind):
        store = kind.open(behind)
        store.acquire("s").release()
        proxy.drop_next_reply(b"argv")

        lease = store.acquire("s")

        assert proxy.dropped()
        assert lease.epoch == 2
        lease.check()
        lease.release()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_who_dies_while_it_acquires_is_no_trouble_for_the_next(kind: Kind, after: bool) -> None:
    store = kind.open(lease=600)
    first = store.acquire("s")
    put(store, "best", "one", first)
    segment = store.journal(first, 0)
    segment.append(b"frame")
    epochs = [1]
    for at in range(10):
        victim = kind.open(lease=600)
        victim.probe()
        with killed(victim, at, after=after), suppress(Killed):
            victim.acquire("s", take_over=True)

        lease = store.acquire("s", take_over=True)

        assert lease.epoch > epochs[-1]
        epochs.append(lease.epoch)
        put(store, "best", str(at), lease)
        assert read(store, "best")[0] == str(at)
        with pytest.raises(Fenced):
            segment.append(b"late")
        segment = store.journal(lease, at + 1)
        segment.append(b"frame")
        with pytest.raises(Fenced):
            put(store, "best", "late", first)
        first = lease

    assert [raw for _, _, raw in store.segments("s")] == [b"frame"] * 11
    first.release()


# --- statements that wait ----------------------------------------------------------------


@only("postgres")
def test_a_commit_whose_sender_is_killed_is_over_before_the_next_owner_begins(
    store: CheckpointStore, kind: InPostgres
) -> None:
    """The server does not know of the kill: the statement goes on, and a claim has to wait for it."""
    put(store, own_name(9), "former")
    found: list[Any] = []

    def waiting(count: int) -> None:
        asked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        until(lambda: kind.ask(asked) == [(count,)])

    def follow() -> None:
        lease = store.acquire("s")
        found.extend([lease.epoch, names(store)])
        lease.release()

    with psycopg.connect(kind.where) as other, owner_elsewhere(kind, lease=600) as process:
        other.execute("select from graflow_ckpt.things where key like 'data/s/%/m.%' for update")
        assert process.stdin is not None
        process.stdin.write(f"{own_name(9)}\n")  # it drops the former one, and waits for that row
        process.stdin.flush()
        waiting(1)
        process.kill()
        process.wait()
        thread = threading.Thread(target=follow)
        thread.start()
        waiting(2)
        other.rollback()
    thread.join()

    assert found == [2, [own_name(9)]]
    assert read(store, own_name(9)) == ("theirs", b"theirs", b"theirs")


def test_a_damaged_head_is_said_to_be_one_and_hides_no_other_session(
    store: CheckpointStore, kind: Kind
) -> None:
    put(store, own_name(session="t"), "one", session="t")
    for damage in (b"{", b"[]", b"\xff", b'{"epoch": 1e999}', b"[" * 100_000):
        kind.driver.batch([Put(head_key("s"), damage, fresh=False)])

        for call in (
            lambda: store.owner("s"),
            lambda: store.acquire("s"),
            lambda: put(store, own_name(), "x"),
        ):
            with pytest.raises(CheckpointCorrupt, match="who owns session 's' is damaged"):
                call()
        assert names(store) == [own_name(session="t")]
