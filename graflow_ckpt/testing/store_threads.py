"""The contract of threads: whatever they do at once, the result is that of some order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from graflow_ckpt.core.errors import CheckpointNotFound, SessionBusy
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.testing.contract import Contract, Opener
from graflow_ckpt.testing.store_journal import segments
from graflow_ckpt.testing.trios import listed, meta_of, named, own_name, owning, path_of, put, put_own, read

T = TypeVar("T")

SIZE = 150_000


class ThreadContract(Contract):
    """Nothing is lost, nothing is mixed, one owner at a time."""

    def test_nothing_is_lost_when_many_put_under_one_lease(self, opener: Opener) -> None:
        store = opener()
        with owning(store) as lease:

            def put_some(worker: int) -> None:
                for number in range(4):
                    put_own(store, lease, worker * 4 + number + 1)

            at_once([partial(put_some, worker) for worker in range(6)])

        expected = {named(own_name(sequence=sequence)) for sequence in range(1, 25)}
        found = listed(opener(), "s")
        assert len(found) == len(expected)
        assert set(found) == expected
        for sequence in range(1, 25):
            assert read(store, path_of(store, own_name(sequence=sequence))).stage == f"n{sequence}"

    def test_of_many_who_put_under_one_name_one_wins_as_a_whole(self, opener: Opener) -> None:
        shared = opener()

        def put_some(worker: int) -> None:
            store = shared if worker % 2 else opener()
            for number in range(4):
                put(store, "best", f"w{worker}-{number}", size=SIZE + worker)

        at_once([partial(put_some, worker) for worker in range(5)])

        found = read(opener(), path_of(shared, "best"))
        assert found.stage in {f"w{worker}-3" for worker in range(5)}
        assert listed(shared) == ["best"]

    def test_a_reader_finds_one_trio_or_another_and_never_a_mix(self, opener: Opener) -> None:
        store, other = opener(), opener()
        path, done, stages = put(store, "best", "n0", size=SIZE), threading.Event(), ["n0"]

        def write() -> None:
            try:
                for number in range(1, 25):
                    put(store, "best", f"n{number}", size=SIZE + number)
            finally:
                done.set()

        def look() -> None:
            while not done.is_set():
                stages.append(read(other, path).stage)  # raises Torn

        at_once([write, look])

        seen = [int(stage[1:]) for stage in stages]
        assert seen == sorted(seen)
        assert read(other, path).stage == "n24"

    def test_what_is_put_and_deleted_at_once_is_whole_or_gone(self, opener: Opener) -> None:
        store, other = opener(), opener()
        path, done = path_of(store, "best"), threading.Event()

        def write() -> None:
            try:
                for number in range(25):
                    put(store, "best", f"n{number}", size=SIZE)
            finally:
                done.set()

        def remove() -> None:
            while not done.is_set():
                other.delete(path)

        def remove_once() -> None:
            try:
                other.delete(path)
            finally:
                done.set()

        def look() -> None:
            while not done.is_set():
                found = _read_if_there(opener, path)
                assert found is None or found.startswith("n")

        at_once([write, remove, look])

        for _ in range(5):  # nobody writes, so what is torn stays so for a moment
            done.clear()
            put(store, "best", "n")
            at_once([remove_once, look])

        put(store, "best", "last")
        assert read(other, path).stage == "last"
        assert other.delete(path) is True
        assert listed(store) == []

    def test_of_many_who_acquire_at_once_one_is_the_owner(self, opener: Opener) -> None:
        def acquire() -> Lease | None:
            try:
                return opener().acquire("s")
            except SessionBusy:
                return None

        leases = [lease for lease in at_once([acquire] * 6) if lease]

        assert len(leases) == 1
        leases[0].check()
        leases[0].release()
        assert opener().owner("s") is None

    def test_frames_of_many_threads_stay_whole(self, opener: Opener) -> None:
        store = opener()
        with owning(store) as lease:
            journal = store.journal(lease, 0)

            def append(worker: int) -> None:
                for number in range(12):
                    journal.append(f"{worker}.{number:02}".encode() * 500 + b";")

            at_once([partial(append, worker) for worker in range(4)])
            journal.close()

        frames = segments(store)[0][2].split(b";")[:-1]
        assert len(frames) == 48
        for worker in range(4):
            of_worker = [frame for frame in frames if frame.startswith(b"%d." % worker)]
            assert of_worker == [f"{worker}.{number:02}".encode() * 500 for number in range(12)]

    def test_a_listing_is_whole_while_others_write(self, opener: Opener) -> None:
        store, other, done = opener(), opener(), threading.Event()
        lasting = {f"n{number}" for number in range(10)}
        for name in lasting:
            put(store, name, "one")

        def write() -> None:
            try:
                for number in range(30):
                    put(store, "passing", f"n{number}")
                    store.delete(path_of(store, "passing"))
                    put(store, "n5", f"n{number}")
            finally:
                done.set()

        def look() -> None:
            while not done.is_set():
                found = [(named(path), raw) for path, raw in other.list()]
                names = [name for name, _ in found]
                assert len(names) == len(set(names))
                assert lasting <= set(names) <= {*lasting, "passing"}
                assert meta_of("one") in [raw for name, raw in found if name == "n0"]

        at_once([write, look])


def at_once(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run them in threads that start together; their results, or the first error of any."""
    barrier = threading.Barrier(len(jobs))

    def run(job: Callable[[], T]) -> T:
        barrier.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as threads:
        return [future.result() for future in [threads.submit(run, job) for job in jobs]]


def _read_if_there(opener: Opener, path: str) -> str | None:
    try:
        return read(opener(), path).stage
    except CheckpointNotFound:
        return None
