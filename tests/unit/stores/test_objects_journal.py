"""Journal segments in a bucket: a frame is there once, by the owner, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from graflow_ckpt.core.errors import Fenced, JournalFailed
from graflow_ckpt.stores import objects_bucket
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.objects_journal import close_segment
from graflow_ckpt.stores.objects_lease import ObjectLease
from tests.object_servers import ObjectServer
from tests.proxy import Proxy
from tests.unit.stores.interruptions import happening
from tests.unit.stores.leases import OwnedSegments


@pytest.fixture
def store(objects_url: str) -> ObjectStore:
    return ObjectStore(objects_url)


@pytest.fixture
def lease(store: ObjectStore) -> Iterator[ObjectLease]:
    lease = store.acquire("s")
    yield lease
    lease.release()


class TestOwnedSegments(OwnedSegments):
    """In a bucket."""


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


def test_a_former_owner_finds_its_number_taken_also_when_its_segment_was_dropped(
    store: ObjectStore, lease: ObjectLease
) -> None:
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


def test_a_segment_is_closed_once_however_often_that_is_tried(store: ObjectStore, lease: ObjectLease) -> None:
    segment = store.journal(lease, 0)
    segment.append(b"one")

    assert [close_segment(store._all.bucket, "s", segment.key.rpartition("/")[2]) for _ in range(3)] == [
        1,
        1,
        1,
    ]
    assert list(store.segments("s")) == [(1, 0, b"one")]


def test_an_append_whose_reply_is_lost_is_there_once(object_server: ObjectServer, objects_url: str) -> None:
    with Proxy(object_server) as proxy:
        far = ObjectStore(object_server.at("lost-append", proxy.port))
        lease = far.acquire("s")
        segment = far.journal(lease, 0)
        segment.append(b"one")
        proxy.drop_next_reply(b"journal")

        segment.append(b"two")
        segment.append(b"three")

        assert proxy.dropped()
        assert list(far.segments("s")) == [(1, 0, b"onetwothree")]
        lease.release()


def test_an_append_that_is_not_confirmed_is_the_last(
    object_server: ObjectServer, objects_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_bucket, "PATIENCE", 0.1)
    with Proxy(object_server) as proxy:
        far = ObjectStore(object_server.at("last-append", proxy.port))
        lease = far.acquire("s")
        segment = far.journal(lease, 0)
        proxy.refuse()

        with pytest.raises(JournalFailed, match=r"journal/s/1-0.* cannot be reached"):
            segment.append(b"one")
        proxy.resume()
        with pytest.raises(JournalFailed, match="closed"):
            segment.append(b"one")

        assert list(far.segments("s")) == [(1, 0, b"")]
        lease.release()


def test_another_writer_of_the_same_segment_is_noticed(store: ObjectStore, lease: ObjectLease) -> None:
    segment = store.journal(lease, 0)
    segment.append(b"one")
    store._all.bucket.put(f"{segment.key}/0000000001", b"other")

    with pytest.raises(JournalFailed, match="another writer"):
        segment.append(b"two")


def test_what_ends_before_is_dropped(store: ObjectStore, lease: ObjectLease) -> None:
    for after in (0, 5, 9):
        store.journal(lease, after).append(b"x")

    for before, left in ((5, [5, 9]), (8, [5, 9]), (2**62, [9])):
        store.drop_segments("s", before)
        assert [after for _, after, _ in store.segments("s")] == left

    assert len(list(store._all.bucket.list("journal"))) == 1
    store.drop_segments("other", 5)


def test_a_closed_segment_takes_nothing(store: ObjectStore, lease: ObjectLease) -> None:
    segment = store.journal(lease, 0)
    segment.close()
    calls: list[Callable[[], object]] = [lambda: segment.append(b"one")]
    lease.release()
    calls.append(lambda: store.journal(lease, 1))

    with pytest.raises(JournalFailed, match="closed"):
        calls[0]()
    with pytest.raises(Fenced, match="released"):
        calls[1]()
