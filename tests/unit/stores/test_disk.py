"""What a disk's refusals mean to a person, and who else can write where."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError, CheckpointNotFound
from graflow_ckpt.stores.disk import Disk, refusing, unsafe_mode


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "full"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permissions"),
        (errno.EISDIR, "folder of that name"),
        (errno.ENOTDIR, "a file, not a folder"),
        (errno.EXDEV, "another file system"),
        (errno.ENAMETOOLONG, "shorter"),
        (errno.ENOLCK, "no file locks"),
        (errno.EIO, "kernel's log"),
    ],
)
def test_a_refusal_names_path_errno_and_what_to_do(number: int, advice: str) -> None:
    with pytest.raises(CheckpointError, match=advice) as refused, refusing("write", "/x/y"):
        raise OSError(number, os.strerror(number))

    assert (refused.value.path, refused.value.errno) == ("/x/y", number)
    assert "/x/y" in str(refused.value)
    assert errno.errorcode[number] in str(refused.value)


def test_our_own_errors_pass_through() -> None:
    with pytest.raises(CheckpointNotFound, match="mine"), refusing("write", "/x/y"):
        raise CheckpointNotFound("mine")


def test_a_name_is_created_once(tmp_path: Path) -> None:
    os.close(Disk().create(f"{tmp_path}/x"))

    with pytest.raises(FileExistsError):
        Disk().create(f"{tmp_path}/x")


def test_all_of_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"ab" * 100_000)

    assert Disk().read(f"{tmp_path}/x") == b"ab" * 100_000


def test_own_files_in_an_own_folder_are_safe(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "x.pkl"
    path.touch(0o600)

    assert unsafe_mode(str(path)) is None
    assert unsafe_mode(str(tmp_path / "not there.pkl")) is None
    assert unsafe_mode(str(tmp_path / "no folder" / "x.pkl")) is None


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o666])
def test_a_file_that_others_may_write_is_unsafe(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.touch()
    path.chmod(mode)

    assert f"{mode:04o}" in str(unsafe_mode(str(path)))


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_may_write_to_is_unsafe(mode: int, tmp_path: Path) -> None:
    tmp_path.chmod(mode)
    path = tmp_path / "x.pkl"
    path.touch(0o600)

    assert "others can put files" in str(unsafe_mode(str(path)))


def test_an_own_file_in_a_sticky_folder_is_safe_and_a_missing_one_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    path = tmp_path / "x.pkl"
    path.touch(0o600)

    assert unsafe_mode(str(path)) is None
    assert unsafe_mode(str(tmp_path / "y.pkl")) is not None
