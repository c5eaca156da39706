"""The contract of ownership: one owner, an epoch that only grows, and no write without it."""

from __future__ import annotations

import os
import time
from typing import cast
from unittest.mock import patch

import pytest

from graflow_ckpt.core.errors import Fenced, SessionBusy
from graflow_ckpt.core.protocols import Lease, Line, Owner, Sink
from graflow_ckpt.testing.contract import Contract, Opener
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

DAY = 86_400.0


class OwnershipContract(Contract):
    """Who has lost a session changes nothing in it, whenever that was found out."""

    def test_the_owner_is_this_process_until_it_releases(self, opener: Opener) -> None:
        store, other = opener(), opener()

        lease = store.acquire("s")

        assert lease.session == "s"
        assert lease.taken_from is None
        lease.check()
        owner = other.owner("s")
        assert owner is not None
        assert owner.pid == os.getpid()
        lease.release()
        assert store.owner("s") is other.owner("s") is None

    def test_a_second_owner_is_refused_and_told_who_the_first_is(self, opener: Opener) -> None:
        store, other = opener(), opener()

        with owning(store) as lease:
            for handle in (store, other):
                with pytest.raises(SessionBusy) as busy:
                    handle.acquire("s")
                owner: Owner | None = busy.value.ids["owner"]
                assert owner is not None
                assert owner.pid == os.getpid()
            lease.check()
            put_own(store, lease, 1)

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

    def test_who_was_taken_over_rewinds_nothing(self, opener: Opener) -> None:
        store, other = opener(), opener()
        old = store.acquire("s")
        store.rewound(old, 2)
        before = other.lines("s")

        with owning(other, take_over=True):
            for sequence in (2, 1):  # also where there would be nothing to write
                with pytest.raises(Fenced):
                    store.rewound(old, sequence)

            assert other.lines("s") == before

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

    def test_who_has_released_writes_nothing(self, opener: Opener) -> None:
        store = opener()
        lease = store.acquire("s")
        lease.release()
        lease.release()

        with pytest.raises(Fenced):
            lease.check()
        for name in (own_name(), "best"):
            with pytest.raises(Fenced):
                put(store, name, "late", lease=lease)
        with pytest.raises(Fenced):
            store.rewound(lease, 1)
        assert listed(store) == []
        assert store.lines("s") == ()

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

    def test_lines_are_kept_in_their_order(self, opener: Opener) -> None:
        store, expected = opener(), []
        for sequence in (3, 7, 12):
            with owning(store) as lease:
                store.rewound(lease, sequence)
                expected.append(Line(lease.epoch, sequence))

        assert opener().lines("s") == tuple(expected)
        assert store.lines("t") == ()

    def test_a_line_that_goes_back_further_may_stand_for_those_before(self, opener: Opener) -> None:
        store, lines = opener(), []
        for sequence in (3, 12, 7):
            with owning(store) as lease:
                store.rewound(lease, sequence)
                lines.append(Line(lease.epoch, sequence))

        assert opener().lines("s") in (tuple(lines), (lines[0], lines[2]))

    def test_no_step_of_this_machines_clock_changes_the_owner(self, opener: Opener) -> None:
        store, other = opener(), opener()
        with owning(store) as lease:
            for step in (DAY, -DAY):
                with _clock_off_by(step):
                    with pytest.raises(SessionBusy):
                        other.acquire("s")
                    lease.check()
                    put_own(store, lease, 1)
            old = lease
            with owning(other, take_over=True):
                for step in (DAY, -DAY):
                    with _clock_off_by(step), pytest.raises(Fenced):
                        put_own(store, old, 2)

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

        for write in (
            lambda: put(store, "best", "one", lease=foreign),
            lambda: store.rewound(foreign, 1),
            lambda: store.journal(foreign, 0),
        ):
            with pytest.raises(TypeError, match="lease"):
                write()
        assert listed(store) == []


class _Foreign:
    """Looks like a lease, and was given out by nobody."""

    session, epoch, taken_from = "s", 1, None

    def check(self) -> None: ...

    def release(self) -> None: ...


class _clock_off_by:
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
