"""Journal segments in keyed stores: a frame is there once, by the owner, or not at all.

Not here: what every store promises (tests/conformance).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from graflow_ckpt.core.errors import Fenced, JournalFailed
from graflow_ckpt.core.protocols import CheckpointStore, Lease
from tests.unit.stores.interruptions import happening, lost
from tests.unit.stores.kinds import REDIS, SERVERS, InBucket, Kind, only
from tests.unit.stores.texts import own_name, put


@pytest.fixture
def lease(store: CheckpointStore) -> Iterator[Lease]:
    lease = store.acquire("s")
    yield lease
    lease.release()


# --- frames and segments -----------------------------------------------------------------


def test_many_frames_are_read_in_pages_and_dropped_in_steps(
    store: CheckpointStore, lease: Lease, kind: Kind
) -> None:
    store.journal(lease, 0).append(b"0,")
    count = 250 if isinstance(kind, InBucket) else 1100
    kind.append(*(b"%d," % n for n in range(1, count)))
    store.journal(lease, 5).append(b"next")

    assert next(store.segments("s")) == (1, 0, b"".join(b"%d," % n for n in range(count)))
    store.drop_segments("s", 5)
    assert [found[:2] for found in store.segments("s")] == [(1, 5)]
    assert len(kind.listed("journal/")) <= 3


def test_two_writers_of_one_segment_do_not_mix(store: CheckpointStore, lease: Lease) -> None:
    one, two = store.journal(lease, 3), store.journal(lease, 3)
    one.append(b"one")

    with pytest.raises(JournalFailed, match="another writer"):
        two.append(b"two")

    one.append(b"more")
    assert list(store.segments("s")) == [(1, 3, b"onemore")]


# --- who may not append, and what a server does ------------------------------------------


@only("postgres", *REDIS)
def test_what_was_appended_survives_the_servers_death(
    store: CheckpointStore, lease: Lease, kind: Kind
) -> None:
    segment = store.journal(lease, 0)
    segment.append(b"one")

    kind.server.restart()

    segment.append(b"two")
    kind.server.restart()
    assert list(store.segments("s")) == [(1, 0, b"onetwo")]


@SERVERS
def test_an_append_whose_reply_is_lost_is_there_once(store: CheckpointStore, kind: Kind) -> None:
    with kind.proxy() as (proxy, behind):
        far = kind.open(behind)
        lease = far.acquire("s")
        segment = far.journal(lease, 0)
        segment.append(b"one")
        proxy.drop_next_reply(b"two")

        segment.append(b"two")
        segment.append(b"three")

        assert proxy.dropped()
        assert list(store.segments("s")) == [(1, 0, b"onetwothree")]
        lease.release()


@SERVERS
def test_an_append_that_is_not_confirmed_is_the_last(store: CheckpointStore, kind: Kind) -> None:
    with kind.proxy() as (proxy, behind), kind.impatient(0.1):
        far = kind.open(behind)
        lease = far.acquire("s")
        segment = far.journal(lease, 0)
        proxy.refuse()

        with pytest.raises(JournalFailed, match=r"journal/s/.* cannot be reached"):
            segment.append(b"one")
        proxy.resume()
        with pytest.raises(JournalFailed, match="closed"):
            segment.append(b"one")

        assert [raw for *_, raw in store.segments("s") if raw] == []
        lease.release()


@only("objects")
def test_to_take_over_lists_as_often_after_many_segments_as_after_one(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = kind.open()
    pages, asked = store.bucket._pages, list[str]()

    def listed(prefix: str, after: str | None) -> Iterator[Sequence[object]]:
        asked.append(prefix)
        return iter(pages(prefix, after))

    monkeypatch.setattr(store.bucket, "_pages", listed)
    counts = []
    for number in range(5):
        asked.clear()
        lease = store.acquire("s")
        counts.append(len(asked))
        store.journal(lease, number).append(b"frame")
        lease.release()

    assert counts[1:] == [counts[1]] * 4
    assert [raw for _, _, raw in store.segments("s")] == [b"frame"] * 5


# --- at every point at which an append can be stopped ------------------------------------


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_who_is_stopped_while_it_appends_has_appended_before_the_takeover_or_not_at_all(
    kind: Kind, after: bool
) -> None:
    store = kind.open(lease=600)
    for at in range(6):
        lease = store.acquire("s", take_over=True)
        segment = store.journal(lease, at)
        segment.append(b"one")
        found: list[bytes] = []

        def take_over(found: list[bytes] = found) -> None:
            other = kind.open(lease=600)
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


def test_an_append_whose_reply_is_lost_anywhere_is_there_once(kind: Kind) -> None:
    store = kind.open(lease=600)
    lease = store.acquire("s")
    segment, at, happened = store.journal(lease, 0), 0, True
    while happened:
        with happening(store, at, lost, after=True) as point:
            segment.append(b"%d;" % at)
        at, happened = at + 1, point.happened

    assert list(store.segments("s")) == [(1, 0, b"".join(b"%d;" % n for n in range(at)))]
    lease.release()


def test_an_owner_that_appends_and_one_that_prunes_do_not_disturb_each_other(kind: Kind) -> None:
    store, other = kind.open(lease=600), kind.open(lease=600)
    lease = store.acquire("s")
    for number in range(8):
        put(store, own_name(number), "x", lease)
    segment = store.journal(lease, 0)

    for number in range(8):
        with happening(store, 0, lambda number=number: other.delete(own_name(number))):
            segment.append(b"%d" % number)

    assert list(store.segments("s")) == [(1, 0, b"01234567")]
    assert list(store.list()) == []
    lease.release()


def test_a_former_owner_finds_its_number_taken_also_when_its_segment_was_dropped(kind: Kind) -> None:
    store = kind.open(lease=600)
    segment = store.journal(store.acquire("s"), 0)
    segment.append(b"one")
    new = store.acquire("s", take_over=True)
    store.journal(new, 5).append(b"x")
    store.drop_segments("s", 5)
    assert list(store.segments("s")) == [(2, 5, b"x")]

    with pytest.raises(Fenced):
        segment.append(b"two")

    assert list(store.segments("s")) == [(2, 5, b"x")]
    new.release()
