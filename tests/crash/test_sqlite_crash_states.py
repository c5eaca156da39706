"""A SQLite store after the power went: whatever the disk has kept of what no sync made safe, every
checkpoint that was reported durable is there, and what is there is whole.

What a disk may hold is laid out from what SQLite did to its files (sqlite_recorder.py): all that was
synced, and of what came after that nothing, or any sectors of it. That a file is there is
safe with its first sync, which syncs the folder, and so is that what was deleted before is gone.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointNotFound
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.names import base_of
from tests.crash.doomed import small_chunks
from tests.crash.sqlite_recorder import Call, Delete, Note, Sync, Truncate, Write, recorded
from tests.trios import held

pytestmark = pytest.mark.crash

SECTOR = 512
DELETED = "session_s_step_1_17-1"  # in the middle


@dataclass
class Disk:
    """What is safe of each file, and what was done to it since."""

    safe: dict[str, bytes] = field(default_factory=dict)
    since: dict[str, list[Write | Truncate | Delete]] = field(default_factory=dict)

    def take(self, call: Call) -> None:
        if isinstance(call, Note):
            return
        if not isinstance(call, Sync):
            self.since.setdefault(call.file, []).append(call)
            if isinstance(call, Delete) and call.synced:
                self._sync_folder()
            return
        if call.file not in self.safe:
            self._sync_folder()
        found = self.image(call.file, lambda _: True)
        self.since.pop(call.file, None)
        if found is not None:
            self.safe[call.file] = found

    def _sync_folder(self) -> None:
        """What was deleted is gone for good."""
        for file, calls in list(self.since.items()):
            gone = [number for number, one in enumerate(calls) if isinstance(one, Delete)]
            if gone:
                self.safe.pop(file, None)
                self.since[file] = calls[gone[-1] + 1 :]

    def image(self, file: str, kept: Callable[[int], bool]) -> bytes | None:
        """The file, if these sectors have come to the disk; None: it is not there."""
        safe = self.safe.get(file)
        there = None if safe is None else bytearray(safe)
        for call in self.since.get(file, ()):
            if isinstance(call, Delete):
                there = None if kept(0) else there
            elif isinstance(call, Truncate):
                if there is not None and kept(0):
                    del there[call.size :]
            else:
                for start in filter(kept, range(0, len(call.data), SECTOR)):
                    there = bytearray() if there is None else there
                    at, piece = call.offset + start, call.data[start : start + SECTOR]
                    there.extend(bytes(max(0, at - len(there))))
                    there[at : at + len(piece)] = piece
        return None if there is None else bytes(there)

    def images(self, kept: Callable[[int], bool]) -> dict[str, bytes]:
        found = {file: self.image(file, kept) for file in {*self.safe, *self.since}}
        return {file: image for file, image in found.items() if image is not None}


def states(calls: list[Call]) -> Iterator[tuple[dict[str, str], dict[str, bytes]]]:
    """What was promised by then, and the files, each time before something becomes safe."""
    disk, promised, chance = Disk(), dict[str, str](), random.Random(5)
    for call in [*calls, Sync("")]:
        if isinstance(call, Note):
            promised[call.name] = call.stage
        if isinstance(call, Sync | Note):
            yield dict(promised), disk.images(lambda _: False)
            share = chance.random()
            yield dict(promised), disk.images(lambda _, share=share: chance.random() < share)
        disk.take(call)


def broken(promised: dict[str, str], images: dict[str, bytes], folder: Path) -> str:
    """What does not hold of a state; "" if all does."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(0o700)
    for name, image in images.items():
        (folder / name).write_bytes(image)
        (folder / name).chmod(0o600)
    store = SqliteStore(folder / "x.db")
    try:
        found = {base_of(path.rpartition("/")[2]): path for path, _ in store.list()}
        stages = {name: number_of(json.loads(store.meta(path))["stage"]) for name, path in found.items()}
        for path in found.values():
            held(store, path)
        store.acquire("s").release()
    except (CheckpointCorrupt, CheckpointNotFound) as error:
        return str(error)
    finally:
        store.close()
    with closing(sqlite3.connect(folder / "x.db")) as connection:
        said = connection.execute("PRAGMA integrity_check").fetchall()
    if said != [("ok",)]:
        return f"integrity: {said}"
    lost = [
        name for name, stage in promised.items()
        if name != DELETED and stages.get(name, -1) < number_of(stage)
    ]  # fmt: skip
    return f"lost: {lost}" if lost else ""


@pytest.fixture(autouse=True)
def as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)


def number_of(stage: str) -> int:
    return int(stage.removeprefix("stage"))


def test_what_was_reported_durable_is_there_whatever_was_lost_that_no_sync_made_safe(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(0o700)
    calls = recorded(tmp_path / "run")

    found = [broken(promised, images, tmp_path / "state") for promised, images in states(calls)]

    assert sum(isinstance(call, Write) and call.file == "x.db" for call in calls) > 30  # was carried over
    assert len(found) > 50
    assert [one for one in found if one] == []


def test_a_store_that_syncs_less_is_convicted_by_these_states(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(0o700)

    calls = recorded(tmp_path / "run", "NORMAL")

    assert any(broken(promised, images, tmp_path / "state") for promised, images in states(calls))
