"""The trio in a SQLite store: where its chunks lie, who clears them away, and processes that save at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError
from graflow_ckpt.stores import sqlite_chunks
from graflow_ckpt.stores.sqlite import SqliteStore
from graflow_ckpt.stores.sqlite_chunks import HELD, LIFE
from graflow_ckpt.stores.sqlite_schema import CHUNK
from graflow_ckpt.stores.sqlite_trio import _PAGE as PAGE
from tests.unit.stores.kinds import ROOT, InSqlite, only
from tests.unit.stores.redis_trios import all_of, own_name, parts, put, read

pytestmark = only("sqlite")


# --- a trio ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, CHUNK - 3, CHUNK, HELD - 1, HELD, HELD + 1, 3 * HELD + 7])
@pytest.mark.parametrize("piece", [1 << 16, 1 << 30])
def test_what_was_put_is_read_byte_for_byte(
    store: SqliteStore, kind: InSqlite, size: int, piece: int
) -> None:
    values, meta = os.urandom(size), json.dumps({"session_id": "s", "stage": "one"}).encode()

    def write(sink: Any) -> None:
        for at in range(0, len(values), piece):
            assert sink.write(memoryview(values)[at : at + piece]) == len(values[at : at + piece])

    trio = [("pkl", write), ("state.json", lambda sink: sink.write(b"state"))]
    for name in (own_name(), "best"):
        store.put(
            f"sqlite://{name}", [*trio, ("meta.json", lambda sink: sink.write(meta))], lease=None, stage="one"
        )

        assert store.meta(name) == meta
        assert all_of(store.open(name, "pkl", "one")) == values
        assert all_of(store.open(name, "state.json", "one")) == b"state"
    assert kind.leftovers() == (0, 0)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2 * HELD), (2 * HELD, 1), (2 * HELD, 3 * HELD)])
def test_a_newer_one_takes_the_place_of_the_former(
    store: SqliteStore, kind: InSqlite, sizes: tuple[int, int]
) -> None:
    for name in (own_name(), "best"):
        put(store, name, "1", size=sizes[0])
        path = put(store, name, "2", size=sizes[1])

        assert read(store, path) == ("2", b"2" * sizes[1], b"2")
        assert kind.leftovers() == (0, 0)
        assert len(list(store.list())) == 1
        store.delete(path)
    assert kind.ask("SELECT count(*) FROM chunks") == [(0,)]


@pytest.mark.parametrize("size", [1, CHUNK, 3 * HELD])
def test_a_meta_that_is_put_again_and_again_keeps_the_parts_until_they_go(
    store: SqliteStore, kind: InSqlite, size: int
) -> None:
    path = put(store, "best", "1", size=size)
    before = kind.ask("SELECT id, bytes FROM chunks ORDER BY id")
    for number in range(3):
        meta = json.dumps({"session_id": "s", "stage": "1", "sealed": number}).encode()
        store.put(path, [("meta.json", lambda sink, meta=meta: sink.write(meta))], lease=None, stage="1")
        put(store, f"other{number}", "2")

    assert [path.rpartition("/")[2] for path, _ in store.newest(9)] == ["other2", "other1", "other0", "best"]
    assert store.meta(path) == meta
    assert read(store, path) == ("1", b"1" * size, b"1")
    assert set(before) < set(kind.ask("SELECT id, bytes FROM chunks"))
    assert kind.leftovers() == (0, 0)
    store.delete(path)
    assert kind.ask("SELECT count(*) FROM chunks") == [(3,)]
    assert kind.leftovers() == (0, 0)


def test_what_is_read_alone_lies_in_a_chunk_of_its_own(store: SqliteStore, kind: InSqlite) -> None:
    """Else the few bytes of a state would cost the reading of a megabyte of values."""
    put(store, "small", "1", size=1000)
    put(store, "large", "2", size=CHUNK - 1000)

    sizes = [size for (size,) in kind.ask("SELECT length(bytes) FROM chunks ORDER BY id")]

    assert sizes == [1001, CHUNK - 1000, 1]


def test_others_save_while_a_large_one_is_taken_away(
    store: SqliteStore, kind: InSqlite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a pause the next step has the lock again before anybody who waits has tried."""
    impatient, saved = SqliteStore(store.file, patience=0), list[str]()
    path = put(store, "large", "1", size=2 * HELD)

    def pause(seconds: float) -> None:
        saved.append(put(impatient, f"n{len(saved)}", "2"))

    with monkeypatch.context() as patch:
        patch.setattr(sqlite_chunks, "_AT_ONCE", 2)
        patch.setattr(sqlite_chunks, "time", SimpleNamespace(time=time.time, sleep=pause))
        store.delete(path)

    assert len(saved) == 2 * HELD // CHUNK // 2
    assert all(read(store, path)[0] == "2" for path in saved)
    assert kind.leftovers() == (0, 0)
    impatient.close()


