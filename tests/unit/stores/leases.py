"""Leases of servers and databases: what the tests of each store share.

A test file has a class of `OneOwner`, and fixtures `store` and `another`, which opens the same place again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import BadSessionId, CheckpointError, Fenced, JournalFailed, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Lease
from graflow_ckpt.stores.local import LocalStore
from tests.unit.stores.redis_trios import own_name, put

ROOT = Path(__file__).parents[3]
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")

Another = Callable[[], CheckpointStore]


def without_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)


@contextmanager
def owner_elsewhere(kind: type, where: str, lease: float) -> Iterator[subprocess.Popen[str]]:
    """A process that acquires the session, says so, and for each line puts a checkpoint of that name.

    At the line `append` it appends to a segment, which it opened at once where the store is no Redis.
    """
    program = f"""
import sys
from graflow_ckpt.core.errors import GraflowError
from {kind.__module__} import {kind.__name__} as Store
from tests.unit.stores.redis_trios import put
store = Store({where!r}, lease={lease})
lease = store.acquire("s")
segment = None if Store.__name__ == "RedisStore" else store.journal(lease, 0)
print(lease.epoch, flush=True)
for line in sys.stdin:
    try:
        if line.strip() == "append":
            segment.append(b"theirs")
            print("appended", flush=True)
        else:
            print(put(store, line.strip(), "theirs", lease), flush=True)
    except GraflowError as error:
        print(type(error).__name__, error, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline()


class OneOwner:
    """A session has one owner, whose epoch grows."""

    def test_a_first_owner_has_epoch_one_and_took_it_from_nobody(self, store: CheckpointStore) -> None:
        lease = store.acquire("s")

        assert (lease.session, lease.epoch, lease.taken_from) == ("s", 1, None)
        found = store.owner("s")
        assert found is not None
        assert found.pid == os.getpid()
        lease.release()
        assert store.owner("s") is None

    def test_the_epoch_grows_and_a_clean_release_leaves_nobody_to_take_from(
        self, store: CheckpointStore
    ) -> None:
        for epoch in (1, 2, 3):
            lease = store.acquire("s")
            assert (lease.epoch, lease.taken_from) == (epoch, None)
            lease.release()

    def test_this_process_cannot_open_a_session_twice(self, store: CheckpointStore, another: Another) -> None:
        lease = store.acquire("s")

        with pytest.raises(SessionBusy, match="this process itself") as busy:
            another().acquire("s")

        assert busy.value.owner.pid == os.getpid()
        lease.release()

    def test_sessions_do_not_know_each_other(self, store: CheckpointStore) -> None:
        leases = [store.acquire(session) for session in ("s", "s-1", "s_1", "1", "S")]

        assert [lease.epoch for lease in leases] == [1, 1, 1, 1, 1]
        for lease in leases:
            lease.release()

    def test_of_many_who_acquire_at_once_one_gets_it(self, another: Another) -> None:
        got, start = [], threading.Barrier(8)

        def work() -> None:
            store = another()
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
    def test_a_bad_id_is_refused_everywhere(self, session: str, store: CheckpointStore) -> None:
        drop = lambda s: store.drop_segments(s, 1)  # noqa: E731  one of four calls
        for call in (store.acquire, store.owner, lambda s: list(store.segments(s)), drop):
            with pytest.raises(BadSessionId):
                call(session)

    def test_a_program_that_runs_once_per_rank_is_told_so(
        self, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "3")
        lease = store.acquire("train")

        with pytest.raises(SessionBusy, match='"train-rank3"'):
            store.acquire("train")

        lease.release()

    def test_a_lost_lease_does_not_take_the_epoch_back(self, store: CheckpointStore) -> None:
        put(store, own_name(), "one", epoch=7)

        lease = store.acquire("s")

        assert lease.epoch == 8
        lease.release()

    def test_a_session_puts_no_checkpoint_under_the_name_of_another_ones(
        self, store: CheckpointStore
    ) -> None:
        lease = store.acquire("s")

        with pytest.raises(CheckpointError, match="name of a checkpoint of session 't'"):
            put(store, own_name(session="t"), "one", lease)

        put(store, own_name(session="t"), "one")  # a worker of that session, which is kept elsewhere
        lease.release()

    def test_a_lease_of_something_else_is_refused(self, store: CheckpointStore, tmp_path: Path) -> None:
        lease = LocalStore(tmp_path).acquire("s")

        with pytest.raises(TypeError, match="lease of this store"):
            put(store, "best", "one", lease)

        lease.release()


class OwnedSegments:
    """A frame is there once, by the owner, or not at all."""

    def test_frames_are_read_in_order_segment_by_segment(self, store: CheckpointStore, lease: Lease) -> None:
        for after in (0, 10, 9):
            segment = store.journal(lease, after)
            for n in range(12):
                segment.append(f"{after}.{n} ".encode())
            segment.close()
        store.journal(lease, 11)

        assert list(store.segments("s")) == [
            *((1, after, b"".join(b"%d.%d " % (after, n) for n in range(12))) for after in (0, 9, 10)),
            (1, 11, b""),
        ]
        assert list(store.segments("other")) == []

    def test_a_segment_without_frames_may_be_opened_again_one_with_frames_not(
        self, store: CheckpointStore, lease: Lease
    ) -> None:
        store.journal(lease, 0)
        store.journal(lease, 0).append(b"one")

        with pytest.raises(JournalFailed, match="has records already"):
            store.journal(lease, 0)

    def test_who_was_fenced_appends_nothing(self, store: CheckpointStore, lease: Lease) -> None:
        segment = store.journal(lease, 0)
        segment.append(b"one")
        new = store.acquire("s", take_over=True)

        for call in (lambda: segment.append(b"two"), lambda: store.journal(lease, 5)):
            with pytest.raises(Fenced, match="taken over"):
                call()
        with pytest.raises(JournalFailed, match="closed"):
            segment.append(b"two")

        assert list(store.segments("s")) == [(1, 0, b"one")]
        new.release()
