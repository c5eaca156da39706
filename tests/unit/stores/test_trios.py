"""The trio in keyed stores: whole or not at all, whoever dies, is stopped, races, or is not answered.

Not here: what every store promises (tests/conformance), contents (test_contents.py), and what one kind of
place alone can be brought to (test_sqlite_file.py and so on).
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointNotFound,
    Fenced,
    GraflowError,
    SaveOutcomeUnknown,
    ServerGone,
)
from graflow_ckpt.core.protocols import CheckpointStore, Lease
from graflow_ckpt.stores import keyed, lease
from graflow_ckpt.stores.head import scope_of
from tests import trios
from tests.trios import all_of, content, held, put_holding
from tests.unit.stores.interruptions import Killed, happening, killed, lost, requests
from tests.unit.stores.kinds import FORKING, KINDS, REDIS, SERVERS, InBucket, Kind, kept, only
from tests.unit.stores.texts import names, own_name, parts, put, read

NAMES = pytest.mark.parametrize("name", [own_name(), "best"], ids=["own", "named"])
ENDS = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
SIZES = pytest.mark.parametrize("size", [1, 40_000], ids=["small", "large"])  # times three letters or four
MOST = 60  # operations; that no write has more is asserted
LARGE = Kind.large


class Save(NamedTuple):
    """A save of a checkpoint of so many times its stage, or of one that holds contents, too."""

    size: int
    holds: bool = False

    def contents(self, stage: str) -> list[bytes]:
        one, two, three, large = *map(content, (1, 2, 3)), content(4, 300_000)
        return ([one, two] if stage.startswith("old") else [two, three, large]) if self.holds else []

    def put(self, store: Any, name: str, stage: str, lease: Lease) -> None:
        if self.holds:
            put_holding(store, name, stage, self.contents(stage), lease=lease)
        else:
            put(store, name, stage, lease, size=self.size)

    def stage(self, store: Any, name: str) -> str:
        """The stage of what is there, which is whole."""
        if not self.holds:
            stage, values, state = read(store, name)
            assert (values, state) == (stage.encode() * self.size, stage.encode())
            return stage
        stage = str(json.loads(store.meta(name))["stage"])
        assert held(store, f"{store.folder}/{name}") == self.contents(stage)
        return stage


SAVES = pytest.mark.parametrize(
    "save", [Save(1), Save(40_000), Save(1, holds=True)], ids=["small", "large", "contents"]
)


# --- whole -------------------------------------------------------------------------------


@NAMES
@pytest.mark.parametrize(("chunks", "more"), [(0, 0), (0, 1), (1, -2), (1, -1), (1, 0), (2, 1), (7, 5)])
def test_what_was_put_is_read_and_lies_in_as_many_chunks_as_it_needs(
    store: CheckpointStore, kind: Kind, name: str, chunks: int, more: int
) -> None:
    size = chunks * kind.chunk + more

    path = put(store, name, "x", size=size)

    assert read(store, path) == ("x", b"x" * size, b"x")
    streams = [key for key in kind.listed() if "/m." not in key]
    apart = size + 1 > (1000 if isinstance(kind, InBucket) else kind.chunk)  # else beside its meta
    assert len(streams) == (-(-(size + 1) // kind.chunk) if apart else 0)


def test_a_small_stream_stays_when_a_meta_is_put_alone(store: CheckpointStore) -> None:
    small = trios.meta_of("one")  # fits into the head of a bucket, as the large one does not
    large = trios.meta_of("one", facts={"more": "x" * 50_000})
    whole = [*trios.parts_of("one")[:2], ("meta.json", trios.writer(large))]
    store.put("best", whole, lease=None, stage="one")

    for meta in (small, large, small.replace(b"running", b"stopped")):
        path = trios.put_meta(store, "best", meta, stage="one")
        assert trios.read(store, path) == trios.Trio("one", trios.values_of("one"), b"one", meta)
        assert [raw for _, raw in store.list()] == [meta]


def test_a_meta_is_put_alone_by_who_has_not_seen_that_another_process_did(kind: Kind) -> None:
    """The stream has moved with that meta: what the owner has seen of the head is looked at again."""
    name, other = own_name(), kind.open()
    metas = [trios.meta_of("one", facts={"more": "x" * 50_000 + str(number)}) for number in range(3)]
    whole = [*trios.parts_of("one")[:2], ("meta.json", trios.writer(metas[0]))]
    store = kind.open()
    with trios.owning(store) as mine:
        store.put(name, whole, lease=mine, stage="one")
        trios.put_meta(other, name, metas[1], stage="one")
        store.put(name, [("meta.json", trios.writer(metas[2]))], lease=mine, stage="one")

        assert trios.read(store, f"{store.folder}/{name}").meta == metas[2]
        trios.put_meta(other, name, metas[1], stage="one")
        other.acquire("s", take_over=True)
        with pytest.raises(Fenced):
            store.put(name, [("meta.json", trios.writer(metas[0]))], lease=mine, stage="one")
    assert trios.read(other, f"{other.folder}/{name}").meta == metas[1]


@pytest.mark.parametrize("step", [1, 1 << 10, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 << 16])
def test_what_was_written_in_any_pieces_is_read_in_any_pieces(
    store: CheckpointStore, kind: Kind, step: int
) -> None:
    data = bytes(range(256)) * (4 * kind.chunk // 256 + 1) if step > 1 else bytes(range(256))
    buffer = bytearray(data)

    def write(sink: Any) -> None:
        for at in range(0, len(data), step):
            piece = memoryview(buffer)[at : at + step]
            assert sink.write(piece) == len(piece)
            buffer[at : at + step] = bytes(len(piece))  # the sender's buffer is its own again

    store.put("best", [("pkl", write), *parts("one")[1:]], lease=None, stage="one")

    source, found = store.open("best", "pkl", "one"), bytearray()
    place = memoryview(bytearray(step))
    while count := source.readinto(place):
        found += place[:count]
    assert bytes(found) == data
    source.close()
    assert source.readinto(place) == 0


@pytest.mark.parametrize("sizes", [(1, 1), (1, 1 << 18), (1 << 18, 1), (1 << 18, 3 << 17)])
def test_a_newer_one_takes_the_place_of_an_older_whose_keys_go(
    store: CheckpointStore, kind: Kind, sizes: tuple[int, int]
) -> None:
    for name in (own_name(), "best"):
        put(store, name, "1", size=sizes[0])
        path = put(store, name, "2", size=sizes[1])

        assert read(store, path) == ("2", b"2" * sizes[1], b"2")
        assert len({key.split("/")[2] for key in kind.listed()}) <= 1
        assert names(store) == [name]
        assert store.delete(path) is True
        assert store.delete(path) is False
    assert kind.listed() == []


@pytest.mark.parametrize("size", [1, 1 << 17])
def test_a_meta_that_is_put_again_and_again_keeps_the_parts_until_they_go(
    store: CheckpointStore, kind: Kind, size: int
) -> None:
    path = put(store, "best", "1", size=size)
    before = [key for key in kind.listed() if "/m." not in key]
    for number in range(3):
        meta = json.dumps({"session_id": "s", "stage": "1", "sealed": number}).encode()
        store.put(path, [("meta.json", lambda sink, meta=meta: sink.write(meta))], lease=None, stage="1")

        assert store.meta(path) == meta
        assert read(store, path) == ("1", b"1" * size, b"1")
    assert [key for key in kind.listed() if "/m." not in key] == before

    with pytest.raises(CheckpointError, match="another checkpoint has taken its place"):
        store.put(path, parts("2")[2:], lease=None, stage="2")
    assert read(store, path) == ("1", b"1" * size, b"1")
    put(store, "best", "2")
    assert not set(before) & set(kind.listed())


@pytest.mark.parametrize("read_before", [1, 2])
@pytest.mark.parametrize("anew", [1 << 16, 0, None], ids=["large", "small", "deleted"])
def test_a_reader_whose_chunks_go_finds_out(
    store: CheckpointStore,
    kind: Kind,
    read_before: int,
    anew: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keyed, "_WHOLE", 0)  # as if a chunk were as large as it is
    path = put(store, "best", "one", size=kind.chunk)
    source = store.open(path, "pkl", "one")
    buffer = memoryview(bytearray(4 * kind.chunk))
    for _ in range(read_before):
        assert source.readinto(buffer) == kind.chunk

    if anew is None:
        store.delete(path)
    else:
        put(store, "best", "two", size=1 + anew)

    with pytest.raises(CheckpointCorrupt, match="lacks bytes of a part"):
        source.readinto(buffer)
    gone = (CheckpointNotFound, "best") if anew is None else (CheckpointCorrupt, "belongs to its meta")
    with pytest.raises(gone[0], match=gone[1]):
        store.open(path, "pkl", "one")


def test_parts_that_go_while_somebody_opens_them_are_looked_for_again(kind: Kind) -> None:
    store, other = kind.open(), kind.open()
    path = put(store, "best", "one", size=kind.large)
    store.meta(path)
    put(other, "best", "one", size=kind.large)  # and what the former had is gone

    assert all_of(store.open(path, "pkl", "one")) == b"one" * kind.large

    store.meta(path)
    other.delete(path)
    with pytest.raises(CheckpointNotFound):
        store.open(path, "pkl", "one")


def test_what_somebody_has_removed_is_missed(store: CheckpointStore, kind: Kind) -> None:
    path = put(store, "best", "one", size=kind.chunk)
    kind.lose()

    with pytest.raises(CheckpointCorrupt, match="no pkl that belongs to its meta"):
        store.open(path, "pkl", "one")


# --- what it costs -----------------------------------------------------------------------


def test_a_save_asks_for_no_more_than_it_needs(kind: Kind) -> None:
    store = kind.open()
    lease = store.acquire("s")
    bucket = isinstance(kind, InBucket)
    put(store, own_name(1), "one", lease)

    with requests(store) as small:
        put(store, own_name(2), "two", lease)
    with requests(store) as middle:
        put(store, own_name(3), "three", lease, size=kind.chunk // 8)
    with requests(store) as large:
        put(store, own_name(4), "four", lease, size=3 * kind.chunk // 4)

    assert small == (["_put"] if bucket else ["batch"])
    assert middle == (["_put"] * 2 if bucket else ["batch"])
    assert large == (["_put"] * 5 if bucket else ["batch", "batch"])
    lease.release()


def test_a_load_asks_for_no_more_than_it_needs(kind: Kind) -> None:
    store, bucket = kind.open(), isinstance(kind, InBucket)
    for name in ("best", own_name()):
        put(store, name, "one")
        path = put(store, f"l{name}", "one", size=5000)

        with requests(store) as small:
            read(store, f"{store.folder}/{name}")
        with requests(store) as large:
            read(store, path)

        assert len(small) <= (1 if bucket else 6)
        assert len(large) <= (3 if bucket else 6)


def test_what_a_head_holds_itself_is_bounded(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    store = kind.open()
    monkeypatch.setattr(type(store.driver), "inline", 4096)
    monkeypatch.setattr(keyed, "_INLINE", 20_000)
    lease = store.acquire("s")
    for number in range(12):
        put(store, own_name(number), "x", lease, size=4000)

    assert 15_000 < len(kind.head().encode()) < 26_000
    for number in range(12):
        assert read(store, own_name(number)) == ("x", b"x" * 4000, b"x")
    lease.release()


def test_many_of_a_session_are_deleted_in_one_change(kind: Kind) -> None:
    store, bucket = kind.open(), isinstance(kind, InBucket)
    own = [put(store, own_name(number), "one", size=kind.large) for number in range(5)]
    other = put(store, own_name(session="t"), "one")
    named = [put(store, f"best{number}", "one", size=kind.large) for number in range(3)]

    with requests(store) as made:
        assert store.delete_many([*own[:4], own[0], f"{store.folder}/never"]) == 4
    assert made == (["get", "get", "_put", "delete"] if bucket else ["get", "get", "batch"])

    assert store.delete_many([*own, other, *named[1:]]) == 4
    assert names(store) == ["best0"]
    assert len({key.split("/")[1] for key in kind.listed()}) == 1
    assert store.delete_many([]) == 0


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
    before = kind.listed()

    def fail(sink: Any) -> None:
        sink.write(b"x" * size)
        raise error("cannot be pickled")

    broken = [(name, fail if name == part else writer) for name, writer in parts("2", size=size)]
    for target, owner in ((path, None), (path, lease), (own_name(), lease)):
        with pytest.raises(error, match="cannot be pickled"):
            store.put(target, broken, lease=owner, stage="2")
    lease.release()

    assert read(store, path) == ("1", b"1" * size, b"1")
    assert kind.listed() == before


@NAMES
def test_what_a_writer_without_a_lease_has_left_is_cleared_away_after_a_day(
    store: CheckpointStore, kind: Kind, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    put(store, name, "one")
    before = kind.listed()
    with killed(other := kind.open(), at=2), suppress(Killed):
        put(other, name, "two", size=3 * kind.chunk)
    assert len(kind.listed()) > len(before)

    store.contents.sweep()
    assert len(kind.listed()) > len(before)
    monkeypatch.setattr(lease, "LIFE", -5.0)
    store.contents.sweep()

    assert kind.listed() == before


def test_an_owner_clears_away_nothing_of_those_who_are_alive(store: CheckpointStore, kind: Kind) -> None:
    other = store.acquire("t")
    (name, values), *rest = parts("1", size=kind.large)

    def slow(sink: Any) -> None:
        values(sink)
        store.acquire("s").release()
        store.acquire("s").release()

    for owner in (None, other):
        for path in (f"{store.folder}/best", f"{store.folder}/{own_name(session='t')}"):
            store.put(path, [(name, slow), *rest], lease=owner, stage="1")

            assert read(store, path) == ("1", b"1" * kind.large, b"1")
    other.release()


@only(*(kind for kind in KINDS if kind != "objects"))  # where a batch says what it needs
def test_chunks_that_are_gone_at_the_commit_make_no_checkpoint(store: CheckpointStore, kind: Kind) -> None:
    path = put(store, "best", "one")
    before = kind.listed()
    *rest, (name, meta) = parts("two", size=kind.large)

    def late(sink: Any) -> None:
        kind.driver.batch([], [key for key in kind.listed() if key not in before])
        meta(sink)

    lease = store.acquire("s")
    for owner in (None, lease):
        with pytest.raises(CheckpointError, match="not in the store any more"):
            store.put(path, [*rest, (name, late)], lease=owner, stage="two")
        assert read(store, path)[0] == "one"
    assert kind.listed() == before
    lease.release()


# --- at every point at which a writer can be stopped --------------------------------------


@NAMES
@ENDS
@SAVES
def test_a_writer_killed_anywhere_leaves_the_former_checkpoint_or_the_new_one_and_nothing_else(
    fresh: Callable[[], Any], kind: Kind, name: str, after: bool, save: Save
) -> None:
    found, done = [], False
    for at in range(MOST):
        victim = fresh()
        lease = victim.acquire("s", take_over=True)
        save.put(victim, name, f"old{at}", lease)
        with killed(victim, at, after=after), suppress(Killed):
            save.put(victim, name, f"new{at}", lease)
            done = True

        stage = save.stage(fresh(), name)
        assert stage in (f"old{at}", f"new{at}")
        found.append(stage[:3])

        left = kind.listed()
        fresh().acquire("t").release()  # another session's owner touches nothing of it
        assert kind.listed() == left
        new = fresh().acquire("s", take_over=True)  # clears away what the dead one has left
        assert save.stage(fresh(), name) == stage
        new.release()
        if name != "best":  # what is left there is nobody's, and goes after a day
            assert len({key.split("/")[2] for key in kind.listed() if key.count("/") < 4}) <= 1
            assert len(kept(kind)) == len(save.contents(stage))
            assert kind.head().pins == {}
        assert fresh().delete(name) is True
        if done:
            break

    assert done
    assert found == sorted(found, reverse=True)  # old until the commit, new from there on
    assert "new" in found


@NAMES
@ENDS
@pytest.mark.parametrize(
    ("size", "writes"), [(1, False), (40_000, False), (LARGE, True)], ids=["small", "large", "written over"]
)
def test_a_writer_stopped_anywhere_and_woken_after_a_takeover_commits_nothing(
    fresh: Callable[[], Any], name: str, after: bool, size: int, writes: bool
) -> None:
    ends = []
    for at in range(MOST):
        old, other = fresh(), fresh()
        lease = old.acquire("s", take_over=True)
        put(old, name, "before", lease)
        taken = []

        def take_over(other: Any = other, taken: list[str] = taken) -> None:
            new = other.acquire("s", take_over=True)
            taken.append(read(other, name)[0])  # what the new owner finds is what stays, or what it writes
            if writes:
                put(other, name, "newer", new)
            new.release()

        with happening(old, at, take_over, after=after) as point:
            try:
                put(old, name, "late", lease, size=size)
                ends.append("done")
            except Fenced:
                ends.append("fenced")

        if not point.happened:
            break
        assert taken[0] == ("late" if ends[-1] == "done" else "before")
        assert read(fresh(), name)[0] == ("newer" if writes else taken[0])

    assert not point.happened
    assert "fenced" in ends or (size == 1 and after)  # of one call, what comes after it comes too late


@NAMES
@pytest.mark.parametrize("save", [Save(LARGE), Save(1, holds=True)], ids=["large", "contents"])
def test_a_reply_lost_anywhere_is_asked_for_again(fresh: Callable[[], Any], name: str, save: Save) -> None:
    for at in range(MOST):
        store = fresh()
        lease = store.acquire("s", take_over=True)
        save.put(store, name, f"old{at}", lease)

        failed = True
        with happening(store, at, lost, after=True) as point, suppress(CheckpointError):
            save.put(store, name, f"new{at}", lease)
            failed = False

        assert save.stage(fresh(), name) in ([f"old{at}", f"new{at}"] if failed else [f"new{at}"])
        save.put(store, name, f"newer{at}", lease)
        assert save.stage(fresh(), name) == f"newer{at}"
        lease.release()
        if not point.happened:
            break

    assert not point.happened


@NAMES
def test_a_commit_whose_reply_is_lost_is_made_once(kind: Kind, name: str) -> None:
    store = kind.open(lease=600)
    lease = store.acquire("s")
    put(store, name, "one", lease)
    scope = scope_of(name.removesuffix(".pkl"))
    before = kind.head(scope).number

    for at in range(2):
        with happening(store, at, lost, after=True) as point:
            put(store, name, "two", lease)
        assert point.happened or at

    assert read(store, name) == ("two", b"two", b"two")
    assert kind.head(scope).number == before + 2
    lease.release()


@NAMES
@ENDS
def test_a_writer_that_is_interrupted_anywhere_takes_nothing_away_that_is_pointed_at(
    fresh: Callable[[], Any], kind: Kind, name: str, after: bool
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    for at in range(MOST):
        store = fresh()
        lease = store.acquire("s", take_over=True)
        put(store, name, "one", lease, size=kind.large)

        with happening(store, at, interrupt, after=after) as point, suppress(KeyboardInterrupt):
            put(store, name, "two", lease, size=kind.large)

        stage, values, state = read(fresh(), name)
        assert stage in ("one", "two")
        assert (values, state) == (stage.encode() * kind.large, stage.encode())
        if not point.happened:
            break

    assert not point.happened


@NAMES
@pytest.mark.parametrize("save", [Save(LARGE), Save(1, holds=True)], ids=["large", "contents"])
def test_a_save_that_was_carried_out_unheard_before_a_takeover_stays_whole(
    fresh: Callable[[], Any], name: str, save: Save
) -> None:
    found = []
    for at in range(MOST):
        old, other = fresh(), fresh()
        lease = old.acquire("s", take_over=True)
        save.put(old, name, f"old{at}", lease)

        def take_over(other: Any = other) -> None:
            other.acquire("s", take_over=True).release()
            raise ServerGone("the reply was lost")

        with happening(old, at, take_over, after=True) as point, suppress(CheckpointError, Fenced):
            save.put(old, name, f"new{at}", lease)
        fresh().contents.sweep()

        found.append(save.stage(fresh(), name)[:3])
        if not point.happened:
            break

    assert not point.happened
    assert {*found[:-1]} == {"old", "new"}


@NAMES
def test_a_save_that_arrives_after_it_was_given_up_and_the_session_taken_over_is_refused(
    fresh: Callable[[], Any], kind: Kind, name: str
) -> None:
    old = fresh()
    lease = old.acquire("s")
    put(old, name, "before", lease)
    batch, on_its_way = old.driver.batch, []

    def lose(*args: Any, **options: Any) -> object:
        if "late" not in str(args):
            return batch(*args, **options)
        on_its_way.append((args, options))
        raise ServerGone("no reply")

    with kind.impatient(0), pytest.MonkeyPatch.context() as patch:
        patch.setattr(old.driver, "batch", lose)
        with pytest.raises(SaveOutcomeUnknown):
            put(old, name, "late", lease)
    put(old, own_name(7), "next", lease)  # the session goes on
    new = fresh().acquire("s", take_over=True)

    assert on_its_way
    assert all(batch(*args, **options) is None for args, options in on_its_way)

    assert read(fresh(), name)[0] == "before"
    new.release()


@NAMES
@ENDS
def test_a_delete_ended_anywhere_leaves_a_whole_checkpoint_or_none(
    fresh: Callable[[], Any], kind: Kind, name: str, after: bool
) -> None:
    done = False
    for at in range(MOST):
        store = fresh()
        put(store, name, "one", size=kind.large)
        with killed(store, at, after=after), suppress(Killed):
            done = store.delete(name)

        try:
            assert read(fresh(), name) == ("one", b"one" * kind.large, b"one")
        except CheckpointNotFound:
            assert names(fresh()) == []
        if done:
            break
    assert done


def test_a_deleted_name_is_not_brought_back_by_a_late_writer(fresh: Callable[[], Any], kind: Kind) -> None:
    for at in range(4):
        old = fresh()
        lease = old.acquire("s", take_over=True)
        put(old, "best", "one", lease)

        def meanwhile() -> None:
            other = fresh()
            new = other.acquire("s", take_over=True)
            assert other.delete("best") is True
            new.release()

        with happening(old, at, meanwhile) as point, suppress(Fenced):
            put(old, "best", "late", lease, size=kind.large)
        assert names(fresh()) == ([] if point.happened else ["best"])


# --- a server that goes away -------------------------------------------------------------


@SERVERS
def test_a_save_whose_server_does_not_come_back_has_failed_and_the_next_one_has_not(
    store: CheckpointStore, kind: Kind
) -> None:
    with kind.proxy() as (proxy, behind), kind.impatient(0.2):
        far = kind.open(behind)
        path = put(far, "best", "one")
        (pkl, values), *rest = parts("two", size=kind.large)

        def lose(sink: Any) -> None:
            proxy.refuse()
            values(sink)

        with pytest.raises(
            CheckpointError, match=r"Cannot write the checkpoint .*cannot be reached"
        ) as failed:
            far.put(path, [(pkl, lose), *rest], lease=None, stage="two")

        assert not isinstance(failed.value, SaveOutcomeUnknown)
        assert "hunter2" not in f"{failed.value} {failed.value.ids} {failed.value.__cause__}"
        proxy.resume()
        assert read(far, "best")[0] == "one"
        put(far, "best", "three")
        assert read(far, "best")[0] == "three"


@SERVERS
def test_a_server_that_is_away_is_waited_for_as_long_whatever_it_is_asked_for(kind: Kind) -> None:
    assert lease.PATIENCE == 10  # as docs/stores.md says
    with kind.proxy() as (proxy, behind), kind.impatient(0.4):
        far = kind.open(behind)
        mine = far.acquire("s")
        segment = far.journal(mine, 0)
        put(far, "best", "one")
        proxy.refuse()

        for ask in (
            lambda: segment.append(b"one"),
            lambda: put(far, "best", "two", size=kind.large),
            lambda: put(far, "best", "two"),
        ):
            began = time.monotonic()
            with pytest.raises(GraflowError, match="cannot be reached"):
                ask()
            assert 0.4 <= time.monotonic() - began < 4
        proxy.resume()
        mine.release()


@SERVERS
def test_connections_that_were_cut_are_made_anew(kind: Kind) -> None:
    with kind.proxy() as (proxy, behind):
        far = kind.open(behind)
        for n in range(3):
            put(far, "best", f"{n}", size=kind.large)
            proxy.cut()
            assert read(far, "best")[0] == f"{n}"
            proxy.cut()
            assert len(list(far.list())) == 1


@only("postgres", "objects")
def test_a_reader_whose_reply_is_lost_asks_again(kind: Kind) -> None:
    with kind.proxy() as (proxy, behind):
        far = kind.open(behind)
        put(far, "best", "one", size=kind.large)

        for look in (lambda: read(far, "best")[0], lambda: json.loads(next(far.list())[1])["stage"]):
            proxy.drop_next_reply()
            assert look() == "one"
            assert proxy.dropped()


@SERVERS
def test_a_commit_that_is_not_confirmed_says_so(kind: Kind) -> None:
    with kind.proxy() as (proxy, behind):
        far = kind.open(behind)
        put(far, "best", "one")
        *rest, (name, meta) = parts("two")

        def lose(sink: Any) -> None:
            proxy.refuse()
            meta(sink)

        with kind.impatient(0.2), pytest.raises(SaveOutcomeUnknown, match="not confirmed"):
            far.put("best", [*rest, (name, lose)], lease=None, stage="two")
        proxy.resume()

        assert read(far, "best")[0] == "one"


@SERVERS
@pytest.mark.parametrize(("size", "key"), [(1, b"head/"), (1 << 15, b"head/"), (1 << 15, b"data/")])
def test_over_a_wire_a_write_whose_reply_is_lost_is_made_once(kind: Kind, size: int, key: bytes) -> None:
    with kind.proxy() as (proxy, behind):
        far = kind.open(behind)
        lease = far.acquire("s")
        for name in ("best", own_name()):
            put(far, name, "one", lease)
            proxy.drop_next_reply(key)

            put(far, name, "two", lease, size=size)

            assert proxy.dropped()
            assert read(far, name) == ("two", b"two" * size, b"two")
        lease.release()


@only(*REDIS, "postgres")
@pytest.mark.parametrize("how", ["cut off", "interrupted"])
def test_a_commit_that_is_never_confirmed_may_stand_and_nothing_of_it_is_taken_away(
    kind: Kind, how: str
) -> None:
    direct, main = kind.open(), threading.main_thread().ident
    assert main is not None
    stood: list[float] = []
    with kind.proxy() as (proxy, behind):
        store = kind.open(behind)
        put(store, "best", "one")

        def once_it_stands() -> None:
            while read(direct, "best")[0] != "two":
                time.sleep(0.005)
            stood.append(time.monotonic())
            proxy.refuse() if how == "cut off" else signal.pthread_kill(main, signal.SIGINT)

        proxy.hold_next_reply(b"two")
        watching = threading.Thread(target=once_it_stands)
        watching.start()
        unheard = SaveOutcomeUnknown if how == "cut off" else KeyboardInterrupt
        with kind.impatient(0.2), pytest.raises(unheard):
            put(store, "best", "two", size=kind.chunk // 8)
        watching.join()

        assert (
            time.monotonic() - stood[0] < 3
        )  # also an interruption does not wait for a server that says nothing
        assert read(direct, "best") == ("two", b"two" * (kind.chunk // 8), b"two")


@only("postgres", *REDIS)
def test_a_server_that_is_killed_in_the_middle_of_a_save_and_is_back_interrupts_nothing(
    store: CheckpointStore, kind: Kind
) -> None:
    lease = store.acquire("s")
    *rest, (name, meta) = parts("one", size=kind.large)
    (pkl, values), state = rest

    def again(sink: Any) -> None:
        values(sink)
        kind.server.restart()

    def and_again(sink: Any) -> None:
        kind.server.restart()
        meta(sink)

    store.put(own_name(), [(pkl, again), state, (name, and_again)], lease=lease, stage="one")

    assert read(store, own_name()) == ("one", b"one" * kind.large, b"one")
    lease.release()


# --- two at once -------------------------------------------------------------------------


@only(*FORKING)
def test_writers_and_readers_of_one_path_never_see_a_mixture(kind: Kind) -> None:
    reader, over = kind.open(), threading.Event()
    path = put(reader, "best", "a0")
    failed: list[BaseException] = []

    def write(name: str) -> None:
        store, n = kind.open(), 0
        try:
            while not over.is_set():
                n += 1
                put(store, "best", f"{name}{n}", size=1 + n % 3 * kind.chunk)
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
    assert kind.listed() == []
