"""The trio in databases, servers and buckets: whole or not at all, whoever dies, races, or is not answered.

Not here: what one kind of store alone can be brought to (test_sqlite_trio.py and so on).
"""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointNotFound,
    SaveOutcomeUnknown,
)
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.redis_trio import LIFE
from tests.unit.stores.kinds import REDIS, Kind, only
from tests.unit.stores.redis_trios import own_name, parts, put, read

NAMES = pytest.mark.parametrize("name", [own_name(), "best"], ids=["own", "named"])
SERVERS = only("postgres", *REDIS)


# --- whole -------------------------------------------------------------------------------


@SERVERS
@NAMES
@pytest.mark.parametrize(("chunks", "more"), [(0, 0), (0, 1), (1, -1), (1, 0), (1, 1), (2, 0), (2, 1)])
def test_what_was_put_is_read(store: CheckpointStore, kind: Kind, name: str, chunks: int, more: int) -> None:
    size = chunks * kind.chunk + more

    path = put(store, name, "x", size=size)

    assert read(store, path) == ("x", b"x" * size, b"x")
    assert len(kind.pieces()) == kind.pieces_of(size) + kind.pieces_of(1)
    assert set(kind.lives()) <= {-1}
    assert kind.begun() == 0


@SERVERS
def test_a_newer_one_takes_the_place_of_an_older_and_its_chunks_go(
    store: CheckpointStore, kind: Kind
) -> None:
    path = put(store, "best", "one", size=kind.chunk)
    assert len(kind.pieces()) == kind.pieces_of(3 * kind.chunk) + kind.pieces_of(3)

    assert put(store, "best", "two") == path

    assert read(store, path) == ("two", b"two", b"two")
    assert len(kind.pieces()) == 2 * kind.pieces_of(3)


@SERVERS
@pytest.mark.parametrize("chunks", [0, 1])
def test_a_meta_alone_leaves_the_other_parts_as_they_are(
    store: CheckpointStore, kind: Kind, chunks: int
) -> None:
    path = put(store, "best", "one", size=1 + chunks * kind.chunk)
    before = kind.pieces()
    meta = json.dumps({"stage": "one", "sealed": "anew"}).encode()

    store.put(path, [("meta.json", lambda sink: sink.write(meta))], lease=None, stage="one")

    assert store.meta(path) == meta
    assert read(store, path) == ("one", b"one" * (1 + chunks * kind.chunk), b"one")
    assert kind.pieces() == before
    put(store, "best", "two")
    assert len(kind.pieces()) == 2 * kind.pieces_of(3)


@only("postgres", "objects", *REDIS)
def test_some_parts_alone_leave_the_others_as_they_are(store: CheckpointStore, kind: Kind) -> None:
    path = put(store, "best", "one", size=kind.chunk)
    _, _, meta = parts("one")

    store.put(path, [("state.json", lambda sink: sink.write(b"anew")), meta], lease=None, stage="one")

    assert read(store, path) == ("one", b"one" * kind.chunk, b"anew")


def test_a_meta_of_another_stage_is_refused_and_the_parts_stay_with_theirs(
    store: CheckpointStore, kind: Kind
) -> None:
    path = put(store, "best", "two", size=kind.large)
    before = kind.pieces()

    with pytest.raises(CheckpointError, match="another checkpoint has taken its place"):
        store.put(path, parts("one")[2:], lease=None, stage="one")

    assert read(store, path) == ("two", b"two" * kind.large, b"two")
    assert (kind.pieces(), kind.begun()) == (before, 0)


@pytest.mark.parametrize("chunks", [0, 1])
def test_deleting_takes_all_of_it_and_says_whether_there_was_one(
    store: CheckpointStore, kind: Kind, chunks: int
) -> None:
    stays = put(store, "stays", "one", size=kind.chunk)
    before = kind.pieces()
    for name in (own_name(), "best"):
        path = put(store, name, "one", size=1 + chunks * kind.large)

        assert store.delete(path) is True
        assert store.delete(path) is False
        with pytest.raises(CheckpointNotFound):
            store.meta(path)
        with pytest.raises(CheckpointNotFound):
            store.open(path, "pkl", "one")

    assert (kind.pieces(), kind.begun()) == (before, 0)
    assert [path for path, _ in store.list()] == [stays]


