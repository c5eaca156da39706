"""Leases of databases, servers and buckets: one owner, whose epoch grows, and who lost it writes nothing.

Not here: what one kind of store alone promises or can be brought to (test_postgres_lease.py and so on).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.core.errors import BadSessionId, CheckpointError, Fenced, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.links.processes import myself
from graflow_ckpt.stores.local import LocalStore
from tests.unit.stores.kinds import REDIS, Kind, only
from tests.unit.stores.leases import owner_elsewhere, told
from tests.unit.stores.redis_trios import own_name, parts, put, read

SERVERS = only("postgres", *REDIS)
NAMES = pytest.mark.parametrize("name", [own_name(), "best"], ids=["own", "named"])


# --- one owner, whose epoch grows --------------------------------------------------------


def test_a_first_owner_has_epoch_one_and_took_it_from_nobody(store: CheckpointStore) -> None:
    lease = store.acquire("s")

    assert (lease.session, lease.epoch, lease.taken_from) == ("s", 1, None)
    found = store.owner("s")
    assert found is not None
    assert (found.pid, found.started) == (os.getpid(), myself().started)
    lease.release()
    assert store.owner("s") is None


def test_the_epoch_grows_and_a_clean_release_leaves_nobody_to_take_from(store: CheckpointStore) -> None:
    for epoch in (1, 2, 3):
        lease = store.acquire("s")
        assert (lease.epoch, lease.taken_from) == (epoch, None)
        lease.release()


def test_this_process_cannot_open_a_session_twice(kind: Kind) -> None:
    lease = kind.open().acquire("s")

    with pytest.raises(SessionBusy, match="this process itself") as busy:
        kind.open().acquire("s")

    assert busy.value.owner.pid == os.getpid()
    lease.release()


def test_sessions_do_not_know_each_other(store: CheckpointStore) -> None:
    leases = [store.acquire(session) for session in ("s", "s-1", "s_1", "1", "S")]

    assert [lease.epoch for lease in leases] == [1, 1, 1, 1, 1]
    for lease in leases:
        lease.release()


def test_of_many_who_acquire_at_once_one_gets_it(kind: Kind) -> None:
    got, start = [], threading.Barrier(8)

    def work() -> None:
        store = kind.open()
        store.probe()
        start.wait()
        try:
            got.append(store.acquire("s"))
        except SessionBusy:
            got.append(None)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    owners = [lease for lease in got if lease is not None]
    assert (len(got), len(owners)) == (8, 1)
    owners[0].release()


@pytest.mark.parametrize("session", ["", "a/b", "a.b", "..", "x" * 65, "a b", "@"])
def test_a_bad_id_is_refused_everywhere(session: str, store: CheckpointStore) -> None:
    drop = lambda s: store.drop_segments(s, 1)  # noqa: E731  one of four calls
    for call in (store.acquire, store.owner, lambda s: list(store.segments(s)), drop):
        with pytest.raises(BadSessionId):
            call(session)


def test_a_program_that_runs_once_per_rank_is_told_so(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    lease = store.acquire("train")

    with pytest.raises(SessionBusy, match='"train-rank3"'):
        store.acquire("train")

    lease.release()


@only("sqlite", "postgres", *REDIS)  # a bucket's head has the epochs, whatever a meta says
def test_a_lost_lease_does_not_take_the_epoch_back(store: CheckpointStore) -> None:
    put(store, own_name(), "one", epoch=7)

    lease = store.acquire("s")

    assert lease.epoch == 8
    lease.release()


def test_a_session_puts_no_checkpoint_under_the_name_of_another_ones(store: CheckpointStore) -> None:
    lease = store.acquire("s")

    with pytest.raises(CheckpointError, match="name of a checkpoint of session 't'"):
        put(store, own_name(session="t"), "one", lease)

    path = put(store, own_name(session="t"), "one")  # a worker of that session, which is kept elsewhere
    assert [found for found, _ in store.list("t")] == [path.removesuffix(".pkl") + ".pkl"]
    lease.release()


def test_a_lease_of_something_else_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    lease = LocalStore(tmp_path).acquire("s")

    with pytest.raises(TypeError, match="lease of this store"):
        put(store, "best", "one", lease)

    lease.release()


def test_asking_for_an_owner_writes_nothing(store: CheckpointStore, kind: Kind) -> None:
    assert store.owner("s") is None
    assert kind.is_empty()


# --- who has lost it ---------------------------------------------------------------------


def test_a_take_over_fences_the_old_owner_for_good(store: CheckpointStore) -> None:
    old = store.acquire("s")
    segment = store.journal(old, 0)

    new = store.acquire("s", take_over=True)

    calls = (old.check, lambda: store.journal(old, 1))
    for call in (*calls, lambda: segment.append(b"x"), *calls):
        with pytest.raises(Fenced, match="taken over by process"):
            call()
    assert new.epoch == 2
    assert new.taken_from is not None
    assert new.taken_from.pid == os.getpid()
    old.release()  # says nothing and undoes nothing
    new.check()
    assert store.owner("s") is not None
    assert list(store.segments("s")) == [(1, 0, b"")]
    new.release()


def test_a_released_lease_is_of_no_use(store: CheckpointStore) -> None:
    lease = store.acquire("s")
    segment = store.journal(lease, 0)
    lease.release()
    lease.release()

    puts = [lambda: put(store, own_name(), "one", lease), lambda: put(store, "best", "one", lease)]
    for call in (lease.check, *puts, lambda: segment.append(b"x"), lambda: store.journal(lease, 1)):
        with pytest.raises(Fenced, match="released"):
            call()


@pytest.mark.parametrize("name", [own_name(), "best", "never"], ids=["own", "replaced", "named"])
@pytest.mark.parametrize("size", [1, 1 << 17, 0], ids=["small", "large", "chunks"])
def test_who_was_fenced_puts_nothing(name: str, size: int, store: CheckpointStore, kind: Kind) -> None:
    size = size or 2 * kind.chunk
    old = store.acquire("s")
    path = put(store, "best", "former", old, size=size // 4)
    before, new = kind.pieces(), store.acquire("s", take_over=True)

    with pytest.raises(Fenced, match="taken over"):
        put(store, name, "one", old, size=size)

    assert [found for found, _ in store.list()] == [path]
    assert read(store, path)[0] == "former"
    assert (kind.pieces(), kind.begun()) == (before, 0)
    new.release()


@NAMES
@pytest.mark.parametrize("chunks", [0, 3])
def test_who_is_fenced_while_it_writes_puts_nothing(
    name: str, chunks: int, store: CheckpointStore, kind: Kind
) -> None:
    old = store.acquire("s")
    values, *rest = parts("one", size=10 + chunks * kind.chunk)
    taken = []

    def late(sink: Any) -> None:
        values[1](sink)
        taken.append(store.acquire("s", take_over=True))

    with pytest.raises(Fenced):
        store.put(f"{store.folder}/{name}", [("pkl", late), *rest], lease=old, stage="one")

    assert list(store.list()) == []
    assert (kind.pieces(), kind.begun()) == ([], 0)
    taken[0].release()


@only("postgres", "objects", *REDIS)
def test_a_server_that_has_forgotten_the_session_fences_its_owner(store: CheckpointStore, kind: Kind) -> None:
    lease = store.acquire("s")
    kind.forget()

    with pytest.raises(Fenced, match="forgotten"):
        lease.check()
    for name in (own_name(), "best"):
        with pytest.raises(Fenced, match="forgotten"):
            put(store, name, "one", lease)

    lease.release()


@only("sqlite", "postgres", *REDIS)
def test_a_forked_child_does_not_own_what_its_parent_does(kind: Kind) -> None:
    printed = kind.run("""
