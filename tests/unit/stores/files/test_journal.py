"""Journal segments: appended, durable, fenced, closed after a failure; and the pieces of files."""

from __future__ import annotations

import errno
import os
import pickle
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError, CheckpointNotFound, Fenced, JournalFailed
from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.stores.files.disk import SMALL, Disk, FileSink, FileSource, refusing
from graflow_ckpt.stores.files.ownership import LocalLease
from graflow_ckpt.stores.files.store import LocalStore
from tests.unit.stores.faults import FaultyDisk
from tests.unit.stores.programs import printed


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def store(tmp_path: Path, disk: FaultyDisk) -> LocalStore:
    return LocalStore(tmp_path, disk=disk)


@pytest.fixture
def lease(store: LocalStore) -> Iterator[LocalLease]:
    lease = store.acquire("s")
    yield lease
    lease.release()


def frames(store: LocalStore) -> list[tuple[int, int, bytes]]:
    return [(epoch, after, raw.rstrip(b"\0")) for epoch, after, raw in store.segments("s")]


def test_frames_follow_each_other(store: LocalStore, lease: LocalLease) -> None:
    journal = store.journal(lease, 4)
    written = [bytes([n % 255 + 1]) * (n * 37 % 5000 + 1) for n in range(200)]

    for frame in written:
        journal.append(frame)

    assert frames(store) == [(1, 4, b"".join(written))]
    journal.close()
    assert list(store.segments("s")) == [(1, 4, b"".join(written))]


@pytest.mark.parametrize(("method", "at"), [("write_at", 1), ("write_at", 2), ("sync_data", 1)])
def test_a_failed_append_leaves_no_trace_and_is_the_last(
    method: str, at: int, store: LocalStore, disk: FaultyDisk, lease: LocalLease
) -> None:
    journal = store.journal(lease, 0)
    journal.append(b"good")

    disk.arm(method, errno.ENOSPC, at)
    with pytest.raises(JournalFailed, match="No space left") as failed:
        journal.append(b"bad")
    disk.arm("")

    assert failed.value.session == "s"
    assert frames(store) == [(1, 0, b"good")]
    with pytest.raises(JournalFailed, match="closed"):
        journal.append(b"more")
    journal.close()


def test_an_interrupt_in_the_middle_closes_it_too(
    store: LocalStore, disk: FaultyDisk, lease: LocalLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = store.journal(lease, 0)
    journal.append(b"good")

    def interrupted(disk: FaultyDisk, fd: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FaultyDisk, "sync_data", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.append(b"bad")

    assert frames(store) == [(1, 0, b"good")]
    with pytest.raises(JournalFailed):
        journal.append(b"more")


def test_no_room_in_advance_is_no_failure(store: LocalStore, disk: FaultyDisk, lease: LocalLease) -> None:
    journal = store.journal(lease, 0)

    disk.arm("write_at", errno.ENOSPC)
    journal.append(b"fits")

    assert frames(store) == [(1, 0, b"fits")]
    journal.close()


def test_an_owner_whose_lock_file_was_replaced_appends_nothing(store: LocalStore, lease: LocalLease) -> None:
    journal = store.journal(lease, 0)
    journal.append(b"mine")
    Path(store.folder, ".s.lock").unlink()
    new = store.acquire("s")

    with pytest.raises(Fenced):
        journal.append(b"late")
    with pytest.raises(Fenced):
        store.journal(lease, 1)

    assert frames(store) == [(1, 0, b"mine")]
    new.release()


def test_segments_come_in_order_of_epoch_and_sequence_as_numbers(store: LocalStore, tmp_path: Path) -> None:
    for epoch, after in ((10, 2), (2, 30), (2, 4)):
        (tmp_path / f".s.{epoch}.{after}.journal").write_bytes(b"x")
    (tmp_path / ".s-1.1.1.journal").write_bytes(b"of another session")

    assert [(epoch, after) for epoch, after, _ in store.segments("s")] == [(2, 4), (2, 30), (10, 2)]


def test_what_many_appends_have_made_large_is_read(store: LocalStore, lease: LocalLease) -> None:
    """A journal grows until the next cut, and nothing makes one but the program."""
    journal = store.journal(lease, 0)
    journal.append(b"x" * SMALL)
    journal.append(b"y")
    journal.close()

    found = frames(store)

    assert found == [(1, 0, b"x" * SMALL + b"y")]


def test_a_hole_behind_the_records_takes_no_memory(
    store: LocalStore, lease: LocalLease, tmp_path: Path
) -> None:
    journal = store.journal(lease, 0)
    journal.append(b"frame")
    os.truncate(tmp_path / ".s.1.0.journal", 1 << 28)

    tracemalloc.start()
    ((_, _, raw),) = store.segments("s")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert raw.rstrip(b"\0") == b"frame"
    assert peak < 16 << 20


def test_what_follows_a_hole_is_still_found(store: LocalStore, lease: LocalLease, tmp_path: Path) -> None:
    store.journal(lease, 0).append(b"frame")
    with (tmp_path / ".s.1.0.journal").open("r+b") as file:
        file.seek(64 << 20)
        file.write(b"behind")

    ((_, _, raw),) = store.segments("s")

    assert raw.startswith(b"frame\0")
    assert raw.endswith(b"behind")
    assert len(raw) < 8 << 20


READ = """
import resource, sys
from graflow_ckpt.stores.files.store import LocalStore
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + int(sys.argv[2]), -1))
try:
    ((_, _, raw),) = LocalStore(sys.argv[1]).segments("s")
    print(len(raw))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_journal_is_in_memory_once_and_one_that_is_too_large_is_named(
    store: LocalStore, lease: LocalLease, tmp_path: Path
) -> None:
    store.journal(lease, 0).append(b"frame")
    (tmp_path / ".s.1.0.journal").write_bytes(os.urandom(64 << 20))

    assert printed(READ, tmp_path, 100 << 20) == [f"{64 << 20}"]
    assert ".s.1.0.journal is larger than the memory" in printed(READ, tmp_path, 40 << 20)[0]


# --- pieces ---------------------------------------------------------------------------


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
