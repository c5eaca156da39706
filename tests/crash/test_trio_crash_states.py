"""After a power cut at any call of the writer, a reader finds the old checkpoint or the new one.

The writer is the real one; what its calls may leave on a disk is laid out state by state and read by
the real store. The same enumeration convicts what is wrong: the three loose renames of spec/002, and
every mutant of files/trio.py that lacks one sync or does things in another order. `pytest -s` shows counts.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointNotFound
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore
from graflow_ckpt.stores.files import trio
from graflow_ckpt.stores.files.disk import FileSink
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.names import base_of
from tests.crash.crash_states import Sync, SyncFolder, Unlink
from tests.crash.doomed import ROOT, small_chunks
from tests.crash.sqlite_recorder import Call, Delete, Truncate, Write, recorded
from tests.crash.sqlite_recorder import Note as Noted
from tests.crash.sqlite_recorder import Sync as Synced
from tests.crash.trio_scenarios import (
    ANY,
    CORRUPT,
    NOTHING,
    SCENARIOS,
    Scenario,
    Stage,
    first_fault,
    judge,
    mutant_of,
    parts,
    read,
    read_naively,
    record,
    weigh,
    without_sync,
)
from tests.stretch import LONG
from tests.trios import held

pytestmark = pytest.mark.crash

# --- the tests ---------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))
def test_every_crash_state_reads_as_the_old_or_the_new_one(scenario: Scenario) -> None:
    verdicts = judge(scenario)

    print(f"\n{scenario.name:50}", *(f"{model} {verdict}" for model, verdict in verdicts.items()))
    for verdict in verdicts.values():
        assert verdict.states > 5
        assert verdict.bad == 0, verdict.example


@pytest.mark.parametrize("synced", [False, True], ids=["as-written", "with-syncs-added"])
def test_the_three_loose_renames_of_the_document_are_convicted(synced: bool) -> None:
    overwriting = Scenario(
        "spec/002",
        lambda stage: loose_renames(stage, "old", synced=True),
        lambda stage: loose_renames(stage, "new", synced=synced),
        frozenset({"old", "new"}),
    )

    verdicts = judge(overwriting, reader=read_naively)

    print(f"\nspec/002{' with syncs' if synced else '':42}", *(f"{m} {v}" for m, v in verdicts.items()))
    assert all(verdict.bad > 0 for verdict in verdicts.values())


def loose_renames(stage: Stage, tag: str, *, synced: bool) -> None:
    """`_atomic_save` of spec/002, with its staging beside the target, so that it can rename at all."""
    disk, base = stage.disk, f"{stage.root}/c/best"
    trio.make_folders(disk, f"{stage.root}/c")
    for part, writer in parts(tag):
        fd = disk.create(f"{base}.tmp.{part}")
        sink = FileSink(disk, fd, base)
        writer(sink)
        sink.flush()
        if synced:
            disk.sync(fd)
        disk.close(fd)
    for part in ("pkl", "state.json", "meta.json"):
        disk.rename(f"{base}.tmp.{part}", f"{base}.{part}")
    if synced:
        disk.sync_folder(f"{stage.root}/c")
    disk.promise(tag)


def test_a_writer_killed_before_any_call_leaves_nothing_that_the_next_one_does_not_tidy_up(
    tmp_path: Path,
) -> None:
    (tmp_path / "rehearsal").mkdir()
    rehearsal = Stage(tmp_path / "rehearsal")
    rehearsal.put(ANY, "old")
    rehearsal.disk.calls.clear()
    rehearsal.put(ANY, "new")
    calls = [call for call in rehearsal.disk.calls if not isinstance(call, Unlink)]

    for number in range(len(calls) - 1):
        (tmp_path / str(number)).mkdir()
        stage = Stage(tmp_path / str(number))
        stage.put(ANY, "old")
        with stage.disk.dying(lambda _, before, last=number: len(before) >= last):
            stage.put(ANY, "new")
        assert read(stage.process(), stage.root + ANY) in ("old", "new")

        stage.put(ANY, "next")

        assert read(stage.process(), stage.root + ANY) == "next"
        names = sorted(path.name for path in (tmp_path / str(number) / "c").iterdir())
        assert names == ["best.meta.json", "best.pkl", "best.state.json"]


# --- mutants -----------------------------------------------------------------------------


def reordered() -> Iterator[tuple[str, ast.Module]]:
    """The body of the guarded block: [commit, sync, roll forward]; of the deletion: [.., sync, the rest]."""
    for name, order in (
        ("roll forward before the commit", (2, 0, 1)),
        ("roll forward before its sync", (0, 2, 1)),
    ):
        tree = ast.parse(inspect.getsource(trio))
        block = next(
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.With) and ast.unparse(node.items[0]) == "guard()"
        )
        assert len(block.body) == 3
        block.body = [block.body[at] for at in order]
        yield f"write: {name}", tree
    tree = ast.parse(inspect.getsource(trio))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "delete")
    block = next(node for node in function.body if isinstance(node, ast.With))
    attempt, sync, rest = block.body
    assert isinstance(attempt, ast.Try)
    attempt.body.insert(1, rest)
    block.body = [attempt, sync]
    yield "delete: the rest before meta", tree


MUTANTS = {**without_sync(trio), **dict(reordered())}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_protocol_is_convicted(name: str) -> None:
    fault = first_fault(mutant_of(trio, MUTANTS[name]))

    print(f"\n{name:60} {fault[:200]}")
    assert fault


def test_the_mutants_are_as_many_as_the_syncs() -> None:
    source = inspect.getsource(trio)

    assert source.count("disk.sync") == len(without_sync(trio)) == 6


def test_one_sync_call_fewer_is_convicted_whichever_it_is() -> None:
    """Not of the source but of the calls made: each of the three files needs its own."""
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == "overwriting")
    before, calls = record(scenario)
    syncs = [at for at, call in enumerate(calls) if isinstance(call, Sync | SyncFolder)]
    assert [type(calls[at]) for at in syncs] == [SyncFolder] + [Sync] * 3 + [SyncFolder] * 2

    for at in syncs[1:]:  # the first is that of a folder that was there before
        verdicts = weigh(scenario, before, calls[:at] + calls[at + 1 :])

        print(f"\nwithout {calls[at]!s:52}", *(f"{model} {verdict}" for model, verdict in verdicts.items()))
        assert verdicts["subset"].bad > 0


# --- a writer that is killed at moments that nobody chose, and who reads meanwhile --------


DEATHS = 250
SIZE = 20_000


@contextmanager
def started(role: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process of its own, which has no threads, so that it can fork; it ends with the block."""
    command = [sys.executable, "-m", __spec__.name, role, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def storm(folder: str, deaths: str) -> None:
    """Overwrite one path in a loop; be killed at a random moment; look; again."""
    chance = random.Random(7)
    path, number = f"{folder}/best.pkl", 0
    bad, leftovers = [], 0
    for death in range(int(deaths)):
        reports, report = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                overwrite(folder, path, number, death, report)
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(1)
        os.close(report)
        said = os.read(reports, 1)  # it is at work now
        time.sleep(chance.random() * 0.01)
        os.kill(pid, signal.SIGKILL)
        killed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        with os.fdopen(reports, "rb") as rest:
            promised = int((said + rest.read()).split()[-1])
        found = read(LocalStore(folder), path)
        leftovers += any(Path(folder).glob("best.*.pkl.tmp"))
        number = -1 if found in (NOTHING, CORRUPT) else int(found[1:].partition("-")[0])
        if not killed or number not in (promised, promised + 1):  # the last one may not have been reported
            bad.append((death, promised, found))
    print(json.dumps({"writes": number, "leftovers": leftovers, "bad": bad}))


def overwrite(folder: str, path: str, number: int, death: int, report: int) -> None:
    """Until it is killed; reports each one that was confirmed."""
    store = LocalStore(folder)
    lease = store.acquire("storm") if death % 2 else None
    for tag in range(number + 1, number + 100_000):
        stage = f"t{tag}-{death}"  # unique: a dead writer may have left the same tag staged
        store.put(path, parts(stage, SIZE), lease=lease, stage=stage)
        os.write(report, f"{tag}\n".encode())


def reads(folder: str) -> None:
    """Until the file `stop` appears."""
    store, path = LocalStore(folder), f"{folder}/best.pkl"
    loads, bad = 0, []
    while not os.path.exists(f"{folder}/stop"):
        found = read(store, path)
        loads += 1
        if loads == 1:
            print("ready", flush=True)
        if found in (NOTHING, CORRUPT):
            bad.append(found)
    print(json.dumps({"loads": loads, "bad": bad}))


def test_no_load_beside_a_dying_writer_is_bad(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    LocalStore(folder).put(f"{folder}/best.pkl", parts("t0", SIZE), lease=None, stage="t0")
    with ExitStack() as stack:
        readers = [stack.enter_context(started("reads", folder)) for _ in range(2)]
        assert [reader.stdout and reader.stdout.readline() for reader in readers] == ["ready\n"] * 2
        told, _ = stack.enter_context(started("storm", folder, DEATHS)).communicate(timeout=100)
        (folder / "stop").touch()
        seen = [json.loads(reader.communicate(timeout=LONG)[0]) for reader in readers]

    found = json.loads(told)
    print(f"\n{DEATHS} deaths in {found['writes']} writes, {found['leftovers']} left staged files;", seen)
    assert found["bad"] == []
    assert found["writes"] >= DEATHS
    assert found["leftovers"] > 0  # some have died in the middle
    assert all(reader["bad"] == [] and reader["loads"] > 100 for reader in seen)


# --- a SQLite store after the power went ------------------------------------------------


SECTOR = 512
DELETED = "session_s_step_1_17-1"  # in the middle


@dataclass
class Disk:
    """What is safe of each file, and what was done to it since."""

    safe: dict[str, bytes] = field(default_factory=dict)
    since: dict[str, list[Write | Truncate | Delete]] = field(default_factory=dict)

    def take(self, call: Call) -> None:
        if isinstance(call, Noted):
            return
        if not isinstance(call, Synced):
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
    for call in [*calls, Synced("")]:
        if isinstance(call, Noted):
            promised[call.name] = call.stage
        if isinstance(call, Synced | Noted):
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


if __name__ == "__main__":
    {"storm": storm, "reads": reads}[sys.argv[1]](*sys.argv[2:])
