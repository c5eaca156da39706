"""The contracts of a journal, and of threads.

Frames come in segments, in order, by the session's owner only. Whatever threads do at once, the result is
that of some order.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from functools import partial

import pytest

from graflow_ckpt.core.errors import CheckpointNotFound, JournalFailed, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Lease
from graflow_ckpt.testing.drivers import at_once
from tests.conformance.companion import Companion
from tests.conformance.contracts.trio import Contract, Opener
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


# --- the contract of processes ----------------------------------------------------------


class ProcessContract(Contract):
    """Kills, stops, races and forks."""

    def test_processes_see_what_others_have_written(self, opener: Opener) -> None:
        store = opener()
        path = put(store, "best", "mine", size=70_000)

        with Companion(opener, "read_one", path) as other:
            assert other.hear() == ["mine", 70_000]
            assert other.wait() == 0

        assert listed(store, "child") == [named(own_name("child"))]
        assert read(store, path_of(store, own_name("child"))).stage == "child"
        assert [raw for _, _, raw in segments(store, "child")] == [b"of the child;"]
        assert store.owner("child") is None

    def test_what_was_confirmed_survives_a_kill(self, opener: Opener) -> None:
        with Companion(opener, "put_and_die") as other:
            epoch = other.hear()
            other.wait()

        store = opener()
        assert read(store, path_of(store, own_name())).stage == "n1"
        assert read(store, path_of(store, "best")).stage == "best"
        assert sorted(listed(store)) == ["best", named(own_name())]
        assert segments(store) == [(epoch, 1, b"frame;")]

    def test_the_session_of_a_killed_process_becomes_free(self, opener: Opener) -> None:
        with Companion(opener, "put_and_die") as other:
            epoch, pid = other.hear(), other.pid
            other.wait()

            store = opener()
            lease = self.acquired(store)

        assert lease.epoch > epoch
        assert lease.taken_from is not None
        assert lease.taken_from.pid == pid
        put_own(store, lease, 2)
        store.journal(lease, 2).append(b"newer;")
        assert [raw for _, _, raw in segments(store)] == [b"frame;", b"newer;"]
        lease.release()
        assert store.owner("s") is None

    @pytest.mark.parametrize("part", ["pkl", "meta.json"])
    def test_a_writer_that_is_killed_leaves_the_former_trios(self, opener: Opener, part: str) -> None:
        store = opener()
        paths = [put(store, name, "former") for name in ("best", own_name())]

        with Companion(opener, "die_in_a_put", part) as other:
            other.hear()
            other.wait()

        for path in paths:
            assert read(store, path).stage == "former"
        lease = self.acquired(store)
        put_own(store, lease, 1, "newer")
        put(store, "best", "newer")
        lease.release()
        for path in paths:
            assert read(opener(), path).stage == "newer"
        assert len(listed(store)) == 2

    @pytest.mark.parametrize("moment", [0.02, 0.09, 0.2])
    def test_killed_at_any_time_everything_is_whole(self, opener: Opener, moment: float) -> None:
        store = opener()
        with Companion(opener, "write_until_killed", "k") as other:
            said = [other.hear()]
            time.sleep(moment)
            other.kill()
            said += other.rest()

        last = {what: max(turn for of, turn in said if of == what) for what, _ in said}
        best = read(store, path_of(store, "best")).stage
        assert best in {f"n{last['best']}", f"n{last['best'] + 1}"}
        turn = last.get("own", 0)
        for sequence in range(1, turn + 1):
            cut_off = turn % 3 == 0 and sequence == turn - 1  # it may have been deleting that one
            _check_own(store, sequence, ["deleted", sequence] in said, cut_off)
        frames = b"".join(raw for _, _, raw in segments(store, "k"))
        count = len(frames) // 7
        assert count in (last.get("frame", 0), last.get("frame", 0) + 1)
        assert frames == b"".join(b"%06d;" % turn for turn in range(1, count + 1))
        lease = self.acquired(store, "k")
        put_own(store, lease, 1, "newer")
        lease.release()
        assert read(store, path_of(store, own_name("k", 1))).stage == "newer"

    def test_the_owner_in_another_process_is_named(self, opener: Opener) -> None:
        store = opener()
        with Companion(opener, "own") as other:
            other.hear()

            owner = store.owner("s")
            assert owner is not None
            assert owner.pid == other.pid
            with pytest.raises(SessionBusy) as busy:
                store.acquire("s")
            assert busy.value.ids["owner"].pid == other.pid
            assert str(other.pid) in str(busy.value)

            other.say()
            assert set(other.hear()) == {"done"}
            assert other.wait() == 0
        assert store.owner("s") is None

    def test_of_many_processes_one_is_the_owner(self, opener: Opener) -> None:
        with ExitStack() as stack:
            others = [stack.enter_context(Companion(opener, "compete")) for _ in range(3)]
            for other in others:
                assert other.hear() == "ready"
            for other in others:
                other.say()

            said = [other.hear() for other in others]

            owners = [pid for what, pid in said if what == "owner"]
            assert len(owners) == 1
            assert {pid for what, pid in said if what == "busy"} <= {owners[0], 0}
            for other in others:
                other.say()
            assert [other.wait() for other in others] == [0, 0, 0]
        assert opener().owner("s") is None

    def test_processes_that_write_at_once_lose_nothing(self, opener: Opener) -> None:
        sessions = ["a", "b", "c"]
        with ExitStack() as stack:
            others = [stack.enter_context(Companion(opener, "put_many", name, 8)) for name in sessions]
            for other in others:
                assert other.hear() == "ready"
            for other in others:
                other.say()
            for other in others:
                assert other.hear() == "done"
                assert other.wait() == 0

        store = opener()
        for session in sessions:
            expected = [named(own_name(session, sequence)) for sequence in range(8, 0, -1)]
            assert listed(store, session) == expected
            assert len(read(store, path_of(store, own_name(session, 5))).values) == 3_000_000
            assert segments(store, session) == [(1, 0, b"1;2;3;4;5;6;7;8;")]
        assert read(store, path_of(store, "best")).stage in {f"{session}-8" for session in sessions}

    def test_who_is_killed_while_it_deletes_a_list_leaves_its_end(self, opener: Opener) -> None:
        store = opener()
        paths = [put(store, own_name(sequence=sequence), f"n{sequence}") for sequence in range(1, 61)]

        with Companion(opener, "delete_many", paths) as other:
            assert other.hear() == "ready"
            end = time.monotonic() + self.patience
            while len(listed(store)) == len(paths):
                assert time.monotonic() < end, "nothing was deleted"
            other.kill()
            other.wait()

        left = listed(store)
        assert left == [named(own_name(sequence=sequence)) for sequence in range(60, 60 - len(left), -1)]
        for sequence in range(60, 60 - len(left), -1):
            assert read(store, path_of(store, own_name(sequence=sequence))).stage == f"n{sequence}"
        assert store.delete_many(paths) == len(left)

    def test_a_forked_child_owns_nothing(self, opener: Opener) -> None:
        store = opener()
        with Companion(opener, "fork") as other:
            assert other.hear() == 0, "the forked child could write, or met another error"
            assert other.wait() == 0

        assert listed(store) == [named(own_name(sequence=2))]
        assert [raw for _, _, raw in segments(store)] == [b"frame;frame;"]
        assert store.owner("s") is None


def _check_own(store: CheckpointStore, sequence: int, deleted: bool, may_be_gone: bool) -> None:
    path = path_of(store, own_name("k", sequence))
    try:
        assert read(store, path).stage == f"n{sequence}"
        assert not deleted, f"{path} was deleted, and is there"
    except CheckpointNotFound:
        assert deleted or may_be_gone, f"{path} was confirmed, and is lost"
