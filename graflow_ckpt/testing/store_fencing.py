"""The contract of fences: an owner that was taken over changes nothing, whenever it finds out.

For stores where a session can be taken from a living owner. A store of files has no such owners: its lock
belongs to a process for as long as that lives.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial

import pytest

from graflow_ckpt.core.errors import Fenced, JournalFailed, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Lease, Sink
from graflow_ckpt.testing.companion import Companion
from graflow_ckpt.testing.contract import Contract, Opener
from graflow_ckpt.testing.store_journal import append, segments
from graflow_ckpt.testing.store_names import ALIKE
from graflow_ckpt.testing.store_ownership import DAY, clock_off_by
from graflow_ckpt.testing.store_threads import at_once
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


class FencingContract(Contract):
    """Of two owners the later one writes, and the other one is told."""

    def test_an_epoch_only_grows(self, opener: Opener) -> None:
        store, epochs = opener(), []
        for sequence in range(1, 5):
            lease = opener().acquire("s")
            again = store.acquire("s", take_over=True)
            epochs += [lease.epoch, again.epoch]
            store.delete(put_own(store, again, sequence))
            lease.release()
            again.release()

        assert epochs == sorted(set(epochs))
        assert epochs[0] >= 1
        assert listed(store) == []

    def test_sessions_are_owned_one_by_one(self, opener: Opener) -> None:
        store = opener()
        with owning(store, "a") as a, owning(store, "b") as b:
            with owning(store, "b", take_over=True):
                a.check()
                with pytest.raises(Fenced):
                    b.check()
            put_own(store, a, 1)
            assert listed(store) == [named(own_name("a"))]

    def test_who_was_taken_over_finds_out(self, opener: Opener) -> None:
        store, other = opener(), opener()
        old = store.acquire("s")

        with owning(other, take_over=True) as new:
            assert new.epoch > old.epoch
            assert new.taken_from is not None
            assert new.taken_from.pid == os.getpid()
            with pytest.raises(Fenced):
                old.check()
            new.check()

    @pytest.mark.parametrize("name", [own_name(), "best"], ids=["own", "named"])
    def test_who_was_taken_over_puts_nothing(self, opener: Opener, name: str) -> None:
        store, other = opener(), opener()
        old = store.acquire("s")

        with owning(other, take_over=True):
            with pytest.raises(Fenced):
                put(store, name, "late", lease=old)

            assert listed(other) == []

    def test_who_was_taken_over_replaces_nothing(self, opener: Opener) -> None:
        store, other = opener(), opener()
        old = store.acquire("s")
        path = put_own(store, old, 1, "former")

        with owning(other, take_over=True) as new:
            with pytest.raises(Fenced):
                put_own(store, old, 1, "late")
            assert read(other, path).stage == "former"
            put_own(other, new, 1, "newer")
            with pytest.raises(Fenced):
                put_own(store, old, 1, "late")

        assert read(store, path).stage == "newer"

    @pytest.mark.parametrize("name", [own_name(), "best"], ids=["own", "named"])
    def test_a_put_that_began_before_the_takeover_ends_without_a_trace(
        self, opener: Opener, name: str
    ) -> None:
        store, other = opener(), opener()
        old, taken = store.acquire("s"), []

        def lose(sink: Sink) -> None:
            taken.append(other.acquire("s", take_over=True))
            writer(meta_of("late"))(sink)

        with pytest.raises(Fenced):
            store.put(
                path_of(store, name), [*parts_of("late")[:2], ("meta.json", lose)], lease=old, stage="late"
            )

        assert listed(other) == []
        taken[0].check()
        taken[0].release()

    def test_who_was_taken_over_cannot_let_the_session_go(self, opener: Opener) -> None:
        store, other = opener(), opener()
        old = store.acquire("s")

        with owning(other, take_over=True) as new:
            old.release()

            new.check()
            assert other.owner("s") is not None
            with pytest.raises(SessionBusy):
                store.acquire("s")
            put_own(other, new, 1)

    def test_sessions_whose_ids_are_alike_have_owners_of_their_own(self, opener: Opener) -> None:
        store = opener()
        leases = [store.acquire(session) for session in ALIKE]

        again = [store.acquire(session, take_over=True) for session in ALIKE[::2]]

        assert all(new.epoch > old.epoch for old, new in zip(leases[::2], again, strict=True))
        for lease in [*leases[1::2], *again]:
            lease.check()
        for lease in leases[::2]:
            with pytest.raises(Fenced):
                lease.check()
        for lease in [*leases, *again]:
            lease.release()
        assert [store.owner(session) for session in ALIKE] == [None] * len(ALIKE)

    def test_who_was_taken_over_appends_nothing(self, opener: Opener) -> None:
        store, other = opener(), opener()
        old = store.acquire("s")
        journal = store.journal(old, 0)
        journal.append(b"frame;")

        with owning(other, take_over=True) as new:
            with pytest.raises(Fenced):
                journal.append(b"late;")
            append(other, new, 7, b"newer;")
            with pytest.raises((Fenced, JournalFailed)):
                journal.append(b"late;")

            expected = [(old.epoch, 0, b"frame;"), (new.epoch, 7, b"newer;")]
            assert segments(store) == segments(other) == expected
        journal.close()

    def test_who_was_taken_over_begins_no_segment(self, opener: Opener) -> None:
        store, other = opener(), opener()
        old = store.acquire("s")

        with owning(other, take_over=True):
            with pytest.raises(Fenced):
                store.journal(old, 0)

            assert segments(other) == []

    def test_of_many_who_take_over_at_once_one_is_left(self, opener: Opener) -> None:
        def take() -> Lease | None:
            try:
                return opener().acquire("s", take_over=True)
            except (SessionBusy, Fenced):
                return None  # somebody else was taking it in that moment, or has taken it already

        store = opener()
        leases = [lease for lease in at_once([take] * 6) if lease]

        epochs = [lease.epoch for lease in leases]
        assert len(epochs) == len(set(epochs))
        newest = max(leases, key=lambda lease: lease.epoch)
        newest.check()
        for lease in leases:
            if lease is not newest:
                assert _is_fenced(lease)
        for lease in leases:
            lease.release()
        assert store.owner("s") is None

    def test_after_a_takeover_nothing_of_the_former_owner_appears(self, opener: Opener) -> None:
        store, other = opener(), opener()
        for turn in range(8):
            session, begun = f"s{turn}", threading.Event()
            old = store.acquire(session)
            jobs = [partial(_put_until_fenced, store, old, begun), partial(_take_over, other, session, begun)]

            committed, found = at_once(jobs)

            assert found == listed(store, session)
            assert found[-len(committed) :] == committed
            assert len(found) - len(committed) in (0, 1)  # the last answer may be lost, no commit

    def test_no_step_of_this_machines_clock_brings_a_former_owner_back(self, opener: Opener) -> None:
        store, other = opener(), opener()
        with owning(store) as old, owning(other, take_over=True):
            for step in (DAY, -DAY):
                with clock_off_by(step), pytest.raises(Fenced):
                    put_own(store, old, 2)


class FencingProcessContract(Contract):
    """The same between processes, one of which was stopped."""

    def test_an_owner_that_was_stopped_and_taken_over_writes_nothing_when_it_wakes(
        self, opener: Opener
    ) -> None:
        store = opener()
        with Companion(opener, "own") as other:
            epoch = other.hear()
            other.stop()
            new = store.acquire("s", take_over=True)
            time.sleep(self.lease_seconds * 1.2)
            assert new.taken_from is not None
            assert new.taken_from.pid == other.pid
            before = list(store.list()), segments(store)

            other.wake()
            other.say()

            assert set(other.hear()) == {"fenced"}
            assert other.wait() == 0
        assert (list(store.list()), segments(store)) == before
        assert segments(store) == [(epoch, 0, b"in time;")]
        new.check()
        put_own(store, new, 2)
        new.release()

    def test_a_put_that_was_stopped_in_its_middle_commits_nothing_after_a_takeover(
        self, opener: Opener
    ) -> None:
        store = opener()
        with Companion(opener, "alone") as other:
            assert other.hear() == "in the put"
            other.stop()
            new = store.acquire("s", take_over=True)
            put_own(store, new, 1, "newer")

            other.wake()
            other.say()

            assert other.hear() == "fenced"
        assert read(store, path_of(store, own_name())).stage == "newer"
        new.release()


def _put_until_fenced(store: CheckpointStore, lease: Lease, begun: threading.Event) -> list[str]:
    """The names that were confirmed, newest first."""
    committed: list[str] = []
    try:
        for sequence in range(1, 200):
            put_own(store, lease, sequence)
            committed.insert(0, named(own_name(lease.session, sequence)))
            begun.set()
    except Fenced:
        pass
    return committed


def _take_over(store: CheckpointStore, session: str, begun: threading.Event) -> list[str]:
    """What is listed in the moment in which the session is ours."""
    begun.wait(20)
    with owning(store, session, take_over=True):
        return listed(store, session)


def _is_fenced(lease: Lease) -> bool:
    try:
        lease.check()
    except Fenced:
        return True
    return False
