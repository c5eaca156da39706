"""Leases within one process; between processes: tests/crash/test_ownership.py."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import Fenced, SessionBusy
from graflow_ckpt.stores.files import ownership
from graflow_ckpt.stores.files.lock import Flock, held, is_held
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.testing.drivers import at_once
from tests.trios import put_own


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    return LocalStore(tmp_path)


def test_the_epoch_grows_and_the_lock_file_stays_the_same_file(store: LocalStore, tmp_path: Path) -> None:
    found = set()
    for epoch in (1, 2, 3):
        lease = store.acquire("s")
        assert lease.epoch == epoch
        found.add((tmp_path / ".s.lock").stat().st_ino)
        lease.release()

    assert len(found) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [".s.lock", ".s.owner"]


def test_sessions_do_not_know_each_other(store: LocalStore) -> None:
    leases = [store.acquire(session) for session in ("s", "s-1", "s_1", "1")]

    assert [lease.epoch for lease in leases] == [1, 1, 1, 1]
    for lease in leases:
        lease.release()


def test_a_living_owner_is_never_fenced_and_the_refusal_names_the_command(store: LocalStore) -> None:
    lease = store.acquire("s")

    with pytest.raises(SessionBusy, match="graflow-ckpt resume s --take-over --store file://"):
        store.acquire("s", take_over=True)

    lease.check()
    lease.release()


def test_a_lease_that_was_dropped_without_a_release_does_not_keep_its_session(store: LocalStore) -> None:
    lease = store.acquire("s")

    del lease

    store.acquire("s").release()


def test_a_lease_of_another_folder_is_refused(store: LocalStore, tmp_path: Path) -> None:
    lease = LocalStore(tmp_path / "other").acquire("s")

    with pytest.raises(TypeError, match="lease of this store"):
        put_own(store, lease, 1)

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

    at_once([work] * 4)

    assert max(most) == 1
    lease.release()


def test_a_removed_lock_file_stops_the_owner_and_does_not_take_the_epoch_back(
    store: LocalStore, tmp_path: Path
) -> None:
    lease = store.acquire("s")
    (tmp_path / ".s.lock").unlink()

    with pytest.raises(Fenced, match="removed"):
        lease.check()
    again = store.acquire("s")

    assert again.epoch == 2
    with pytest.raises(Fenced, match="taken over by process"):
        lease.check()
    lease.release()  # undoes nothing
    again.check()
    again.release()


def test_a_look_at_the_lock_keeps_no_owner_out(store: LocalStore, tmp_path: Path) -> None:
    store.acquire("s").release()
    look = Flock(f"{tmp_path}/.s.lock", look=True)
    fcntl.flock(look.fd, fcntl.LOCK_SH)
    timer = threading.Timer(0.03, look.close)
    timer.start()

    store.acquire("s").release()

    timer.join()


def test_a_child_that_keeps_the_lock_of_an_owner_that_has_ended_is_named(
    store: LocalStore, tmp_path: Path
) -> None:
    program = (
        "import os, subprocess, sys\n"
        "from graflow_ckpt.stores.files.store import LocalStore\n"
        "lease = LocalStore(sys.argv[1]).acquire('s')\n"
        "fd = lease._lock.fd\n"
        "null = subprocess.DEVNULL\n"
        "child = subprocess.Popen(['sleep', '60'], pass_fds=[fd], stdout=null, stderr=null)\n"
        "print(child.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    child = int(subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True).stdout)
    try:
        with pytest.raises(SessionBusy, match=rf"has ended: process {child} .* keeps the lock"):
            store.acquire("s")
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_files_of_a_session_go_with_the_last_of_it_and_not_before_its_owner(
    store: LocalStore, tmp_path: Path
) -> None:
    lease = store.acquire("s")
    path = put_own(store, lease, 1)
    lease.release()
    again = store.acquire("s")

    store.delete(path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [".s.lock", ".s.owner"]
    again.release()
    assert list(tmp_path.iterdir()) == []


def test_reading_needs_no_lock_and_writes_nothing(store: LocalStore, tmp_path: Path) -> None:
    lease = store.acquire("s")
    path = put_own(store, lease, 1)
    store.journal(lease, 1).append(b"frame")
    before = {found.name: found.stat().st_mtime_ns for found in [tmp_path, *tmp_path.iterdir()]}

    reader = LocalStore(tmp_path)
    assert len(list(reader.list("s"))) == len(list(reader.segments("s"))) == 1
    assert reader.meta(path)
    assert reader.owner("s") is not None

    assert {found.name: found.stat().st_mtime_ns for found in [tmp_path, *tmp_path.iterdir()]} == before
    lease.release()


def test_on_a_network_file_system_a_run_is_warned_and_an_epoch_of_another_host_counts(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ownership, "network_file_system", lambda folder: "nfs4")
    lease = store.acquire("s")
    lease.check()
    record = json.loads((tmp_path / ".s.owner").read_text())
    record["epoch"], record["owner"]["host"] = 2, "another"  # whose lock did not reach this one
    (tmp_path / ".s.owner").write_text(json.dumps(record))

    with pytest.raises(Fenced, match="on another"):
        put_own(store, lease, 1)

    assert "network file system (nfs4)" in caplog.text
    lease.release()


def test_asking_for_an_owner_makes_no_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "not there")

    assert store.owner("s") is None
    assert list(tmp_path.iterdir()) == []


# --- the lock ---------------------------------------------------------------------------


def test_two_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    first, second = Flock(f"{tmp_path}/x"), Flock(f"{tmp_path}/x")

    assert first.try_take()
    assert not second.try_take()
    assert not second.take_within(0.01)
    first.drop()
    assert second.take_within(0)
    first.close()
    second.close()


def test_closing_lets_go_and_can_be_repeated(tmp_path: Path) -> None:
    first, second = Flock(f"{tmp_path}/x"), Flock(f"{tmp_path}/x")
    first.take()

    first.close()
    first.close()
    first.drop()

    assert second.is_free()
    second.close()


def test_asking_does_not_take(tmp_path: Path) -> None:
    first, second = Flock(f"{tmp_path}/x"), Flock(f"{tmp_path}/x")

    assert first.is_free()
    assert second.try_take()
    assert not first.is_free()
    first.close()
    second.close()


def test_the_file_of_a_held_block_goes_with_it(tmp_path: Path) -> None:
    path = f"{tmp_path}/x"

    with held(path) as ours:
        assert ours
        assert is_held(path)
        with held(path, wait=False) as also:
            assert not also
        assert is_held(path)

    assert not is_held(path)
    assert list(tmp_path.iterdir()) == []


def test_who_waited_for_a_file_that_was_taken_away_locks_the_new_one(tmp_path: Path) -> None:
    """Eight threads, each with locks of its own, count without losing one."""
    counter = {"n": 0, "inside": 0, "most": 0}

    def count() -> None:
        for _ in range(100):
            with held(f"{tmp_path}/x"):
                counter["inside"] += 1
                counter["most"] = max(counter["most"], counter["inside"])
                counter["n"] += 1
                counter["inside"] -= 1

    at_once([count] * 8)

    assert counter == {"n": 800, "inside": 0, "most": 1}
    assert list(tmp_path.iterdir()) == []


def test_the_block_may_raise(tmp_path: Path) -> None:
    with pytest.raises(KeyError), held(f"{tmp_path}/x"):
        raise KeyError

    assert list(tmp_path.iterdir()) == []