def test_no_id_is_used_twice_whichever_checkpoint_goes(store: SqliteStore, kind: InSqlite) -> None:
    """Else whoever still reads the one that is gone would read the new one's bytes."""
    seen: list[object] = []

    def ids() -> list[tuple[object, ...]]:
        return kind.ask("SELECT id FROM checkpoints ORDER BY id")

    for turn in range(3):
        paths = [put(store, f"n{number}", str(turn)) for number in range(3)]
        seen += ids()
        put(store, "n2", "again")  # the newest takes its own place
        seen += ids()[-1:]
        store.delete(paths[2])
        assert store.delete_many(paths) == 2

    assert len(seen) == len(set(seen)) == 12
    assert kind.ask("SELECT count(*) FROM gone") == [(1,)]


@pytest.mark.parametrize(
    "said",
    [
        "",
        "{}",
        "[]",
        '{"pkl": 7}',
        '{"pkl": [-1, 5]}',
        '{"pkl": ["0", 1]}',
        '{"pkl": [0, true]}',
        "[" * 10**5,
    ],
)
def test_a_row_that_somebody_has_changed_is_damage(store: SqliteStore, kind: InSqlite, said: str) -> None:
    path = put(store, "best", "one")
    kind.ask("UPDATE checkpoints SET parts = ?", said)

    with pytest.raises(CheckpointCorrupt, match="no pkl that belongs to its meta"):
        store.open(path, "pkl", "one")


def test_a_meta_that_is_larger_than_any_is_not_read(store: SqliteStore, kind: InSqlite) -> None:
    put(store, "best", "one")
    kind.ask("UPDATE checkpoints SET meta = zeroblob(65 << 20)")

    assert store.meta("best") == b""
    assert [raw for _, raw in store.list()] == [b""]


# --- or not at all ---------------------------------------------------------------------


def test_a_writer_in_another_container_is_dead_when_it_takes_an_hour(
    store: SqliteStore, kind: InSqlite
) -> None:
    kind.kill(f"""
*rest, _ = parts("2", size={2 * HELD})
die = ("meta.json", lambda sink: os.kill(os.getpid(), signal.SIGKILL))
store.put("best", [*rest, die], lease=None, stage="2")
""")
    elsewhere = "UPDATE loose SET writer = json_set(writer, '$.pid_ns', 'another'), began = ?"
    kind.ask(elsewhere, int(time.time()))

    store.acquire("s").release()
    assert kind.leftovers() == (8, 1)

    kind.ask("UPDATE loose SET began = began - ?", LIFE + 1)
    store.acquire("s").release()
    assert kind.leftovers() == (0, 0)


@pytest.mark.parametrize("further", [1, HELD])
def test_a_writer_whose_chunks_are_gone_makes_no_checkpoint(
    store: SqliteStore, kind: InSqlite, further: int
) -> None:
    path = put(store, "best", "1")
    *rest, (name, meta) = parts("2", size=2 * HELD)

    def late(sink: Any) -> None:
        kind.ask("UPDATE loose SET writer = NULL")
        store.acquire("s").release()
        sink.write(b"x" * further)

    with pytest.raises(CheckpointError, match="cleared away as a dead writer's"):
        store.put(path, [rest[0], ("state.json", late), (name, meta)], lease=None, stage="2")

    assert read(store, path)[0] == "1"
    assert kind.leftovers() == (0, 0)


# --- races -----------------------------------------------------------------------------