lease = store.acquire("s")
segment = store.journal(lease, 0)
if os.fork() == 0:
    for call in (lease.check, lambda: put(store, own_name(), "child", lease), lambda: segment.append(b"x")):
        try:
            call()
            print("let in", flush=True)
        except Fenced as error:
            print("forked" in str(error), flush=True)
    put(store, "childs", "child")  # without a lease, over a connection of its own
    lease.release()
    os._exit(0)
assert os.wait()[1] == 0
lease.check()
segment.append(b"parents")
put(store, own_name(), "parent", lease)
print(store.owner("s").pid == os.getpid(), read(store, f"{store.folder}/childs")[0])
print(list(store.segments("s")), flush=True)
""")

    assert printed.splitlines() == [*["True"] * 3, "True child", "[(1, 0, b'parents')]"]


# --- dead, silent and stopped owners -----------------------------------------------------


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


@only("postgres", "objects", *REDIS)
def test_a_silent_owner_of_another_machine_is_waited_for_until_its_lease_ends(
    store: CheckpointStore, kind: Kind
) -> None:
    owner = kind.owned(kind.silence[0], **kind.far)
    began = time.monotonic()

    lease = store.acquire("s")

    assert kind.silence[1] <= time.monotonic() - began < 20
    assert (lease.epoch, lease.taken_from) == (5, owner)
    lease.release()


def test_an_owner_of_another_machine_that_renews_its_lease_is_alive(
    store: CheckpointStore, kind: Kind
) -> None:
    owner = kind.owned(600, **kind.far)
    over = threading.Event()

    def renew() -> None:
        while not over.wait(0.01):
            kind.renew()

    keeper = threading.Thread(target=renew)
    keeper.start()
    try:
        with pytest.raises(SessionBusy, match="on far"):
            store.acquire("s")
        assert store.owner("s") == owner
    finally:
        over.set()
        keeper.join()


@only("sqlite", "postgres", *REDIS)
def test_a_lease_is_renewed_for_as_long_as_its_owner_lives(kind: Kind) -> None:
    store = kind.open(lease=0.3)
    lease = store.acquire("s")
    began = time.monotonic()
    first, deadline = kind.left(), began + 20

    while kind.left() + time.monotonic() - began < first + 0.6:  # twice its length
        assert time.monotonic() < deadline, "nobody renews the lease"
        time.sleep(0.01)

    assert store.owner("s") is not None
    lease.release()


@SERVERS
def test_a_renewal_that_fails_is_tried_again(kind: Kind) -> None:
    with kind.proxy() as (proxy, behind):
        lease = kind.open(behind, lease=0.3).acquire("s")
        proxy.refuse()
        deadline = time.monotonic() + 20
        while kind.left() > 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)

        proxy.resume()

        while kind.left() < 0:
            assert time.monotonic() < deadline, "the keeper has given up"
            time.sleep(0.01)
        lease.check()  # nobody has taken it meanwhile
        lease.release()


@pytest.mark.parametrize(
    ("kind", "clock_step"),
    [*((kind, 0) for kind in ("sqlite", "postgres", *REDIS)), ("postgres", 3600), ("postgres", -3600)],
    indirect=["kind"],
)
def test_a_stopped_owner_loses_the_session_and_writes_nothing_when_it_wakes_whatever_the_clock_says(
    store: CheckpointStore, kind: Kind, clock_step: int
) -> None:
    with owner_elsewhere(kind, lease=0.5) as process:
        assert told(process, own_name(1)).strip().endswith(own_name(1))
        assert told(process, "append") == "appended\n"
        os.kill(process.pid, signal.SIGSTOP)
        kind.step(clock_step)
        deadline = time.monotonic() + 20
        while clock_step >= 0 and store.owner("s") is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        lease = store.acquire("s", take_over=clock_step < 0)  # it is near, and its process is there

        os.kill(process.pid, signal.SIGCONT)

        for order in (own_name(2), "best", "append"):
            assert told(process, order).startswith("Fenced Session 's' was taken over by process")
        assert told(process, "append").startswith(("Fenced", "JournalFailed"))
        lease.check()
        assert [path.rpartition("/")[2] for path, _ in store.list()] == [own_name(1)]
        assert list(store.segments("s")) == [(1, 0, b"theirs")]
        lease.release()


@SERVERS
def test_a_claim_whose_reply_is_lost_is_the_same_claim_when_it_is_asked_for_again(kind: Kind) -> None:
    with kind.proxy() as (proxy, behind):
        store = kind.open(behind)
        store.acquire("s").release()
        proxy.drop_next_reply(b'"argv"')

        lease = store.acquire("s")

        assert proxy.dropped()
        assert lease.epoch == 2
        lease.check()
        lease.release()


@only("sqlite", *REDIS)
def test_a_lease_that_ends_in_years_is_not_waited_for(kind: Kind) -> None:
    kind.owned(10**9, boot="before", host="far")  # by a clock that was wrong, or by somebody's hand

    with pytest.raises(SessionBusy, match="on far"):
        kind.open(lease=0.05).acquire("s")

    kind.open().acquire("s", take_over=True).release()
