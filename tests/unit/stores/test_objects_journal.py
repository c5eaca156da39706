"""Journal segments in a bucket: stopped anywhere, an append comes before a takeover or not at all."""

from __future__ import annotations

import pytest

from graflow_ckpt.core.errors import Fenced
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.objects_lease import close_segment
from tests.unit.stores.interruptions import happening
from tests.unit.stores.kinds import only

pytestmark = only("objects")


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