@only("sqlite", "postgres", *REDIS)
@pytest.mark.parametrize("read_before", [1, 2])
@pytest.mark.parametrize("anew", [1, 0, None], ids=["large", "small", "deleted"])
def test_a_reader_whose_chunks_go_finds_out(
    store: CheckpointStore, kind: Kind, read_before: int, anew: int | None
) -> None:
    path = put(store, "best", "one", size=kind.chunk)
    source = store.open(path, "pkl", "one")
    buffer = memoryview(bytearray(4 * kind.chunk))
    for _ in range(read_before):
        assert source.readinto(buffer) == kind.chunk

    if anew is None:
        store.delete(path)
    else:
        put(store, "best", "two", size=1 + anew * kind.chunk)

    with pytest.raises(CheckpointCorrupt, match=f"lacks chunk {read_before}"):
        source.readinto(buffer)
    gone = (CheckpointNotFound, "best") if anew is None else (CheckpointCorrupt, "belongs to its meta")
    with pytest.raises(gone[0], match=gone[1]):
        store.open(path, "pkl", "one")


@pytest.mark.parametrize("wrong", [["pkl"], ["meta.json", "pkl"], ["other", "meta.json"]])
def test_parts_are_those_of_a_trio_meta_last(store: CheckpointStore, wrong: list[str]) -> None:
    with pytest.raises(ValueError, match="parts are some of"):
        store.put(f"{store.folder}/best", [(name, print) for name in wrong], lease=None, stage="one")


# --- or not at all -----------------------------------------------------------------------


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize(
    ("part", "error"),
    [("pkl", OSError), ("state.json", OSError), ("state.json", KeyboardInterrupt), ("meta.json", OSError)],
)
def test_a_part_that_cannot_be_written_leaves_what_was_there(
    store: CheckpointStore, kind: Kind, part: str, error: type[BaseException], large: bool
) -> None:
    lease, size = store.acquire("s"), kind.large if large else 10
    path = put(store, "best", "1", size=size)
    before = kind.pieces()

    def fail(sink: Any) -> None:
        sink.write(b"x" * size)
        raise error("cannot be pickled")

    broken = [(name, fail if name == part else writer) for name, writer in parts("2", size=size)]
    for target, owner in ((path, None), (path, lease), (own_name(), lease)):
        with pytest.raises(error, match="cannot be pickled"):
            store.put(target, broken, lease=owner, stage="2")
    lease.release()

    assert read(store, path) == ("1", b"1" * size, b"1")
    assert (kind.pieces(), kind.begun()) == (before, 0)


@pytest.mark.parametrize(
    ("kind", "leased"),
    [("sqlite", True), ("sqlite", False), *((kind, True) for kind in ("postgres", *REDIS))],
    indirect=["kind"],
)
@NAMES
def test_a_writer_that_is_killed_before_its_commit_leaves_the_old_one_and_what_the_next_owner_clears_away(
    store: CheckpointStore, kind: Kind, name: str, leased: bool
) -> None:
    lease = store.acquire("s")
    path = put(store, name, "one", lease)
    lease.release()
    before = kind.pieces()
    kind.kill(f"""
lease = store.acquire("s") if {leased} else None
*rest, _ = parts("2", size={kind.large})
die = ("meta.json", lambda sink: os.kill(os.getpid(), signal.SIGKILL))
store.put({path!r}, [*rest, die], lease=lease, stage="2")
""")

    assert read(store, path)[0] == "one"
    assert len(kind.pieces()) == len(before) + kind.unfinished
    passing = [life for life in kind.lives() if life != -1]
    assert len(passing) == (kind.unfinished if kind.lives() else 0)
    assert all(0 < life <= LIFE for life in passing)
    assert kind.begun() == 1

    store.acquire("s" if leased else "t").release()

    assert read(store, path)[0] == "one"
    assert (kind.pieces(), kind.begun()) == (before, 0)


