"""The two slots of the lock file; what a crash makes of them is in tests/crash."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointError
from graflow_ckpt.core.protocols import Line
from graflow_ckpt.links.processes import myself
from graflow_ckpt.stores.disk import Disk
from graflow_ckpt.stores.flock import Flock
from graflow_ckpt.stores.ledger import SLOT, Record, Slots, read_record, still_needed
from tests.unit.stores.faults import FaultyDisk


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[Flock]:
    lock = Flock(f"{tmp_path}/.s.lock")
    yield lock
    lock.close()


def test_what_is_written_is_read(lock: Flock) -> None:
    slots = Slots(FaultyDisk(), lock)  # which takes half of what it is given at a time
    record = Record().claimed(3, myself(), "c3").with_line(Line(3, 17))

    slots.write(record)

    assert slots.read() == record


def test_the_higher_turn_counts_and_the_other_one_survives_a_torn_write(lock: Flock) -> None:
    slots = Slots(Disk(), lock)
    first = slots.write(Record().claimed(1, myself(), "c1"))
    second = slots.write(first.claimed(2, myself(), "c2"))
    assert slots.read() == second

    os.pwrite(lock.fd, b"torn", second.turn % 2 * SLOT + 40)

    assert slots.read() == first


def test_a_shorter_record_over_a_longer_one_is_read_without_its_rest(lock: Flock) -> None:
    slots = Slots(Disk(), lock)
    long = slots.write(Record().claimed(1, myself(), "c1"))
    short = slots.write(slots.write(long.without_owner()).claimed(2, myself(), "c2").without_owner())

    assert slots.read() == short


@pytest.mark.parametrize("raw", [b"", b"\0" * 100, b"00000000 {}", b"nonsense\n", b"00000000 {}\n"])
def test_bytes_that_are_no_record_say_nothing(raw: bytes) -> None:
    assert read_record(raw) == Record()


def test_whether_anything_changed_is_known_without_parsing(lock: Flock) -> None:
    slots, other = Slots(Disk(), lock), Slots(Disk(), lock)
    record = slots.write(Record().claimed(1, myself(), "c1"))
    assert slots.unchanged()

    other.write(record.claimed(2, myself(), "c2"))

    assert not slots.unchanged()
    assert not slots.removed()


def test_a_removed_file_is_noticed(lock: Flock) -> None:
    slots = Slots(Disk(), lock)
    slots.write(Record().claimed(1, myself(), "c1"))

    os.unlink(lock.path)

    assert slots.removed()
    assert not slots.unchanged()


def test_lines_that_a_later_one_says_as_well_are_not_needed() -> None:
    lines = (Line(1, 5), Line(2, 9), Line(3, 7), Line(4, 20), Line(5, 20))

    assert still_needed(lines) == (Line(1, 5), Line(3, 7), Line(5, 20))
    assert still_needed(()) == ()


def test_lines_without_room_are_thinned_out_and_then_refused(lock: Flock) -> None:
    slots = Slots(Disk(), lock)
    thin = Record(turn=1, epoch=9, lines=tuple(Line(n, 100_000 - n) for n in range(2000)))
    dense = Record(turn=2, epoch=9, lines=tuple(Line(n, n) for n in range(2000)))

    assert slots.write(thin).lines == thin.lines[-1:]
    with pytest.raises(CheckpointError, match="No room"):
        slots.write(dense)

    assert slots.read().lines == thin.lines[-1:]
