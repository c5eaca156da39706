"""The contract of a storage that was put back: an epoch that is given out twice makes no two owners.

    acquire, release        snapshot        first = acquire, works        put back        second = acquire

A backup that is restored, and a replica that takes over without the last claim, have forgotten `first`, which
knows nothing of that. Its epoch is that of `second`, so a fence that goes by epochs alone lets both write.

Not here: what was confirmed and is gone with the older state; nobody can bring that back.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from graflow_ckpt.core.errors import Fenced, JournalFailed, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Lease, Owner, Sink
from graflow_ckpt.testing.contract import Contract, Opener
from graflow_ckpt.testing.store_journal import segments
from graflow_ckpt.testing.trios import (
    listed,
    meta_of,
    named,
    own_name,
    owning,
    parts_of,
    path_of,
    put,
    put_own,
    read,
    writer,
)

Snapshot = Callable[[], Callable[[], None]]
"""Takes a copy of all that the place of `opener` has; what it returns puts that back under open stores."""


class RestoredContract(Contract):
    """A class of tests gives `snapshot`, too."""

    epochs_come_again: bool = True
    """False for a store that remembers elsewhere which epochs it has given out."""

    @pytest.fixture
    def snapshot(self, opener: Opener) -> Snapshot:
        raise NotImplementedError("give the class a fixture `snapshot` that copies your storage")

    def test_what_came_after_the_copy_is_gone_and_its_epoch_comes_again(
        self, opener: Opener, snapshot: Snapshot
    ) -> None:
        store, other = opener(), opener()
        put_back, first = begun(store, snapshot)
        put_own(store, first, 2, "later")

        put_back()

        assert listed(other) == [named(own_name())]
        with owning(other, take_over=True) as second:
            assert second.epoch >= first.epoch
            assert (second.epoch == first.epoch) is self.epochs_come_again

    def test_who_was_forgotten_finds_out_and_is_told_who_the_owner_is(
        self, opener: Opener, snapshot: Snapshot
    ) -> None:
        store, other = opener(), opener()
        put_back, first = begun(store, snapshot)
        put_back()

        with owning(other, take_over=True) as second:
            with pytest.raises(Fenced) as fenced:
                first.check()
            second.check()

        owner: Owner | None = fenced.value.ids["owner"]
        assert owner is not None
        assert owner.pid == os.getpid()

    @pytest.mark.parametrize("name", [own_name(sequence=2), "best"], ids=["own", "named"])
    def test_who_was_forgotten_puts_nothing(self, opener: Opener, snapshot: Snapshot, name: str) -> None:
        store, other = opener(), opener()
        put_back, first = begun(store, snapshot)
        put_back()

        with owning(other, take_over=True) as second:
            with pytest.raises(Fenced):
                put(store, name, "late", lease=first, sequence=2)

            assert listed(other) == [named(own_name())]
            put(other, name, "mine", lease=second, sequence=2)
            with pytest.raises(Fenced):
                put(store, name, "late", lease=first, sequence=2)
            assert read(other, path_of(other, name)).stage == "mine"

    def test_a_put_that_began_before_ends_without_a_trace(self, opener: Opener, snapshot: Snapshot) -> None:
        store, other = opener(), opener()
        put_back, first = begun(store, snapshot)
        second: list[Lease] = []

        def forget(sink: Sink) -> None:
            put_back()
            second.append(other.acquire("s", take_over=True))
            writer(meta_of("late", sequence=2))(sink)

        path, parts = path_of(store, own_name(sequence=2)), [*parts_of("late")[:2], ("meta.json", forget)]
        with pytest.raises(Fenced):
            store.put(path, parts, lease=first, stage="late")

        assert listed(other) == [named(own_name())]
        put_own(other, second[0], 2)
        second[0].release()

    def test_who_was_forgotten_cannot_let_the_session_go(self, opener: Opener, snapshot: Snapshot) -> None:
        store, other = opener(), opener()
        put_back, first = begun(store, snapshot)
        put_back()

        with owning(other, take_over=True) as second:
            first.release()

            second.check()
            with pytest.raises(SessionBusy):
                store.acquire("s")
            put_own(other, second, 2)

    @pytest.mark.parametrize("frames", [0, 1, 2])
    def test_who_was_forgotten_appends_nothing(self, opener: Opener, snapshot: Snapshot, frames: int) -> None:
        store, other = opener(), opener()
        put_back, first = begun(store, snapshot)
        journal = store.journal(first, 1)
        for _ in range(frames):
            journal.append(b"lost;")
        put_back()

        with owning(other, take_over=True):
            with pytest.raises(Fenced):
                journal.append(b"late;")

            assert segments(other) == []
        journal.close()

    def test_who_was_forgotten_begins_no_segment(self, opener: Opener, snapshot: Snapshot) -> None:
        store, other = opener(), opener()
        put_back, first = begun(store, snapshot)
        put_back()

        with owning(other, take_over=True):
            with pytest.raises(Fenced):
                store.journal(first, 1)

            assert segments(other) == []

    @pytest.mark.parametrize("frames", [0, 2])
    def test_two_owners_of_one_epoch_have_no_segment_in_common(
        self, opener: Opener, snapshot: Snapshot, frames: int
    ) -> None:
        store, other = opener(), opener()
        put_back, first = begun(store, snapshot)
        old = store.journal(first, 1)
        for _ in range(frames):
            old.append(b"lost;")
        put_back()

        with owning(other, take_over=True) as second:
            new = other.journal(second, 1)
            for frame in (b"one;", b"two;", b"three;"):
                with pytest.raises((Fenced, JournalFailed)):
                    old.append(b"late;")
                new.append(frame)
            new.close()

            assert segments(other) == [(second.epoch, 1, b"one;two;three;")]
        old.close()


def begun(store: CheckpointStore, snapshot: Snapshot) -> tuple[Callable[[], None], Lease]:
    """A session with one checkpoint is copied, and owned again: what puts the copy back, and that owner."""
    with owning(store) as former:
        put_own(store, former, 1)
    put_back = snapshot()
    return put_back, store.acquire("s")
