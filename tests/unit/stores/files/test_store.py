"""The folder: paths, locks, listings, and leases within one process."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.core import errors
from graflow_ckpt.core.protocols import Sink
from graflow_ckpt.stores.files import ownership
from graflow_ckpt.stores.files.lock import Flock, held, is_held
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.testing.drivers import at_once
from tests.trios import put as put_trio
from tests.trios import put_own
from tests.unit.stores.faults import FaultyDisk
from tests.unit.stores.kinds import RANKS
from tests.unit.stores.programs import ROOT, command, printed
from tests.unit.stores.texts import parts

OWN = "session_s_step_1_1700000000-1"


def put(store: LocalStore, path: str, stage: str = "one", session: str = "s", epoch: int = 1) -> None:
    store.put(path, parts(stage, session=session, epoch=epoch), lease=None, stage=stage)


def listed(store: LocalStore, **what: str) -> list[str]:
    return sorted(path for path, _ in store.list(**what))


def test_nothing_is_made_before_the_first_write(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "c")

    assert (listed(store), store.owner("s")) == ([], None)
    assert store.delete(f"{tmp_path}/c/x.pkl") is False
    assert list(tmp_path.iterdir()) == []


def test_a_probe_leaves_nothing_but_the_folder_which_git_ignores(tmp_path: Path) -> None:
    LocalStore(tmp_path / "a" / "b").probe()

    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", ".gitignore"]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("method", "number"), [("create", errno.EROFS), ("write", errno.ENOSPC)])
def test_a_probe_finds_out_that_nothing_can_be_written(method: str, number: int, tmp_path: Path) -> None:
    with pytest.raises(errors.CheckpointError) as refused:
        LocalStore(tmp_path, disk=FaultyDisk(method, number)).probe()

    assert refused.value.errno == number
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "c").touch()

    for call in (LocalStore(tmp_path / "c").probe, lambda: LocalStore(tmp_path / "c").acquire("s")):
        with pytest.raises(errors.CheckpointError, match="ENOTDIR"):
            call()


@pytest.mark.parametrize("path", ["", "x/", "x/..", ".", "x/.pkl"])
def test_a_path_without_a_name_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(errors.CheckpointError, match="names a folder"):
        put(LocalStore(tmp_path), path)


def test_the_folder_stays_where_it_was_when_the_program_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore("checkpoints")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    put(store, "checkpoints/a.pkl")
    put(store, "b.pkl")

    assert listed(store) == ["checkpoints/a.pkl"]
    assert (tmp_path / "checkpoints" / "a.pkl").exists()
    assert (tmp_path / "elsewhere" / "b.pkl").exists()


def test_the_newest_of_a_session_is_listed_first(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    names = [
        f"session_s_step_{12 - n}_{1700000000 - n}-{n}.pkl" for n in (9, 2, 10, 1)
    ]  # a clock that goes back
    for name in names:
        put(store, f"{tmp_path}/{name}")

    expected = [f"{tmp_path}/{names[at]}" for at in (2, 0, 1, 3)]
    assert [path for path, _ in store.list("s")] == expected
    assert [path for path, _ in store.list(pattern=f"{tmp_path}/*")] == expected


def test_a_pattern_looks_anywhere(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "c")
    put(store, f"{tmp_path}/runs/1/best.pkl")
    put(store, f"{tmp_path}/runs/2/best.pkl", session="t")

    assert len(listed(store, pattern=f"{tmp_path}/runs/*/best.pkl")) == 2
    assert len(listed(store, pattern=f"{tmp_path}/runs/*/b*")) == 2
    assert listed(store, pattern=f"{tmp_path}/runs/*/*", session="t") == [f"{tmp_path}/runs/2/best.pkl"]


def test_damaged_and_unreadable_ones_are_listed_too(tmp_path: Path) -> None:
    (tmp_path / f"{OWN}.meta.json").write_bytes(b"\xff damaged")
    (tmp_path / "session_s_step_2_1700000000-2.meta.json").mkdir()
    store = LocalStore(tmp_path)

    assert sorted(raw for _, raw in store.list("s")) == [b"", b"\xff damaged"]


def test_two_writers_of_one_path_go_one_after_the_other(tmp_path: Path) -> None:
    store, path = LocalStore(tmp_path), f"{tmp_path}/best.pkl"
    inside, most = [], []

    def slow(sink: Sink) -> None:
        inside.append(1)
        most.append(len(inside))
        sink.write(bytes(1 << 20))
        inside.pop()

    def write(name: str) -> None:
        for number in range(20):
            stage = f"{name}-{number}"
            store.put(path, [("pkl", slow), *parts(stage)[1:]], lease=None, stage=stage)

    at_once([partial(write, name) for name in "abc"])

    assert max(most) == 1
    assert len(most) == 60
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best.meta.json",
        "best.pkl",
        "best.state.json",
    ]


def test_what_a_killed_writer_of_a_name_has_staged_goes_with_the_next_save(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put(store, f"{tmp_path}/best.pkl", "before")  # the first look at the folder finds nothing
    program = (
        "import os, sys\n"
        "from graflow_ckpt.stores.files.disk import Disk\n"
        "from tests.unit.stores.files.test_store import LocalStore, put\n"
        "class Deadly(Disk):\n"
        "    def rename(self, source, target):\n"
        "        os.kill(os.getpid(), 9)\n"
        "put(LocalStore(sys.argv[1], disk=Deadly()), sys.argv[1] + '/best.pkl', 'dead')\n"
    )
    subprocess.run(command(program, tmp_path), cwd=ROOT, check=False)
    staged = len([*tmp_path.glob("best.dead.*.tmp")])

    put(store, f"{tmp_path}/best.pkl")

    assert (staged, [*tmp_path.glob("*.tmp")]) == (3, [])


def test_a_path_called_like_the_session_has_another_lock(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lease = store.acquire("s")

    store.put(f"{tmp_path}/s.pkl", parts("one"), lease=lease, stage="one")

    lease.check()
    lease.release()


@pytest.mark.parametrize("name", [OWN, "best"])
def test_an_owner_whose_lock_file_was_removed_puts_nothing(name: str, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lease = store.acquire("s")
    (tmp_path / ".s.lock").unlink()

    with pytest.raises(errors.Fenced):
        store.put(f"{tmp_path}/{name}.pkl", parts("one"), lease=lease, stage="one")

    assert not list(tmp_path.glob(f"{name}*"))


def test_a_new_owner_tidies_up_after_the_session_and_under_names_that_are_no_sessions(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put(store, f"{tmp_path}/{OWN}.pkl", "one")
    (tmp_path / f"{OWN}.pkl").rename(tmp_path / f"{OWN}.one.pkl.tmp")  # committed, not rolled forward
    for name in (f"{OWN}.dead.pkl.tmp", "best.dead.pkl.tmp", f"{OWN.replace('_s_', '_t_')}.dead.pkl.tmp"):
        (tmp_path / name).touch()

    store.acquire("s").release()

    left = sorted(path.name for path in tmp_path.glob("*.tmp"))
    assert left == ["session_t_step_1_1700000000-1.dead.pkl.tmp"]
    assert (tmp_path / f"{OWN}.pkl").read_bytes() == b"one"


@pytest.mark.parametrize("name", [OWN, "best"])
def test_a_new_owner_leaves_alone_what_somebody_else_is_writing(name: str, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / f"{name}.busy.pkl.tmp").touch()

    with held(f"{tmp_path}/.{name}.pkl.lock"):
        store.acquire("s").release()

    assert (tmp_path / f"{name}.busy.pkl.tmp").exists()


def test_leftovers_that_cannot_be_removed_do_not_keep_the_session_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / f"{OWN}.dead.pkl.tmp").touch()

    LocalStore(tmp_path, disk=FaultyDisk("unlink", errno.EACCES)).acquire("s").release()

    assert "leftovers of session s stay" in caplog.text


def test_a_lost_lock_file_does_not_take_the_epoch_back(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    put(store, f"{tmp_path}/{OWN}.pkl", epoch=7)

    lease = store.acquire("s")

    assert lease.epoch == 8
    lease.release()


def test_busy_is_raised_before_anything_is_tidied(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lease = store.acquire("s")
    (tmp_path / f"{OWN}.mine.pkl.tmp").touch()

    with pytest.raises(errors.SessionBusy):
        store.acquire("s")

    assert (tmp_path / f"{OWN}.mine.pkl.tmp").exists()
    lease.release()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_no_file_is_written_or_locked_that_is_not_this_packages_own(kind: str, tmp_path: Path) -> None:
    other, store = tmp_path / "mine.txt", LocalStore(tmp_path / "c")
    other.touch()
    store.probe()

    def plant(name: str) -> Path:
        planted = tmp_path / "c" / name
        planted.symlink_to(other) if kind == "link" else os.mkfifo(planted)
        return planted

    lock = plant(".s.lock")
    with pytest.raises(
        errors.CheckpointError, match=r"is not used: it is (a symbolic link|not a regular file)"
    ):
        store.acquire("s")
    lock.unlink()
    lease = store.acquire("s")
    plant(".s.1.0.journal")
    with pytest.raises(errors.CheckpointError, match=r"a symbolic link|not a regular file"):
        store.journal(lease, 0)

    assert other.read_bytes() == b""
    lease.release()


def test_a_folder_that_everybody_can_write_to_is_refused_before_the_first_task(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    folder.mkdir()
    folder.chmod(0o777)

    with pytest.raises(errors.UnsafeCheckpoint, match="mode 0777") as refused:
        LocalStore(folder).probe()

    assert f"chmod o-w {folder}" in refused.value.hint
    LocalStore(folder / "own").probe()
    folder.chmod(0o1777)
    LocalStore(folder).probe()


@pytest.mark.timeout(30)  # it waited for a lock of its own for ever
def test_the_owner_of_a_session_writes_a_name_of_the_users_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lease = store.acquire("s")
    put_trio(store, "best", "one", lease=lease)

    path = put_trio(store, "best", "two", lease=lease)

    lease.release()
    assert b"two" in store.meta(path)


# --- owners ---------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    for name in (*RANKS, "WORLD_SIZE"):
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

    with pytest.raises(errors.SessionBusy, match="graflow-ckpt resume s --take-over --store file://"):
        store.acquire("s", take_over=True)

    lease.check()
    lease.release()


def test_a_lease_that_was_dropped_without_a_release_does_not_keep_its_session(store: LocalStore) -> None:
    lease = store.acquire("s")

    del lease

    store.acquire("s").release()


def test_a_session_puts_no_checkpoint_under_the_name_of_another_ones(store: LocalStore) -> None:
    path = f"{store.folder}/session_t_step_1_1700000000-1.pkl"
    put(store, path, session="t")
    lease = store.acquire("s")

    with pytest.raises(errors.CheckpointError, match="name of a checkpoint of session 't'"):
        store.put(path, parts("two", session="s", epoch=1), lease=lease, stage="two")

    assert listed(store, session="t") == [path]
    lease.release()


def test_a_lease_of_another_folder_is_refused(store: LocalStore, tmp_path: Path) -> None:
    lease = LocalStore(tmp_path / "other").acquire("s")

    with pytest.raises(TypeError, match="lease of this store"):
        put_own(store, lease, 1)

    lease.release()


@pytest.mark.parametrize("name", [*RANKS, "WORLD_SIZE"])
def test_a_program_that_runs_once_per_rank_is_told_so(
    name: str, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "3")
    lease = store.acquire("train")

    with pytest.raises(errors.SessionBusy) as busy:
        store.acquire("train")

    assert name in busy.value.hint or name == "WORLD_SIZE"
    assert 'session_id=f"train-rank{r}" with r from ' in busy.value.hint
    assert ('"train-rank3"' in busy.value.hint) is (name != "WORLD_SIZE")
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

    with pytest.raises(errors.Fenced, match="removed"):
        lease.check()
    again = store.acquire("s")

    assert again.epoch == 2
    with pytest.raises(errors.Fenced, match="taken over by process"):
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
    child = int(printed(program, tmp_path)[0])
    try:
        with pytest.raises(errors.SessionBusy, match=rf"has ended: process {child} .* keeps the lock"):
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

    with pytest.raises(errors.Fenced, match="on another"):
        put_own(store, lease, 1)

    assert "network file system (nfs4)" in caplog.text
    lease.release()


# --- the lock ---------------------------------------------------------------------------


def test_two_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    first, second = Flock(f"{tmp_path}/x"), Flock(f"{tmp_path}/x")

    assert first.take(0)
    assert not second.take(0)
    assert not second.take(0.01)
    first.close()
    assert second.take(0)
    second.close()


def test_closing_lets_go_and_can_be_repeated(tmp_path: Path) -> None:
    first, second = Flock(f"{tmp_path}/x"), Flock(f"{tmp_path}/x")
    first.take()

    first.close()
    first.close()

    assert second.is_free()
    second.close()


def test_asking_does_not_take(tmp_path: Path) -> None:
    first, second = Flock(f"{tmp_path}/x"), Flock(f"{tmp_path}/x")

    assert first.is_free()
    assert second.take(0)
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
