"""The contract of a journal: frames in segments, in order, by the session's owner only."""

from __future__ import annotations

import random

import pytest

from graflow_ckpt.core.errors import Fenced, JournalFailed
from graflow_ckpt.core.protocols import CheckpointStore, Lease
from graflow_ckpt.testing.contract import Contract, Opener
from graflow_ckpt.testing.trios import listed, owning, put_own


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
                with pytest.raises(JournalFailed):
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
