"""What does a task cost whose commit is on the disk before the next one starts?

Method: wall time per task of a chain of no-op tasks with durability="journal", from the first body to
the last, so that start and end of the session do not count. Unit: µs. The floor: the very bytes that such a
run has left in its journal, record by record: pwrite and fdatasync, into a file with room made ahead in steps
of zeros, which is what the engine does and the cheaper of the two ways; a growing file is shown beside it.
A regression: a second sync, a record that grows with the session, work on values that did not change.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from itertools import count as numbers
from pathlib import Path

from benchmarks.harness import Case, Ratio, Run
from benchmarks.programs import chain, numbered, place
from graflow_ckpt import workflow
from graflow_ckpt.checkpoint.journal import _HEAD

NAME = "journal"
STEP = 256 << 10

Write = Callable[[int, bytes, int], None]


def journaled(run: Run) -> None:
    count = run.size(3_000, smoke=100)
    execute(place(run), count, run.start, lambda: run.stop(per=count - 1))


def execute(folder: str, count: int, first: Callable[[], None], last: Callable[[], None]) -> None:
    calls = numbers(1)

    def body() -> None:
        number = next(calls)
        if number == 1:
            first()
        elif number == count:
            last()

    with workflow("chain", "chain", durability="journal", store=folder) as flow:
        chain(numbered(count, body))
        flow.execute()


# --- the floor ---------------------------------------------------------------------------


def preallocated(run: Run) -> None:
    """Room for many records at once; what syncs a record need not change the file's size."""
    room = 0

    def write(file: int, record: bytes, at: int) -> None:
        nonlocal room
        if at + len(record) > room:
            os.pwrite(file, bytes(STEP), room)
            room += STEP
        os.pwrite(file, record, at)

    append_all(run, write)


def growing(run: Run) -> None:
    append_all(run, lambda file, record, at: void(os.write(file, record)))


def void(_: int) -> None:
    pass


def append_all(run: Run, write: Write) -> None:
    found = records(run.folder.parent, run.smoke)
    file = os.open(run.folder / "journal", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with run.timed(per=len(found)):
        at = 0
        for record in found:
            write(file, record, at)
            os.fdatasync(file)
            at += len(record)
    os.close(file)


@cache
def records(folder: Path, smoke: bool) -> list[bytes]:
    """What a run has in its journal when its last task starts."""
    run = Run(folder / "records", "wall", smoke)
    kept: list[bytes] = []
    checkpoints = Path(place(run))

    def keep() -> None:
        kept.extend(segment.read_bytes() for segment in checkpoints.glob("*.journal"))

    execute(str(checkpoints), run.size(3_000, smoke=100), lambda: None, keep)
    return split(kept[0])


def split(raw: bytes) -> list[bytes]:
    found = []
    at = 0
    while raw[at : at + 1] not in (b"", b"\0"):
        end = at + _HEAD.size + _HEAD.unpack_from(raw, at)[1]
        found.append(raw[at:end])
        at = end
    return found


CASES = [
    Case("journaled no-op task", journaled, preallocated, Ratio(2.0), unit="µs", repetitions=11),
    Case("… against a file that grows", journaled, growing, None, unit="µs"),
]