def test_processes_that_save_at_once_each_keep_all_of_theirs(store: SqliteStore, kind: InSqlite) -> None:
    program = kind.program("""
session = sys.argv[1]
lease = store.acquire(session)
segment = store.journal(lease, 0)
for number in range(40):
    size = 2_000_000 if number == 7 else 100
    put(store, own_name(number, session), session, lease, session=session, size=size)
    segment.append(b"%02d" % number)
lease.release()
""")
    command = [sys.executable, "-c", program]
    processes = [subprocess.Popen([*command, f"s{n}"], cwd=ROOT) for n in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4

    for n in range(4):
        names = [path.rpartition("/")[2] for path, _ in store.list(f"s{n}")]
        assert names == [own_name(number, f"s{n}") for number in range(39, -1, -1)]
        assert list(store.segments(f"s{n}")) == [(1, 0, b"".join(b"%02d" % number for number in range(40)))]
    assert kind.leftovers() == (0, 0)


def test_wherever_a_writer_is_killed_the_old_one_or_the_new_one_is_there(
    store: SqliteStore, kind: InSqlite
) -> None:
    program = kind.program("""
lease = store.acquire("s", take_over=True)
for n in range(10**6):
    put(store, "best", str(n % 10), lease, size=(3, 6_000_000, 70_000)[n % 3])
    os.write(1, b"%d" % (n % 10))
""")
    put(store, "best", "0")
    for blow in range(12):
        with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            said = process.stdout.read(1 + blow % 5)
            time.sleep(blow * 0.003)  # to another place each time: there is nothing to wait for
            process.kill()
            said += process.stdout.read()

        stage, values, state = read(store, f"{store.folder}/best")
        assert set(values) == {ord(stage)}
        assert state == stage.encode()
        last = int(said[-1:])
        assert int(stage) in (last, (last + 1) % 10), "what was confirmed is gone"

    store.acquire("s").release()
    assert kind.leftovers() == (0, 0)
    assert kind.ask("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("how", ["delete", "put"])
def test_what_a_killed_process_has_not_cleared_away_the_next_owner_does(
    store: SqliteStore, kind: InSqlite, how: str
) -> None:
    put(store, "best", "1", size=30 * CHUNK)
    kind.kill(f"""
from graflow_ckpt.stores import sqlite_chunks
sqlite_chunks.clear = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
store.delete("best") if {how == "delete"} else put(store, "best", "2")
""")
    assert kind.leftovers() == (31, 1)

    store.acquire("s").release()

    assert kind.leftovers() == (0, 0)
    if how == "put":
        assert read(store, f"{store.folder}/best")[0] == "2"
    else:
        assert list(store.list()) == []


def test_a_workflow_whose_name_has_no_encoding_is_kept_and_found(store: SqliteStore) -> None:
    meta = json.dumps({"session_id": "s", "workflow": "night\udc80", "status": "failed"}).encode()

    store.put(
        "sqlite://best", [("meta.json", lambda sink: sink.write(meta) and None)], lease=None, stage="one"
    )

    ((path, raw),) = store.newest(5, workflow="night\udc80")
    assert (path, raw) == (f"{store.folder}/best", meta)
    assert store.newest(5, workflow="night\udc81") == []


def test_a_listing_misses_nothing_that_is_written_anew_meanwhile(store: SqliteStore, kind: InSqlite) -> None:
    put(store, "best", "1", session="a")
    for number in range(PAGE):
        put(store, own_name(number, "a"), "1", session="a")

    for session in (None, "a"):
        listing = store.list(session)
        found = [next(listing)[0]]
        put(store, "best", "2", session="a")  # it was the oldest: on the second page
        found += [path for path, _ in listing]

        assert len(found) == len(set(found)) == PAGE + 1
        for number in range(PAGE):
            put(store, own_name(number, "a"), "2", session="a")  # as before: `best` is the oldest


def test_whoever_has_written_a_row_of_a_dead_writer_only_what_can_be_read_is_believed(
    store: SqliteStore,
    kind: InSqlite,
) -> None:
    put(store, "best", "1")
    kind.ask("INSERT INTO loose (session, epoch, writer, began) VALUES ('s', 9, '{}', 0)")

    with pytest.raises(CheckpointCorrupt, match="table of loose bodies"):
        store.acquire("t")
