"""Who owns a session in a bucket: one at a time, whatever clocks say and wherever it is stopped."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, Fenced, SessionBusy
from graflow_ckpt.core.protocols import Owner
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.objects_bucket import Bucket
from graflow_ckpt.stores.objects_lease import close_segment
from graflow_ckpt.stores.objects_names import head_key
from tests.unit.stores.interruptions import Killed, happening, killed, lost
from tests.unit.stores.kinds import InBucket, only
from tests.unit.stores.redis_trios import own_name, put, read

pytestmark = only("objects")
FAR = Owner(1, "1", "another boot", "1", "far", "train.py", "2026-01-01T00:00:00+00:00")


def test_a_busy_owner_is_taken_over_all_the_same(store: ObjectStore, objects_url: str) -> None:
    old = store.acquire("s")
    other = ObjectStore(objects_url)
    other.probe()

    def commit() -> None:  # between what the taker has read and what it writes
        put(store, own_name(), "one", old)

    with happening(other, 1, commit) as point:
        new = other.acquire("s", take_over=True)

    assert point.happened
    assert new.epoch == 2
    assert read(store, own_name())[0] == "one"
    new.release()


def test_of_two_that_take_over_at_once_one_is_refused_or_fenced(store: ObjectStore, objects_url: str) -> None:
    store.acquire("s")
    other = ObjectStore(objects_url)
    other.probe()
    won = []

    def be_faster() -> None:
        won.append(store.acquire("s", take_over=True))

    with happening(other, 1, be_faster), pytest.raises(SessionBusy):
        other.acquire("s", take_over=True)

    won[0].check()
    won[0].release()


def test_an_owner_elsewhere_that_was_silent_for_long_is_not_waited_for(
    store: ObjectStore, kind: InBucket
) -> None:
    kind.owned(0.0, **kind.far)
    while store.owner("s") is not None:
        time.sleep(0.1)  # the bucket's clock counts whole seconds

    assert store.acquire("s").epoch == 5


def test_a_clock_that_jumps_ahead_lets_nobody_write_who_was_taken_over(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = store.acquire("s")
    store._all.heads.update("s", lambda head: replace(head, owner=FAR))  # so that it is judged by the clock
    monkeypatch.setattr(Bucket, "now", lambda bucket: datetime.now(UTC) + timedelta(hours=5))
    put(store, own_name(1), "one", old)

    new = store.acquire("s")

    with pytest.raises(Fenced):
        put(store, own_name(2), "two", old)
    put(store, own_name(3), "three", new)
    assert len(list(store.list("s"))) == 2
    new.release()


def test_a_clock_that_jumps_back_takes_nothing_from_who_lives(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = store.acquire("s")
    store._all.heads.update("s", lambda head: replace(head, owner=FAR))
    monkeypatch.setattr(Bucket, "now", lambda bucket: datetime.now(UTC) - timedelta(hours=5))

    with pytest.raises(SessionBusy):
        store.acquire("s")

    put(store, own_name(1), "one", old)
    old.release()


def test_the_owner_shows_itself_while_it_lives(store: ObjectStore) -> None:
    lease = store.acquire("s")
    deadline = time.monotonic() + 10
    while not list(store._all.bucket.list("alive/s")):
        assert time.monotonic() < deadline
        time.sleep(0.05)

    lease.release()

    assert list(store._all.bucket.list("alive/s")) == []


def test_a_session_whose_head_is_gone_is_not_written_by_its_owner(store: ObjectStore) -> None:
    lease = store.acquire("s")
    put(store, own_name(), "one", lease, size=20_000)
    store._all.bucket.delete([head_key("s")])

    with pytest.raises(Fenced, match="has forgotten session 's'"):
        put(store, own_name(2), "two", lease)

    assert store.acquire("s").epoch == 2  # never one that was given out


@pytest.mark.parametrize("left", ["a frame", "nothing"])
def test_a_session_that_has_lost_everything_has_one_owner_still(store: ObjectStore, left: str) -> None:
    old = store.acquire("s")
    segment = store.journal(old, 0)
    if left == "a frame":
        segment.append(b"frame")
    bucket = store._all.bucket
    bucket.delete([head_key("s"), *(entry.key for entry in bucket.list("alive"))])

    new = store.acquire("s")

    assert new.epoch == (2 if left == "a frame" else 1)
    with pytest.raises(Fenced, match=r"forgotten|taken over"):
        put(store, own_name(), "late", old)
    put(store, own_name(), "one", new)
    new.release()


def test_a_damaged_head_is_said_to_be_one(store: ObjectStore) -> None:
    store._all.bucket.put(head_key("s"), b'{"epoch": 3')

    for call in (lambda: store.acquire("s"), lambda: list(store.list("s"))):
        with pytest.raises(CheckpointCorrupt, match="who owns session 's' is damaged"):
            call()


def test_a_claim_whose_reply_is_lost_is_made_once(store: ObjectStore, objects_url: str) -> None:
    for at in range(8):
        mine = ObjectStore(objects_url)
        mine.probe()
        with happening(mine, at, lost, after=True):
            lease = mine.acquire("s")

        assert lease.epoch == at + 1
        lease.check()
        lease.release()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_who_dies_while_it_acquires_is_no_trouble_for_the_next(
    store: ObjectStore, objects_url: str, after: bool
) -> None:
    first = store.acquire("s")
    put(store, "best", "one", first)
    segment = store.journal(first, 0)
    segment.append(b"frame")
    epochs = [1]
    for at in range(12):
        victim = ObjectStore(objects_url)
        victim.probe()
        with killed(victim, at, after=after), suppress(Killed):
            victim.acquire("s", take_over=True)

        lease = store.acquire("s", take_over=True)

        assert lease.epoch > epochs[-1]
        epochs.append(lease.epoch)
        put(store, "best", str(at), lease)
        assert read(store, "best")[0] == str(at)
        with pytest.raises(Fenced):
            segment.append(b"late")
        segment = store.journal(lease, at + 1)
        segment.append(b"frame")
        with pytest.raises(Fenced):
            put(store, "best", "late", first)
        first = lease

    assert [raw for _, _, raw in store.segments("s")] == [b"frame"] * 13
    first.release()


# --- the journal ------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_who_is_stopped_while_it_appends_has_appended_before_the_takeover_or_not_at_all(
    store: ObjectStore, objects_url: str, after: bool
) -> None:
    for at in range(6):
        lease = store.acquire("s", take_over=True)
        segment = store.journal(lease, at)
        segment.append(b"one")
        found: list[bytes] = []

        def take_over(found: list[bytes] = found) -> None:
            other = ObjectStore(objects_url)
            new = other.acquire("s", take_over=True)
            found.append(list(other.segments("s"))[-1][2])  # what the new owner goes on from
            new.release()

        with happening(store, at, take_over, after=after) as point:
            try:
                segment.append(b"two")
                appended = True
            except Fenced:
                appended = False
        if not point.happened:
            break
        assert found == [b"onetwo" if appended else b"one"]
        assert list(store.segments("s"))[-1][2] == found[0]

    assert not point.happened


def test_a_former_owner_finds_its_number_taken_also_when_its_segment_was_dropped(store: ObjectStore) -> None:
    lease = store.acquire("s")
    segment = store.journal(lease, 0)
    segment.append(b"one")
    new = store.acquire("s", take_over=True)
    store.journal(new, 5).append(b"x")
    store.drop_segments("s", 5)
    assert list(store.segments("s")) == [(2, 5, b"x")]

    with pytest.raises(Fenced):
        segment.append(b"two")

    assert list(store.segments("s")) == [(2, 5, b"x")]
    new.release()


def test_a_segment_is_closed_once_however_often_that_is_tried(store: ObjectStore) -> None:
    lease = store.acquire("s")
    segment = store.journal(lease, 0)
    segment.append(b"one")

    assert [close_segment(store._all.bucket, "s", segment.key.rpartition("/")[2]) for _ in range(3)] == [
        1,
        1,
        1,
    ]
    assert list(store.segments("s")) == [(1, 0, b"one")]
    lease.release()
