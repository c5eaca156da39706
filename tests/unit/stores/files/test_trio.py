"""The protocol of the three files, call by call."""

from __future__ import annotations

import errno
import os
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from graflow_ckpt.core import errors
from graflow_ckpt.core.protocols import Sink
from graflow_ckpt.stores.files import trio
from graflow_ckpt.stores.files.disk import Disk
from graflow_ckpt.stores.files.trio import Target
from tests.unit.stores.faults import FaultyDisk
from tests.unit.stores.texts import parts

FINAL = ["x.meta.json", "x.pkl", "x.state.json"]


def write(folder: Path, stage: str, disk: Disk | None = None) -> bool:
    return trio.write(disk or Disk(), Target(str(folder), "x"), parts(stage), stage, nullcontext)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def content(folder: Path, part: str, stage: str) -> bytes:
    source = trio.open_part(Disk(), Target(str(folder), "x"), part, stage)
    buffer = bytearray(source.size)
    assert source.readinto(memoryview(buffer)) == source.size
    source.close()
    return bytes(buffer)


@pytest.mark.parametrize(
    ("method", "at"),
    [("create", 1), ("create", 3), ("write", 1), ("sync", 2), ("sync_folder", 1), ("rename", 1)],
)
def test_a_failure_before_the_commit_leaves_the_old_one_and_nothing_else(
    method: str, at: int, tmp_path: Path
) -> None:
    write(tmp_path, "old")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    with pytest.raises(errors.CheckpointError) as failed:
        write(tmp_path, "new", FaultyDisk(method, errno.ENOSPC, at))

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert failed.value.errno == errno.ENOSPC
    assert failed.value.path.startswith(str(tmp_path))
    assert "(ENOSPC)" in str(failed.value)
    assert "free some space" in str(failed.value)


def test_a_failed_sync_after_the_commit_is_an_unknown_outcome_and_nothing_is_renamed_any_more(
    tmp_path: Path,
) -> None:
    write(tmp_path, "old")

    with pytest.raises(errors.SaveOutcomeUnknown):
        write(tmp_path, "new", FaultyDisk("sync_folder", at=2))

    assert (tmp_path / "x.pkl").read_bytes() == b"old"
    assert names(tmp_path) == sorted([*FINAL, "x.new.pkl.tmp", "x.new.state.json.tmp"])
    assert content(tmp_path, "pkl", "new") == b"new"


def test_a_failure_after_it_is_durable_does_not_fail_the_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "new", FaultyDisk("rename", at=2))

    assert content(tmp_path, "pkl", "new") == b"new"
    assert "keeps its staged name" in caplog.text


def test_the_guard_decides_at_the_last_moment(tmp_path: Path) -> None:
    def fenced() -> nullcontext[None]:
        assert names(tmp_path) == ["x.new.meta.json.tmp", "x.new.pkl.tmp", "x.new.state.json.tmp"]
        raise errors.Fenced("no longer yours")

    with pytest.raises(errors.Fenced):
        trio.write(Disk(), Target(str(tmp_path), "x"), parts("new"), "new", fenced)

    assert names(tmp_path) == []


def test_what_a_part_writer_raises_is_passed_on_as_it_is(tmp_path: Path) -> None:
    def broken(sink: Sink) -> None:
        sink.write(b"half")
        raise OSError("a file of the user's own")

    with pytest.raises(OSError, match="a file of the user's own") as raised:
        trio.write(Disk(), Target(str(tmp_path), "x"), [("pkl", broken), *parts("n")[1:]], "n", nullcontext)

    assert not isinstance(raised.value, errors.CheckpointError)
    assert names(tmp_path) == []


def test_an_interrupt_right_after_the_commit_takes_nothing_away(tmp_path: Path) -> None:
    class Interrupted(Disk):
        def rename(self, source: str, target: str) -> None:
            super().rename(source, target)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, "new", Interrupted())

    assert content(tmp_path, "pkl", "new") == b"new"


def test_a_folder_in_the_place_of_a_part_is_told_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "x.state.json").mkdir()

    with pytest.raises(errors.CheckpointError, match="EISDIR"):
        write(tmp_path, "new")

    assert names(tmp_path) == ["x.state.json"]


@pytest.mark.parametrize("stage", ["", "a/b", "a.b", "deleted", "x" * 65])
def test_a_staging_id_that_could_be_misread_is_refused(stage: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="staging id"):
        write(tmp_path, stage)


def test_a_staging_id_is_used_once(tmp_path: Path) -> None:
    (tmp_path / "x.new.pkl.tmp").touch()

    with pytest.raises(errors.CheckpointError, match="unique"):
        write(tmp_path, "new")

    assert names(tmp_path) == ["x.new.pkl.tmp"]  # not ours to take away