def test_an_owner_clears_away_nothing_of_those_who_are_alive(store: CheckpointStore, kind: Kind) -> None:
    other = store.acquire("t")
    (name, values), *rest = parts("1", size=kind.large)

    def slow(sink: Any) -> None:
        values(sink)
        store.acquire("s").release()

    for lease in (None, other):
        for path in (f"{store.folder}/best", f"{store.folder}/{own_name(session='t')}"):
            store.put(path, [(name, slow), *rest], lease=lease, stage="1")

            assert read(store, path) == ("1", b"1" * kind.large, b"1")
    other.release()


@SERVERS
def test_what_is_older_than_a_chunk_lives_is_cleared_away_whoever_wrote_it(
    store: CheckpointStore, kind: Kind
) -> None:
    kind.abandon("young", LIFE - 60)
    young = kind.pieces()
    kind.abandon("old", LIFE + 5)

    store.acquire("s").release()

    assert (kind.pieces(), kind.begun()) == (young, 1)


@SERVERS
def test_chunks_that_are_gone_at_the_commit_make_no_checkpoint(store: CheckpointStore, kind: Kind) -> None:
    path = put(store, "best", "one")
    before = kind.pieces()
    *rest, (name, meta) = parts("two", size=2 * kind.chunk)

    def late(sink: Any) -> None:
        kind.lose(3)
        meta(sink)

    with pytest.raises(CheckpointError, match="chunks of its pkl are gone"):
        store.put(path, [*rest, (name, late)], lease=None, stage="two")

    assert read(store, path)[0] == "one"
    assert kind.pieces() == before


@SERVERS
def test_a_save_whose_server_does_not_come_back_has_failed_and_the_next_one_has_not(
    store: CheckpointStore, kind: Kind
) -> None:
    with kind.proxy() as (proxy, behind), kind.impatient(0.2):
        far = kind.open(behind)
        path = put(far, "best", "one")
        (pkl, values), *rest = parts("two", size=2 * kind.chunk)

        def lose(sink: Any) -> None:
            proxy.refuse()
            values(sink)

        with pytest.raises(
            CheckpointError, match=r"Cannot write the checkpoint .*cannot be reached"
        ) as failed:
            far.put(path, [(pkl, lose), *rest], lease=None, stage="two")

        assert not isinstance(failed.value, SaveOutcomeUnknown)
        assert "hunter2" not in f"{failed.value} {failed.value.ids} {failed.value.__cause__}"
        assert read(store, "best")[0] == "one"
        proxy.resume()
        put(far, "best", "three")
        assert read(store, "best")[0] == "three"


# --- two at once -------------------------------------------------------------------------


@only("sqlite", "postgres", *REDIS)
def test_writers_and_readers_of_one_path_never_see_a_mixture(kind: Kind) -> None:
    reader, over = kind.open(), threading.Event()
    path = put(reader, "best", "a0")
    failed: list[BaseException] = []

    def write(name: str) -> None:
        store, n = kind.open(), 0
        try:
            while not over.is_set():
                n += 1
                put(store, "best", f"{name}{n}", size=1 + n % 3 * kind.raced)
        except BaseException as error:  # noqa: BLE001  for the assertion below
            failed.append(error)

    writers = [threading.Thread(target=write, args=[name]) for name in "ab"]
    for writer in writers:
        writer.start()
    seen = set()
    while len(seen) < 50 and not failed:
        stage, values, state = read(reader, path)
        seen.add(stage)
        assert values.replace(stage.encode(), b"") == b"", "parts of two writers"
        assert state == stage.encode()
    over.set()
    for writer in writers:
        writer.join()

    assert failed == []
    assert {stage[0] for stage in seen} >= {"a", "b"}
    reader.delete(path)
    assert (kind.pieces(), kind.begun()) == ([], 0)
