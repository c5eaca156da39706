"""Journal segments: appended, durable, fenced, and closed for ever after a failure."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import Fenced, JournalFailed
from graflow_ckpt.stores.files.disk import SMALL
from graflow_ckpt.stores.files.ownership import LocalLease
from graflow_ckpt.stores.files.store import LocalStore
from tests.unit.stores.faults import FaultyDisk


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


def test_a_frame_larger_than_any_room_made_is_taken_whole(store: LocalStore, lease: LocalLease) -> None:
    journal = store.journal(lease, 0)

    for frame in (b"a", b"b" * 1_000_000, b"c"):
        journal.append(frame)

    assert frames(store) == [(1, 0, b"a" + b"b" * 1_000_000 + b"c")]
    journal.close()


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


@pytest.mark.parametrize(
    ("before", "left"), [(3, [0, 4, 9]), (4, [4, 9]), (8, [4, 9]), (9, [9]), (1000, [9])]
)
def test_a_segment_goes_when_the_next_one_begins_early_enough(
    before: int, left: list[int], store: LocalStore, tmp_path: Path
) -> None:
    for after in (0, 4, 9):
        (tmp_path / f".s.1.{after}.journal").write_bytes(b"x")

    store.drop_segments("s", before)

    assert [after for _, after, _ in store.segments("s")] == left


def test_no_folder_no_segments(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "not there")

    store.drop_segments("s", 7)

    assert list(store.segments("s")) == []


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


def read_with(folder: Path, room: int) -> str:
    """What comes of reading the journal with so many bytes of memory."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(folder), str(room)], capture_output=True, check=False, timeout=60
    )
    return done.stdout.decode()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_large_journal_is_in_memory_once_and_one_that_is_too_large_is_named(
    store: LocalStore, lease: LocalLease, tmp_path: Path
) -> None:
    store.journal(lease, 0).append(b"frame")
    (tmp_path / ".s.1.0.journal").write_bytes(os.urandom(64 << 20))

    assert read_with(tmp_path, 100 << 20) == f"{64 << 20}\n"
    assert ".s.1.0.journal is larger than the memory" in read_with(tmp_path, 40 << 20)
