"""The contract of ownership: one owner, an epoch that only grows, and no write without it."""

from __future__ import annotations

import os
import time
from typing import cast
from unittest.mock import patch

import pytest

from graflow_ckpt.core.errors import Fenced, SessionBusy
from graflow_ckpt.core.protocols import Lease, Owner
from graflow_ckpt.testing.contract import Contract, Opener
from graflow_ckpt.testing.trios import listed, own_name, owning, put, put_own

DAY = 86_400.0


class OwnershipContract(Contract):
    """One living owner, and no write without it."""

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

    def test_an_epoch_only_grows_while_anything_of_the_session_is_there(self, opener: Opener) -> None:
        epochs = []
        for sequence in range(1, 4):
            with owning(opener()) as lease:
                epochs.append(lease.epoch)
                put_own(opener(), lease, sequence)

        assert epochs == sorted(set(epochs))
        assert epochs[0] >= 1

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
