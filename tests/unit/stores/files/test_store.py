"""The folder: paths, locks, listings."""

from __future__ import annotations

import errno
import json
import os
from functools import partial
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import (
    CheckpointError,
    Fenced,
    SessionBusy,
    UnsafeCheckpoint,
)
from graflow_ckpt.core.protocols import CheckpointStore, PartWriter, Sink
from graflow_ckpt.stores.files.lock import held
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.testing.drivers import at_once
from tests.trios import put as put_trio
from tests.unit.stores.faults import FaultyDisk

OWN = "session_s_step_1_1700000000-1"


def parts(stage: str, session: str = "s", epoch: int = 1) -> list[tuple[str, PartWriter]]:
    def writer(data: bytes) -> PartWriter:
        def write(sink: Sink) -> None:
            sink.write(data)

        return write

    meta = json.dumps({"stage": stage, "session_id": session, "epoch": epoch}).encode()
    return [("pkl", writer(stage.encode())), ("state.json", writer(b"{}")), ("meta.json", writer(meta))]


def put(store: LocalStore, path: str, stage: str = "one", session: str = "s", epoch: int = 1) -> None:
    store.put(path, parts(stage, session, epoch), lease=None, stage=stage)


def listed(store: LocalStore, **what: str) -> list[str]:
    return sorted(path for path, _ in store.list(**what))


def test_it_is_a_checkpoint_store(tmp_path: Path) -> None:
    store: CheckpointStore = LocalStore(tmp_path)

    assert store.url == f"file://{tmp_path}"


def test_nothing_is_made_before_the_first_write(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "c")

    assert listed(store) == []
    assert store.delete(f"{tmp_path}/c/x.pkl") is False
    assert list(tmp_path.iterdir()) == []


def test_a_probe_leaves_nothing_but_the_folder_which_git_ignores(tmp_path: Path) -> None:
    LocalStore(tmp_path / "a" / "b").probe()

    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", ".gitignore"]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("method", "number"), [("create", errno.EROFS), ("write", errno.ENOSPC)])
def test_a_probe_finds_out_that_nothing_can_be_written(method: str, number: int, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as refused:
        LocalStore(tmp_path, disk=FaultyDisk(method, number)).probe()

    assert refused.value.errno == number
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "c").touch()

    for call in (LocalStore(tmp_path / "c").probe, lambda: LocalStore(tmp_path / "c").acquire("s")):
        with pytest.raises(CheckpointError, match="ENOTDIR"):
            call()


@pytest.mark.parametrize("path", ["", "x/", "x/..", ".", "x/.pkl"])
def test_a_path_without_a_name_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="names a folder"):
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

    with pytest.raises(Fenced):
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

    with pytest.raises(SessionBusy):
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
    with pytest.raises(CheckpointError, match=r"is not used: it is (a symbolic link|not a regular file)"):
        store.acquire("s")
    lock.unlink()
    lease = store.acquire("s")
    plant(".s.1.0.journal")
    with pytest.raises(CheckpointError, match=r"a symbolic link|not a regular file"):
        store.journal(lease, 0)

    assert other.read_bytes() == b""
    lease.release()


def test_a_folder_that_everybody_can_write_to_is_refused_before_the_first_task(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    folder.mkdir()
    folder.chmod(0o777)

    with pytest.raises(UnsafeCheckpoint, match="mode 0777") as refused:
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
