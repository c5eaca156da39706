"""The contracts of owners: one at a time, an epoch that only grows, and no write without it.

Fences: an owner that was taken over changes nothing, whenever it finds out.

For stores where a session can be taken from a living owner. A store of files has no such owners: its lock
belongs to a process for as long as that lives.

A storage that was put back: an epoch that is given out twice makes no two owners.

    acquire, release        snapshot        first = acquire, works        put back        second = acquire

A backup that is restored, and a replica that takes over without the last claim, have forgotten `first`, which
knows nothing of that. Its epoch is that of `second`, so a fence that goes by epochs alone lets both write.

Not here: what was confirmed and is gone with the older state; nobody can bring that back.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import cast
from unittest.mock import patch

import pytest

from graflow_ckpt.core.errors import Fenced, JournalFailed, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Lease, Owner, Sink
from graflow_ckpt.links.processes import myself
from graflow_ckpt.testing.drivers import at_once
from tests.conformance.companion import Companion
from tests.conformance.contracts.journal import append, segments
from tests.conformance.contracts.listing import ALIKE
from tests.conformance.contracts.trio import Contract, Opener
from tests.trios import (
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

DAY = 86_400.0


class OwnershipContract(Contract):
    """One living owner, and no write without it."""

    def test_the_owner_is_this_process_until_it_releases(self, opener: Opener) -> None:
        store, other = opener(), opener()

        lease = store.acquire("s")

        assert (lease.session, lease.taken_from) == ("s", None)
        lease.check()
        owner = other.owner("s")
        assert owner is not None
        assert (owner.pid, owner.started) == (os.getpid(), myself().started)
        lease.release()
        assert store.owner("s") is other.owner("s") is None

    def test_a_second_owner_is_refused_and_told_who_the_first_is(self, opener: Opener) -> None:
        store, other = opener(), opener()

        with owning(store) as lease:
            for handle in (store, other):
                with pytest.raises(SessionBusy, match="this process itself") as busy:
                    handle.acquire("s")
                assert busy.value.session == "s"
                owner: Owner | None = busy.value.ids["owner"]
                assert owner is not None
                assert owner.pid == os.getpid()
            lease.check()
            put_own(store, lease, 1)

    def test_an_epoch_only_grows_while_anything_of_the_session_is_there(self, opener: Opener) -> None:
        epochs = []
        for sequence in range(1, 4):
            with owning(opener()) as lease:
                assert lease.taken_from is None
                epochs.append(lease.epoch)
                put_own(opener(), lease, sequence)

        assert epochs == sorted(set(epochs))
        assert epochs[0] >= 1

    def test_who_has_released_writes_nothing(self, opener: Opener) -> None:
        store = opener()
        lease = store.acquire("s")
        journal = store.journal(lease, 0)
        lease.release()
        lease.release()

        puts = [partial(put, store, name, "late", lease=lease) for name in (own_name(), "best")]
        begins = [lambda: journal.append(b"late;"), lambda: store.journal(lease, 1)]
        for write in (lease.check, *puts, *begins):
            with pytest.raises(Fenced, match="released"):
                write()
        assert listed(store) == []

    def test_who_has_released_does_not_come_back_with_the_next_owner(self, opener: Opener) -> None:
        store = opener()
        old = store.acquire("s")
        old.release()

        with owning(opener()) as new:
            assert new.taken_from is None
            with pytest.raises(Fenced):
                put_own(store, old, 1)
            old.release()
            new.check()
            assert store.owner("s") is not None

    def test_no_step_of_this_machines_clock_changes_the_owner(self, opener: Opener) -> None:
        store, other = opener(), opener()
        with owning(store) as lease:
            for step in (DAY, -DAY):
                with clock_off_by(step):
                    with pytest.raises(SessionBusy):
                        other.acquire("s")
                    lease.check()
                    put_own(store, lease, 1)

    def test_an_owner_that_does_nothing_stays_the_owner(self, opener: Opener) -> None:
        store, other = opener(), opener()
        with owning(store) as lease:
            time.sleep(self.lease_seconds * 1.5)

            assert other.owner("s") is not None
            with pytest.raises(SessionBusy):
                other.acquire("s")
            lease.check()
            put_own(store, lease, 1)

    def test_a_lease_of_something_else_is_refused(self, opener: Opener) -> None:
        store = opener()
        foreign = cast(Lease, _Foreign())

        for write in (lambda: put(store, "best", "one", lease=foreign), lambda: store.journal(foreign, 0)):
            with pytest.raises(TypeError, match="lease"):
                write()
        assert listed(store) == []


class _Foreign:
    """Looks like a lease, and was given out by nobody."""

    session, epoch, taken_from = "s", 1, None

    def check(self) -> None: ...

    def release(self) -> None: ...


class clock_off_by:
    """The wall clock of this process, moved."""

    def __init__(self, seconds: float) -> None:
        now, now_ns = time.time, time.time_ns
        self._patches = (
            patch("time.time", lambda: now() + seconds),
            patch("time.time_ns", lambda: now_ns() + int(seconds * 1e9)),
        )

    def __enter__(self) -> None:
        for one in self._patches:
            one.start()

    def __exit__(self, *_: object) -> None:
        for one in self._patches:
            one.stop()


# --- fences --------------------------------------------------------------------------------


Snapshot = Callable[[], Callable[[], None]]
"""Takes a copy of all that the place of `opener` has; what it returns puts that back under open stores."""

WAYS = pytest.mark.parametrize("how", ["taken over", "forgotten"])  # in which a session is lost


class FencingContract(Contract):
    """Of two owners the later one writes, and the other is told. A class of tests gives `snapshot`, too."""

    @pytest.fixture
    def snapshot(self, opener: Opener) -> Snapshot:
        raise NotImplementedError("give the class a fixture `snapshot` that copies your storage")

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
                with pytest.raises(Fenced):
                    lease.check()
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

    @WAYS
    def test_who_has_lost_it_finds_out_and_is_told_who_the_owner_is(
        self, opener: Opener, snapshot: Snapshot, how: str
    ) -> None:
        store, other = opener(), opener()
        put_back, old = begun(store, snapshot, how)
        put_back()

        with owning(other, take_over=True) as new:
            for _ in range(2):
                with pytest.raises(Fenced) as fenced:
                    old.check()
                owner: Owner | None = fenced.value.ids["owner"]
                assert owner is not None
                assert owner.pid == os.getpid()
            new.check()

        if how == "taken over":
            assert new.epoch == old.epoch + 1
            assert new.taken_from is not None
            assert new.taken_from.pid == os.getpid()
            assert "taken over by process" in fenced.value.message

    @WAYS
    @pytest.mark.parametrize(
        "name", [own_name(), own_name(sequence=2), "best"], ids=["former", "own", "named"]
    )
    def test_who_has_lost_it_puts_nothing(
        self, opener: Opener, snapshot: Snapshot, how: str, name: str
    ) -> None:
        store, other = opener(), opener()
        put_back, old = begun(store, snapshot, how)
        put_back()
        before = list(other.list())

        with owning(other, take_over=True) as new:
            with pytest.raises(Fenced):
                put(store, name, "late", lease=old)
            assert list(other.list()) == before
            put(other, name, "mine", lease=new)
            with pytest.raises(Fenced):
                put(store, name, "late", lease=old)

        assert read(store, path_of(store, name)).stage == "mine"

    @WAYS
    @pytest.mark.parametrize("name", [own_name(sequence=2), "best"], ids=["own", "named"])
    def test_a_put_that_began_before_the_loss_ends_without_a_trace(
        self, opener: Opener, snapshot: Snapshot, how: str, name: str
    ) -> None:
        store, other = opener(), opener()
        put_back, old = begun(store, snapshot, how)
        taken: list[Lease] = []

        def lose(sink: Sink) -> None:
            put_back()
            taken.append(other.acquire("s", take_over=True))
            writer(meta_of("late", sequence=2))(sink)

        path, parts = path_of(store, name), [*parts_of("late")[:2], ("meta.json", lose)]
        with pytest.raises(Fenced):
            store.put(path, parts, lease=old, stage="late")

        assert listed(other) == [named(own_name())]
        put_own(other, taken[0], 2)
        taken[0].release()

    @WAYS
    def test_who_has_lost_it_cannot_let_the_session_go(
        self, opener: Opener, snapshot: Snapshot, how: str
    ) -> None:
        store, other = opener(), opener()
        put_back, old = begun(store, snapshot, how)
        put_back()

        with owning(other, take_over=True) as new:
            old.release()

            new.check()
            assert other.owner("s") is not None
            with pytest.raises(SessionBusy):
                store.acquire("s")
            put_own(other, new, 2)

    @WAYS
    @pytest.mark.parametrize("frames", [0, 1, 2])
    def test_who_has_lost_it_appends_nothing(
        self, opener: Opener, snapshot: Snapshot, how: str, frames: int
    ) -> None:
        store, other = opener(), opener()
        put_back, old = begun(store, snapshot, how)
        journal = store.journal(old, 1)
        for _ in range(frames):
            journal.append(b"frame;")
        put_back()

        with owning(other, take_over=True) as new:
            with pytest.raises(Fenced):
                journal.append(b"late;")
            append(other, new, 7, b"newer;")
            with pytest.raises((Fenced, JournalFailed)):
                journal.append(b"late;")

            kept = [(old.epoch, 1, b"frame;" * frames)] if frames and how == "taken over" else []
            assert segments(store) == segments(other) == [*kept, (new.epoch, 7, b"newer;")]
        journal.close()

    @WAYS
    def test_who_has_lost_it_begins_no_segment(self, opener: Opener, snapshot: Snapshot, how: str) -> None:
        store, other = opener(), opener()
        put_back, old = begun(store, snapshot, how)
        put_back()

        with owning(other, take_over=True):
            with pytest.raises(Fenced):
                store.journal(old, 1)

            assert segments(other) == []

    def test_what_came_after_the_copy_is_gone_and_its_epoch_comes_again(
        self, opener: Opener, snapshot: Snapshot
    ) -> None:
        store, other = opener(), opener()
        put_back, first = begun(store, snapshot, "forgotten")
        put_own(store, first, 2, "later")

        put_back()

        assert listed(other) == [named(own_name())]
        with owning(other, take_over=True) as second:
            assert second.epoch == first.epoch

    def test_an_owner_whose_own_commits_were_forgotten_writes_nothing_more(
        self, opener: Opener, snapshot: Snapshot
    ) -> None:
        store, other = opener(), opener()
        with owning(store) as lease:
            put_own(store, lease, 1)
            put_back = snapshot()
            put_own(store, lease, 2)  # confirmed, and lost now: what follows from it must not be stored
            put_back()

            with pytest.raises(Fenced):
                put_own(store, lease, 3)

        assert listed(other, "s") == [named(own_name())]

    @pytest.mark.parametrize("frames", [0, 2])
    def test_two_owners_of_one_epoch_have_no_segment_in_common(
        self, opener: Opener, snapshot: Snapshot, frames: int
    ) -> None:
        store, other = opener(), opener()
        put_back, first = begun(store, snapshot, "forgotten")
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


class FencingProcessContract(Contract):
    """The same between processes, one of which was stopped."""

    def test_an_owner_that_was_stopped_and_taken_over_writes_nothing_when_it_wakes(
        self, opener: Opener
    ) -> None:
        store = opener()
        with Companion(opener, "own") as other:
            epoch = other.hear()
            other.stop()
            time.sleep(self.lease_seconds * 1.2)
            with pytest.raises(SessionBusy):  # however long it is silent: its process is there
                store.acquire("s")
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


def begun(store: CheckpointStore, snapshot: Snapshot, how: str) -> tuple[Callable[[], None], Lease]:
    """Own a session with one checkpoint. Return what puts a copy of before back, if the owner is to be
    forgotten, and the lease."""
    with owning(store) as former:
        put_own(store, former, 1)
    put_back = snapshot() if how == "forgotten" else lambda: None
    return put_back, store.acquire("s")
