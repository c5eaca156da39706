"""Leases within one process; between processes: tests/crash/test_ownership.py."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import BadSessionId, Fenced, SessionBusy
from graflow_ckpt.core.protocols import Line
from graflow_ckpt.stores import ownership
from graflow_ckpt.stores.flock import Flock
from graflow_ckpt.stores.local import LocalStore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    return LocalStore(tmp_path)


def test_a_first_owner_has_epoch_one_and_took_it_from_nobody(store: LocalStore) -> None:
    lease = store.acquire("s")

    assert (lease.session, lease.epoch, lease.taken_from) == ("s", 1, None)
    found = store.owner("s")
    assert found is not None
    assert found.pid == os.getpid()
    lease.release()
    assert store.owner("s") is None


def test_the_epoch_grows_and_only_the_living_have_an_alive_file(store: LocalStore, tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        lease = store.acquire("s")
        assert lease.epoch == epoch
        assert [path.name for path in tmp_path.glob(".s.*.alive")] == [f".s.{epoch}.alive"]
        lease.release()

    assert list(tmp_path.glob("*.alive")) == []


def test_this_process_cannot_open_a_session_twice(store: LocalStore) -> None:
    lease = store.acquire("s")

    with pytest.raises(SessionBusy, match="this process itself") as busy:
        LocalStore(store.folder).acquire("s")

    assert busy.value.session == "s"
    assert busy.value.owner.pid == os.getpid()
    lease.release()


def test_sessions_do_not_know_each_other(store: LocalStore) -> None:
    leases = [store.acquire(session) for session in ("s", "s-1", "s_1", "1")]

    assert [lease.epoch for lease in leases] == [1, 1, 1, 1]
    for lease in leases:
        lease.release()


def test_a_take_over_fences_the_old_owner_for_good(store: LocalStore) -> None:
    old = store.acquire("s")

    new = store.acquire("s", take_over=True)

    for _ in range(2):
        with pytest.raises(Fenced, match="taken over by process"):
            old.check()
    assert new.taken_from is not None
    old.release()  # says nothing and undoes nothing
    new.check()
    found = store.owner("s")
    assert found is not None
    new.release()


def test_a_released_lease_is_of_no_use(store: LocalStore) -> None:
    lease = store.acquire("s")
    lease.release()
    lease.release()

    with pytest.raises(Fenced, match="released"):
        lease.check()
    with pytest.raises(Fenced), lease.locked():
        pass


def test_a_clean_release_leaves_nobody_to_take_from(store: LocalStore) -> None:
    store.acquire("s").release()

    lease = store.acquire("s")

    assert lease.taken_from is None
    lease.release()


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"])
def test_a_program_that_runs_once_per_rank_is_told_so(
    name: str, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "3")
    lease = store.acquire("train")

    with pytest.raises(SessionBusy) as busy:
        store.acquire("train")

    assert name in busy.value.hint
    assert 'session_id=f"train-rank{r}"' in busy.value.hint
    assert '"train-rank3"' in busy.value.hint
    lease.release()


def test_a_world_size_without_a_rank_is_told_too(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    lease = store.acquire("train")

    with pytest.raises(SessionBusy, match="RANK"):
        store.acquire("train")

    lease.release()


def test_two_threads_are_never_inside_together(store: LocalStore) -> None:
    lease = store.acquire("s")
    inside, most = [], []

    def work() -> None:
        for _ in range(200):
            with lease.locked():
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert max(most) == 1
    lease.release()


def test_a_removed_lock_file_stops_the_owner_and_does_not_take_the_epoch_back(
    store: LocalStore, tmp_path: Path
) -> None:
    lease = store.acquire("s")
    (tmp_path / ".s.lock").unlink()

    with pytest.raises(Fenced, match="removed"):
        lease.check()
    with pytest.raises(SessionBusy):
        store.acquire("s")
    again = store.acquire("s", take_over=True)

    assert again.epoch == 2
    lease.release()
    again.release()


def test_a_holder_that_never_ends_its_commit_is_told_instead_of_waited_for(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "_PATIENCE", 0.02)
    store.acquire("s").release()
    stuck = Flock(f"{tmp_path}/.s.lock")
    stuck.take()

    with pytest.raises(SessionBusy, match="locked for a commit"):
        store.acquire("s", take_over=True)

    stuck.close()
    store.acquire("s").release()


def test_rewinds_are_remembered_by_later_owners(store: LocalStore) -> None:
    lease = store.acquire("s")
    store.rewound(lease, 7)
    lease.check()
    lease.release()
    lease = store.acquire("s")
    store.rewound(lease, 3)
    lease.release()

    assert store.lines("s") == (Line(1, 7), Line(2, 3))
    assert store.lines("other") == ()


def test_who_was_fenced_cannot_rewind(store: LocalStore) -> None:
    old = store.acquire("s")
    new = store.acquire("s", take_over=True)

    with pytest.raises(Fenced):
        store.rewound(old, 1)

    assert store.lines("s") == ()
    old.release()
    new.release()


@pytest.mark.parametrize("session", ["", "a/b", "a.b", "..", "x" * 65, "a b"])
def test_a_bad_id_is_refused_everywhere(session: str, store: LocalStore) -> None:
    for call in (store.acquire, store.owner, store.lines):
        with pytest.raises(BadSessionId):
            call(session)


def test_asking_for_an_owner_makes_no_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "not there")

    assert store.owner("s") is None
    assert store.lines("s") == ()
    assert list(tmp_path.iterdir()) == []
