"""The contracts of a journal, and of threads.

Frames come in segments, in order, by the session's owner only. Whatever threads do at once, the result is
that of some order.
"""

from __future__ import annotations

import random
import threading
from functools import partial

import pytest

from graflow_ckpt.core.errors import CheckpointNotFound, Fenced, JournalFailed, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Lease
from graflow_ckpt.testing.drivers import at_once
from tests.conformance.contracts.contract import Contract, Opener
from tests.trios import listed, meta_of, named, own_name, owning, path_of, put, put_own, read


class JournalContract(Contract):
    """A frame is there when `append` returns, and until its segment is dropped.

    A frame does not begin with a zero byte, and zeros may follow the last one of a segment.
    """

    def test_frames_come_back_in_their_order(self, opener: Opener) -> None:
        store = opener()
        frames = [b"frame %d;" % number for number in range(50)]
        with owning(store) as lease:
            journal = store.journal(lease, 3)
            for frame in frames:
                journal.append(frame)
            journal.close()

            assert segments(opener()) == [(lease.epoch, 3, b"".join(frames))]

    def test_a_frame_is_there_when_append_returns(self, opener: Opener) -> None:
        store, other = opener(), opener()
        with owning(store) as lease:
            journal = store.journal(lease, 0)
            for number in range(1, 4):
                journal.append(b"frame;")

                assert segments(other) == [(lease.epoch, 0, b"frame;" * number)]
            journal.close()

    def test_frames_of_any_bytes_and_size_come_back(self, opener: Opener) -> None:
        store, rng = opener(), random.Random(5)
        frames = [b"\x01" + rng.randbytes(size) + b"\xff" for size in (0, 1, 100_000, 5, 1_500_000, 0)]
        frames += [b"\x01\0\0\0\xff", b"\x01\n\r\xff\xfe\xff", "é日".encode() + b"\xff"]
        with owning(store) as lease:
            journal = store.journal(lease, 0)
            for frame in frames:
                journal.append(frame)
            journal.close()

        found = segments(store)[0][2]
        assert len(found) == sum(map(len, frames))
        assert found == b"".join(frames)

    def test_segments_come_by_epoch_and_then_by_what_they_follow(self, opener: Opener) -> None:
        store, expected = opener(), []
        for _ in range(2):
            with owning(store) as lease:
                for after in (0, 9, 10, 100):
                    append(store, lease, after, b"after %d" % after)
                    expected.append((lease.epoch, after, b"after %d" % after))

        assert segments(opener()) == expected

    def test_a_segment_without_frames_may_be_begun_again(self, opener: Opener) -> None:
        store = opener()
        with owning(store) as lease:
            store.journal(lease, 4).close()
            journal = store.journal(lease, 4)
            journal.append(b"frame")
            journal.close()

            assert segments(store) == [(lease.epoch, 4, b"frame")]

    def test_a_segment_with_frames_is_not_begun_again(self, opener: Opener) -> None:
        store = opener()
        with owning(store) as lease:
            append(store, lease, 4, b"frame")

            for handle in (store, opener()):
                with pytest.raises(JournalFailed, match="has records already"):
                    handle.journal(lease, 4)

            assert segments(store) == [(lease.epoch, 4, b"frame")]

    def test_a_closed_segment_takes_nothing(self, opener: Opener) -> None:
        store = opener()
        with owning(store) as lease:
            journal = store.journal(lease, 0)
            journal.append(b"frame;")
            journal.close()
            journal.close()

            with pytest.raises(JournalFailed):
                journal.append(b"late;")

            assert segments(store) == [(lease.epoch, 0, b"frame;")]

    def test_what_a_cut_covers_is_dropped_and_nothing_else(self, opener: Opener) -> None:
        store = opener()
        with owning(store) as lease:
            for after in (0, 5, 10):
                append(store, lease, after, b"after %d" % after)

        def kept(before: int) -> list[int]:
            store.drop_segments("s", before)
            return [after for _, after, _ in segments(opener())]

        assert kept(0) == [0, 5, 10]
        assert kept(4) == [0, 5, 10]  # the first one has what follows 4
        assert kept(5) == [5, 10]
        assert kept(9) == [5, 10]
        assert kept(10) == [10]
        assert kept(1000) == [10]  # nobody knows where the last one ends

    def test_dropping_leaves_other_sessions_alone(self, opener: Opener) -> None:
        store, sessions = opener(), ["a_b", "axb", "a-b", "a", "A_b", "a_b_"]
        for session in sessions:
            with owning(store, session) as lease:
                for after in (0, 5):
                    append(store, lease, after, f"{session} {after}".encode())

        store.drop_segments("a_b", 5)

        for session in sessions:
            expected = [5] if session == "a_b" else [0, 5]
            found = segments(store, session)
            assert [after for _, after, _ in found] == expected
            assert [raw for _, _, raw in found] == [f"{session} {after}".encode() for after in expected]

    def test_an_open_segment_goes_on_when_older_ones_are_dropped(self, opener: Opener) -> None:
        store = opener()
        with owning(store) as lease:
            append(store, lease, 0, b"old;")
            journal = store.journal(lease, 5)
            journal.append(b"one;")
            opener().drop_segments("s", 5)
            journal.append(b"two;")
            journal.close()

            assert segments(store) == [(lease.epoch, 5, b"one;two;")]

    def test_a_journal_is_no_checkpoint_and_a_checkpoint_no_journal(self, opener: Opener) -> None:
        store = opener()
        with owning(store) as lease:
            append(store, lease, 0, b"frame;")
            assert listed(store) == []
            path = put_own(store, lease, 1)
            store.delete(path)

            assert segments(store) == [(lease.epoch, 0, b"frame;")]

    def test_who_has_released_appends_nothing(self, opener: Opener) -> None:
        store = opener()
        lease = store.acquire("s")
        journal = store.journal(lease, 0)
        journal.append(b"frame;")
        lease.release()

        with pytest.raises(Fenced):
            journal.append(b"late;")
        with pytest.raises(Fenced):
            store.journal(lease, 1)

        assert segments(store) == [(lease.epoch, 0, b"frame;")]


def segments(store: CheckpointStore, session: str = "s") -> list[tuple[int, int, bytes]]:
    """Those with frames, without the zeros that may follow the last one."""
    found = [(epoch, after, bytes(raw).rstrip(b"\0")) for epoch, after, raw in store.segments(session)]
    return [segment for segment in found if segment[2]]


def append(store: CheckpointStore, lease: Lease, after: int, frame: bytes) -> None:
    journal = store.journal(lease, after)
    journal.append(frame)
    journal.close()


# --- threads -------------------------------------------------------------------------------


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


def _read_if_there(opener: Opener, path: str) -> str | None:
    try:
        return read(opener(), path).stage
    except CheckpointNotFound:
        return None
