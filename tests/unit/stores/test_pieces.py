"""Sinks and sources."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError, CheckpointNotFound
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.files.disk import Disk, FileSink, FileSource, refusing
from tests.unit.stores.faults import FaultyDisk


class Counting(Disk):
    __slots__ = ("sizes",)

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def write(self, fd: int, data: Buffer) -> int:
        self.sizes.append(len(data))
        return super().write(fd, data)


def test_small_writes_are_collected_and_large_ones_are_not_copied(tmp_path: Path) -> None:
    disk = Counting()
    fd = disk.create(f"{tmp_path}/x")
    sink = FileSink(disk, fd, "x")

    for _ in range(10):
        sink.write(b"small")
    sink.write(bytes(20 << 20))
    sink.write(b"end")
    sink.flush()
    disk.close(fd)

    assert disk.sizes == [50, 8 << 20, 8 << 20, 4 << 20, 3]
    assert (tmp_path / "x").read_bytes() == b"small" * 10 + bytes(20 << 20) + b"end"


def test_a_pickle_can_be_streamed_into_it_also_when_the_kernel_takes_less_than_it_is_given(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    value = {"big": bytearray(range(256)) * 2000, "small": list(range(1000))}
    fd = disk.create(f"{tmp_path}/x")
    sink = FileSink(disk, fd, "x")

    pickle.dump(value, sink, protocol=5)
    sink.flush()
    disk.close(fd)

    assert pickle.loads((tmp_path / "x").read_bytes()) == value


def test_views_of_any_shape_count_in_bytes(tmp_path: Path) -> None:
    disk = Disk()
    fd = disk.create(f"{tmp_path}/x")
    sink = FileSink(disk, fd, "x")
    small, large = memoryview(bytes(80)).cast("d"), memoryview(bytes(1 << 20)).cast("d")

    assert sink.write(small) == 80
    assert sink.write(large) == 1 << 20
    sink.flush()
    disk.close(fd)

    assert (tmp_path / "x").stat().st_size == 80 + (1 << 20)


def test_a_full_disk_names_the_path(tmp_path: Path) -> None:
    disk = FaultyDisk("write", errno.ENOSPC)
    fd = disk.create(f"{tmp_path}/x")
    sink = FileSink(disk, fd, f"{tmp_path}/x")

    with pytest.raises(CheckpointError) as failed:
        sink.write(bytes(1 << 20))
    disk.close(fd)

    assert (failed.value.path, failed.value.errno) == (f"{tmp_path}/x", errno.ENOSPC)


def test_a_source_knows_its_size_also_when_the_name_has_gone(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")

    source = FileSource(Disk().open(str(path)), str(path))
    path.unlink()
    buffer = bytearray(8)

    assert source.size == 3
    assert source.readinto(memoryview(buffer)) == 3
    assert source.readinto(memoryview(buffer)) == 0
    source.close()
    source.close()


def test_a_folder_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        FileSource(Disk().open(str(tmp_path)), str(tmp_path))


# --- the disk ---------------------------------------------------------------------------


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
