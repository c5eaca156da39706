"""The trio in a bucket: whole or not at all, at every point at which its writer can be stopped or killed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import pytest

from graflow_ckpt.core.errors import (
    CheckpointError,
    CheckpointNotFound,
    Fenced,
    SaveOutcomeUnknown,
    ServerGone,
)
from graflow_ckpt.stores import objects_bucket
from graflow_ckpt.stores.objects import ObjectStore
from tests.unit.stores.interruptions import Killed, happening, killed, lost
from tests.unit.stores.redis_trios import own_name, put, read

LARGE = 10_000  # times its text: more than what goes with the record
NAMES = pytest.mark.parametrize("name", ["best", own_name()])
ENDS = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
SIZES = pytest.mark.parametrize("size", [1, LARGE], ids=["small", "large"])
MOST = 14  # operations; that no write has more is asserted


@pytest.fixture
def fresh(objects_url: str) -> Callable[[], ObjectStore]:
    """Another process's view of the same store."""
    return lambda: ObjectStore(objects_url)


def data(store: ObjectStore) -> set[str]:
    return {entry.key.rpartition("/")[0] for entry in store._all.bucket.list("data")}


@NAMES
@ENDS
@SIZES
def test_a_writer_killed_anywhere_leaves_the_former_checkpoint_or_the_new_one(
    fresh: Callable[[], ObjectStore], name: str, after: bool, size: int
) -> None:
    found = []
    for at in range(MOST):
        victim = fresh()
        lease = victim.acquire("s", take_over=True)
        put(victim, name, f"old{at}", lease, size=size)
        done = False
        with killed(victim, at, after=after), suppress(Killed):
            put(victim, name, f"new{at}", lease, size=size)
            done = True

        stage, values, state = read(fresh(), name)
        assert stage in (f"old{at}", f"new{at}")
        assert (values, state) == (stage.encode() * size, stage.encode())
        found.append(stage[:3])

        new = fresh().acquire("s", take_over=True)  # clears away what the dead one has left
        assert read(fresh(), name)[0] == stage
        assert len(data(fresh())) == (size == LARGE)
        new.release()
        assert fresh().delete(name) is True
        assert data(fresh()) == set()
        if done:
            break

    assert done
    assert found == sorted(found, reverse=True)  # old until the commit, new from there on
    assert "new" in found
    assert "old" in found or (size == 1 and after)  # of one put, what comes after it is the new one


@NAMES
@ENDS
@SIZES
def test_a_writer_stopped_anywhere_and_woken_after_a_takeover_commits_nothing(
    fresh: Callable[[], ObjectStore], name: str, after: bool, size: int
) -> None:
    ends = []
    for at in range(MOST):
        old, other = fresh(), fresh()
        lease = old.acquire("s", take_over=True)
        put(old, name, "before", lease)
        taken = []

        def take_over(other: ObjectStore = other, taken: list[str] = taken) -> None:
            new = other.acquire("s", take_over=True)
            taken.append(read(other, name)[0])  # what the new owner finds is what stays
            new.release()

        with happening(old, at, take_over, after=after) as point:
            try:
                put(old, name, "late", lease, size=size)
                ends.append("done")
            except Fenced:
                ends.append("fenced")

        if not point.happened:
            break
        assert read(fresh(), name)[0] == taken[0]
        assert taken[0] == ("late" if ends[-1] == "done" else "before")

    assert not point.happened
    assert "fenced" in ends or (size == 1 and after)  # likewise: it comes too late


@NAMES
@ENDS
def test_a_writer_stopped_anywhere_does_not_overwrite_what_the_next_owner_has_written(
    fresh: Callable[[], ObjectStore], name: str, after: bool
) -> None:
    for at in range(MOST):
        old, other = fresh(), fresh()
        lease = old.acquire("s", take_over=True)

        def go_on(other: ObjectStore = other) -> None:
            new = other.acquire("s", take_over=True)
            put(other, name, "newer", new)
            new.release()

        with happening(old, at, go_on, after=after) as point, suppress(Fenced):
            put(old, name, "late", lease, size=LARGE)

        if not point.happened:
            break
        assert read(fresh(), name) == ("newer", b"newer", b"newer")
        assert fresh().delete(name) is True

    assert not point.happened


@NAMES
def test_a_reply_lost_anywhere_changes_nothing(fresh: Callable[[], ObjectStore], name: str) -> None:
    for at in range(MOST):
        store = fresh()
        lease = store.acquire("s", take_over=True)
        put(store, name, "one", lease)

        with happening(store, at, lost, after=True) as point, suppress(CheckpointError):
            put(store, name, "two", lease, size=LARGE)

        if not point.happened:
            break
        assert read(fresh(), name)[0] in ("one", "two")
        put(store, name, "three", lease)
        assert read(fresh(), name)[0] == "three"
        lease.release()

    assert not point.happened


