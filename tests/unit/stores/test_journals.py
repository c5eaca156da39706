"""Journal segments in databases, servers and buckets: a frame is there once, by the owner, or not at all.

Not here: what one kind of store alone can be brought to (test_sqlite_lease.py and test_objects_lease.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from graflow_ckpt.core.errors import CheckpointError, Fenced, JournalFailed
from graflow_ckpt.core.protocols import CheckpointStore, Lease
from graflow_ckpt.stores.redis import RedisStore
from tests.servers import Server
from tests.unit.stores.kinds import REDIS, InPostgres, Kind, only


@pytest.fixture
def lease(store: CheckpointStore) -> Iterator[Lease]:
    lease = store.acquire("s")
    yield lease
    lease.release()


# --- frames and segments -----------------------------------------------------------------


def test_frames_are_read_in_order_segment_by_segment(store: CheckpointStore, lease: Lease) -> None:
    for after in (0, 10, 9):
        segment = store.journal(lease, after)
        for n in range(12):
            segment.append(f"{after}.{n} ".encode())
        segment.close()
    store.journal(lease, 11)

    assert list(store.segments("s")) == [
        *((1, after, b"".join(b"%d.%d " % (after, n) for n in range(12))) for after in (0, 9, 10)),
        (1, 11, b""),
    ]
    assert list(store.segments("other")) == []


FRAMES = [b"", b"\0\xff%s'\\", b"\0" * 3, bytes(range(256)) * 5000, b"x" * (5 << 20)]


@pytest.mark.parametrize("frame", FRAMES, ids=["none", "odd", "zeros", "all", "large"])
def test_a_frame_is_any_bytes(store: CheckpointStore, lease: Lease, frame: bytes) -> None:
    segment = store.journal(lease, 7)

    for appended in (b"a", frame, b"end"):
        segment.append(appended)

    assert list(store.segments("s")) == [(1, 7, b"a" + frame + b"end")]


@only("sqlite", "postgres", *REDIS)
def test_many_frames_are_read_in_pages_and_dropped_in_steps(
    store: CheckpointStore, lease: Lease, kind: Kind
) -> None:
    store.journal(lease, 0).append(b"0,")
    kind.append(*(b"%d," % n for n in range(1, 2501)))
    store.journal(lease, 5)

    assert next(store.segments("s")) == (1, 0, b"".join(b"%d," % n for n in range(2501)))
    store.drop_segments("s", 5)
    assert kind.frames() == 0


def test_a_segment_without_frames_may_be_opened_again_one_with_frames_not(
    store: CheckpointStore, lease: Lease
) -> None:
    store.journal(lease, 3).close()
    store.journal(lease, 3).append(b"one")

    with pytest.raises(JournalFailed, match="has records already"):
        store.journal(lease, 3)
    assert list(store.segments("s")) == [(1, 3, b"one")]


def test_two_writers_of_one_segment_do_not_mix(store: CheckpointStore, lease: Lease) -> None:
    one, two = store.journal(lease, 3), store.journal(lease, 3)
    one.append(b"one")

    with pytest.raises(JournalFailed):
        two.append(b"two")

    one.append(b"more")
    assert list(store.segments("s")) == [(1, 3, b"onemore")]


@only("postgres", "objects", *REDIS)
def test_another_writer_of_the_same_segment_is_noticed(
    store: CheckpointStore, lease: Lease, kind: Kind
) -> None:
    segment = store.journal(lease, 0)
    segment.append(b"one")
    kind.append(b"other")

    with pytest.raises(JournalFailed, match="another writer"):
        segment.append(b"two")


@only("postgres")
def test_a_frame_that_has_another_number_now_is_noticed(
    store: CheckpointStore, lease: Lease, kind: InPostgres
) -> None:
    segment = store.journal(lease, 0)
    segment.append(b"one")
    kind.ask("update graflow_ckpt.frames set number = 7")

    with pytest.raises(JournalFailed, match="another writer"):
        segment.append(b"two")


def test_what_ends_before_is_dropped(store: CheckpointStore, lease: Lease, kind: Kind) -> None:
    for after in (0, 5, 9):
        store.journal(lease, after).append(b"x")

    for before, left in ((5, [5, 9]), (8, [5, 9]), (2**62, [9])):
        store.drop_segments("s", before)
        assert [after for _, after, _ in store.segments("s")] == left

    assert kind.frames() == 1
    store.drop_segments("other", 5)


def test_segments_are_dropped_when_a_later_one_of_any_epoch_covers_them(store: CheckpointStore) -> None:
    for epoch, afters in ((1, (0, 30, 9)), (2, (12, 40))):
        lease = store.acquire("s")
        for after in afters:
            store.journal(lease, after).append(f"{epoch}.{after}".encode())
        lease.release()
    other = store.acquire("t")
    store.journal(other, 0).append(b"t")
    other.release()

    assert [segment[:2] for segment in store.segments("s")] == [(1, 0), (1, 9), (1, 30), (2, 12), (2, 40)]

    store.drop_segments("s", 12)
    assert list(store.segments("s")) == [(1, 9, b"1.9"), (2, 12, b"2.12"), (2, 40, b"2.40")]
    store.drop_segments("s", 2**62)
    assert list(store.segments("s")) == [(2, 40, b"2.40")]
    assert list(store.segments("t")) == [(1, 0, b"t")]


def test_threads_that_append_do_not_lose_frames(store: CheckpointStore, lease: Lease) -> None:
    segment = store.journal(lease, 0)

    def work(name: bytes) -> None:
        for _ in range(25):
            segment.append(name)

    threads = [threading.Thread(target=work, args=[name]) for name in (b"a", b"b", b"c", b"d")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    ((_, _, raw),) = store.segments("s")
    assert sorted(raw) == sorted(b"abcd" * 25)


# --- who may not append, and what a server does ------------------------------------------


def test_who_was_fenced_appends_nothing(store: CheckpointStore, lease: Lease) -> None:
    segment = store.journal(lease, 0)
    segment.append(b"one")
    new = store.acquire("s", take_over=True)

    for call in (lambda: segment.append(b"two"), lambda: store.journal(lease, 5)):
        with pytest.raises(Fenced, match="taken over"):
            call()
    with pytest.raises(JournalFailed, match="closed"):
        segment.append(b"two")

    assert list(store.segments("s")) == [(1, 0, b"one")]
    new.release()


def test_a_closed_segment_takes_nothing(store: CheckpointStore, lease: Lease) -> None:
    segment = store.journal(lease, 0)
    segment.close()
    segment.close()

    with pytest.raises(JournalFailed, match="closed"):
        segment.append(b"one")


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


@only("postgres", "objects", *REDIS)
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


@only("postgres", "objects", *REDIS)
def test_an_append_that_is_not_confirmed_is_the_last(store: CheckpointStore, kind: Kind) -> None:
    with kind.proxy() as (proxy, behind), kind.impatient(0.1):
        far = kind.open(behind)
        lease = far.acquire("s")
        segment = far.journal(lease, 0)
        proxy.refuse()

        with pytest.raises(JournalFailed, match=f"{kind.segment}.* cannot be reached"):
            segment.append(b"one")
        proxy.resume()
        with pytest.raises(JournalFailed, match="closed"):
            segment.append(b"one")

        assert list(store.segments("s")) == [(1, 0, b"")]
        lease.release()


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"appendonly": "yes", "appendfsync": "everysec"},
        {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "yes"},
    ],
)
def test_a_redis_that_confirms_what_is_not_on_its_disk_keeps_no_journal(
    own_redis: Callable[..., Server], config: dict[str, str]
) -> None:
    store = RedisStore(own_redis(config).url)
    lease = store.acquire("s")

    with pytest.raises(CheckpointError, match="appendfsync always"):
        store.journal(lease, 0)

    lease.release()
