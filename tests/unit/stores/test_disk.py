"""What a disk's refusals mean to a person."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError, CheckpointNotFound
from graflow_ckpt.stores.disk import Disk, refusing


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