@NAMES
@ENDS
def test_a_writer_that_is_interrupted_anywhere_takes_nothing_away_that_is_pointed_at(
    fresh: Callable[[], ObjectStore], name: str, after: bool
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    for at in range(MOST):
        store = fresh()
        lease = store.acquire("s", take_over=True)
        put(store, name, "one", lease, size=LARGE)

        with happening(store, at, interrupt, after=after) as point, suppress(KeyboardInterrupt):
            put(store, name, "two", lease, size=LARGE)

        stage, values, state = read(fresh(), name)
        assert stage in ("one", "two")
        assert (values, state) == (stage.encode() * LARGE, stage.encode())
        fresh().acquire("s", take_over=True).release()
        assert len(data(fresh())) == 1
        if not point.happened:
            break

    assert not point.happened


@NAMES
def test_a_save_that_was_carried_out_unheard_before_a_takeover_stays_whole(
    fresh: Callable[[], ObjectStore], name: str
) -> None:
    found = []
    for at in range(MOST):
        old, other = fresh(), fresh()
        lease = old.acquire("s", take_over=True)
        put(old, name, "before", lease, size=LARGE)

        def take_over(other: ObjectStore = other) -> None:
            other.acquire("s", take_over=True).release()
            raise ServerGone("the reply was lost")

        with happening(old, at, take_over, after=True) as point, suppress(CheckpointError, Fenced):
            put(old, name, "late", lease, size=LARGE)

        if not point.happened:
            break
        found.append(read(fresh(), name)[0])
        assert read(fresh(), name) == (found[-1], found[-1].encode() * LARGE, found[-1].encode())

    assert not point.happened
    assert set(found) == {"before", "late"}


def test_a_save_that_arrives_after_it_was_given_up_and_the_session_taken_over_is_refused(
    fresh: Callable[[], ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_bucket, "PATIENCE", 0)
    old = fresh()
    lease = old.acquire("s")
    put(old, "best", "before", lease)
    bucket = old._all.bucket
    swap = bucket.swap
    on_its_way: list[tuple[str, bytes, objects_bucket.Tag | None]] = []

    def lose(key: str, data: bytes, tag: objects_bucket.Tag | None) -> objects_bucket.Tag | None:
        if not key.startswith("names/"):
            return swap(key, data, tag)
        on_its_way.append((key, data, tag))
        raise ServerGone("no reply")

    monkeypatch.setattr(bucket, "swap", lose)
    with pytest.raises(SaveOutcomeUnknown):
        put(old, "best", "late", lease)
    put(old, own_name(), "next", lease)  # the session goes on
    new = fresh().acquire("s", take_over=True)

    assert swap(*on_its_way[0]) is None

    assert read(fresh(), "best")[0] == "before"
    new.release()


@NAMES
@ENDS
def test_a_delete_ended_anywhere_leaves_a_whole_checkpoint_or_none(
    fresh: Callable[[], ObjectStore], name: str, after: bool
) -> None:
    for at in range(MOST):
        store = fresh()
        put(store, name, "one", size=LARGE)
        done = False
        with killed(store, at, after=after), suppress(Killed):
            done = store.delete(name)

        try:
            assert read(fresh(), name) == ("one", b"one" * LARGE, b"one")
        except CheckpointNotFound:
            assert [path for path, _ in fresh().list()] == []
        if done:
            break
    assert done


@NAMES
def test_threads_that_write_one_name_leave_one_of_their_checkpoints_whole(
    fresh: Callable[[], ObjectStore], name: str
) -> None:
    store = fresh()

    def write(who: int) -> None:
        for n in range(8):
            put(store, name, f"{who}.{n}", size=LARGE)

    threads = [Thread(target=write, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    stage, values, state = read(fresh(), name)
    assert (values, state) == (stage.encode() * LARGE, stage.encode())
    assert stage.endswith(".7")
    assert len(data(store)) == 1


def test_a_deleted_name_is_not_brought_back_by_a_late_writer(fresh: Callable[[], ObjectStore]) -> None:
    old = fresh()
    lease = old.acquire("s")
    put(old, "best", "one", lease)

    def meanwhile() -> None:
        other = fresh()
        new = other.acquire("s", take_over=True)
        assert other.delete("best") is True
        new.release()

    for at in range(4):  # looking, announcing, a piece, the commit
        with happening(old, at, meanwhile) as point, pytest.raises(Fenced):
            put(old, "best", "late", lease, size=LARGE)
        assert point.happened
        assert list(fresh().list()) == []
        lease = old.acquire("s", take_over=True)
        put(old, "best", "one", lease)
    lease.release()