def test_a_file_system_that_cannot_sync_folders_is_told(tmp_path: Path) -> None:
    class NoFolders(Disk):
        def sync_folder(self, path: str) -> bool:
            return False

    assert write(tmp_path, "new", NoFolders()) is False
    assert names(tmp_path) == FINAL


def test_the_staged_part_is_read_before_the_final_one(tmp_path: Path) -> None:
    write(tmp_path, "old")
    (tmp_path / "x.new.pkl.tmp").write_bytes(b"new")

    assert content(tmp_path, "pkl", "new") == b"new"
    assert content(tmp_path, "pkl", "old") == b"old"
    assert content(tmp_path, "pkl", "") == b"old"


@pytest.mark.parametrize("part", ["pkl", "state.json"])
def test_a_missing_companion_is_named(part: str, tmp_path: Path) -> None:
    write(tmp_path, "one")
    (tmp_path / f"x.{part}").unlink()

    with pytest.raises(errors.CheckpointCorrupt, match=re.escape(f"lacks its companion x.{part}")):
        content(tmp_path, part, "one")


def test_a_pickle_without_its_meta_is_not_found_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "x.pkl").touch()

    with pytest.raises(errors.CheckpointNotFound, match=r"its companion x\.meta\.json is not"):
        trio.read_meta(Disk(), Target(str(tmp_path), "x"))


def test_a_pipe_in_the_place_of_a_part_does_not_hang_the_reader(tmp_path: Path) -> None:
    write(tmp_path, "one")
    (tmp_path / "x.pkl").unlink()
    os.mkfifo(tmp_path / "x.pkl")

    with pytest.raises(errors.CheckpointError, match="not a regular file"):
        content(tmp_path, "pkl", "one")


def test_deleting_takes_meta_first(tmp_path: Path) -> None:
    write(tmp_path, "one")

    with pytest.raises(errors.CheckpointError):
        trio.delete(FaultyDisk("unlink"), Target(str(tmp_path), "x"))

    assert names(tmp_path) == ["x.deleted.meta.json.tmp", "x.pkl", "x.state.json"]
    assert trio.delete(Disk(), Target(str(tmp_path), "x")) is False


def test_a_sweep_finishes_an_interrupted_deletion(tmp_path: Path) -> None:
    test_deleting_takes_meta_first(tmp_path)

    trio.sweep(Disk(), str(tmp_path), lambda _: nullcontext(True))

    assert names(tmp_path) == []


def test_a_sweep_rolls_forward_what_is_committed_and_removes_what_is_not(tmp_path: Path) -> None:
    write(tmp_path, "one", FaultyDisk("rename", at=2))
    for name in ("x.dead.pkl.tmp", "x.dead.meta.json.tmp", "y.dead.pkl.tmp"):
        (tmp_path / name).touch()

    trio.sweep(Disk(), str(tmp_path), lambda target: nullcontext(target.base == "x"))

    assert names(tmp_path) == [*FINAL, "y.dead.pkl.tmp"]
    assert (tmp_path / "x.pkl").read_bytes() == b"one"


def test_a_sweep_leaves_everything_beside_a_meta_that_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "x.meta.json").write_bytes(b'{"stage": "on')
    (tmp_path / "x.one.pkl.tmp").touch()

    trio.sweep(Disk(), str(tmp_path), lambda _: nullcontext(True))

    assert names(tmp_path) == ["x.meta.json", "x.one.pkl.tmp"]


@pytest.mark.parametrize(
    ("meta", "stage"),
    [
        (b'{"stage": "a-1"}', "a-1"),
        (b'{"checkpoint_id": "old"}', ""),
        (b"[]", None),
        (b"\xff", None),
        (b"{", None),
        (b'{"stage": "../../etc/x"}', None),
        (b'{"stage": 7}', None),
    ],
)
def test_the_staging_id_is_what_meta_says(meta: bytes, stage: str | None) -> None:
    assert trio.stage_of(meta) == stage


def test_folders_are_made_for_this_user_alone_and_each_parent_is_synced(tmp_path: Path) -> None:
    synced = []

    class Noting(Disk):
        def sync_folder(self, path: str) -> bool:
            synced.append(path)
            return super().sync_folder(path)

    trio.make_folders(Noting(), f"{tmp_path}/a/b")

    assert synced == [str(tmp_path), f"{tmp_path}/a"]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_file_where_a_folder_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").touch()

    with pytest.raises(errors.CheckpointError, match="ENOTDIR"):
        trio.make_folders(Disk(), f"{tmp_path}/a/b")


def test_a_folder_that_somebody_else_makes_in_that_moment_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, is_folder = f"{tmp_path}/a", os.path.isdir

    def made_by_another(path: str) -> bool:
        found = is_folder(path)
        if path == folder and not found:
            os.mkdir(folder)  # right after the look
        return found

    monkeypatch.setattr(os.path, "isdir", made_by_another)

    trio.make_folders(Disk(), folder)

    assert is_folder(folder)
