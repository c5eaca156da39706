"""Journal segments in Redis: appended once, by the owner, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from graflow_ckpt.core.errors import CheckpointError, Fenced, JournalFailed
from graflow_ckpt.stores import redis_scripts
from graflow_ckpt.stores.redis import RedisStore
from graflow_ckpt.stores.redis_journal import open_segment
from graflow_ckpt.stores.redis_lease import RedisLease
from tests.proxy import Proxy
from tests.servers import Server
from tests.unit.stores.leases import OwnedSegments


@pytest.fixture(scope="module")
def durable() -> Iterator[Server]:
    with Server({"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def store(durable: Server) -> RedisStore:
    durable.ask("FLUSHALL")
    return RedisStore(durable.url)


@pytest.fixture
def lease(store: RedisStore) -> Iterator[RedisLease]:
    lease = store.acquire("s")
    yield lease
    lease.release()


class TestOwnedSegments(OwnedSegments):
    """In Redis."""


def test_many_frames_are_read_in_pages(store: RedisStore, lease: RedisLease) -> None:
    segment = store.journal(lease, 0)
    frames = [b"%d," % n for n in range(1100)]
    for frame in frames:
        segment.append(frame)

    assert list(store.segments("s")) == [(1, 0, b"".join(frames))]


def test_what_was_appended_survives_the_servers_death(
    durable: Server, store: RedisStore, lease: RedisLease
) -> None:
    segment = store.journal(lease, 0)
    segment.append(b"one")

    durable.restart()

    segment.append(b"two")
    durable.restart()
    assert list(store.segments("s")) == [(1, 0, b"onetwo")]


def test_an_append_whose_reply_is_lost_is_there_once(durable: Server, store: RedisStore) -> None:
    with Proxy(durable) as proxy:
        far = RedisStore(proxy.url)
        lease = far.acquire("s")
        segment = far.journal(lease, 0)
        segment.append(b"one")
        proxy.drop_next_reply(b"two")

        segment.append(b"two")
        segment.append(b"three")

        assert proxy.dropped()
        assert list(store.segments("s")) == [(1, 0, b"onetwothree")]
        lease.release()


def test_an_append_that_is_not_confirmed_is_the_last(
    durable: Server, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_scripts, "PATIENCE", 0.1)
    with Proxy(durable) as proxy:
        far = RedisStore(proxy.url)
        lease = far.acquire("s")
        segment = far.journal(lease, 0)
        proxy.refuse()

        with pytest.raises(JournalFailed, match=r"graflow:ck:\{s\}:journal:1:0.* cannot be reached"):
            segment.append(b"one")
        proxy.resume()
        with pytest.raises(JournalFailed, match="closed"):
            segment.append(b"one")

        assert list(store.segments("s")) == [(1, 0, b"")]
        lease.release()


def test_another_writer_of_the_same_segment_is_noticed(
    store: RedisStore, lease: RedisLease, durable: Server
) -> None:
    segment = store.journal(lease, 0)
    segment.append(b"one")
    durable.ask("RPUSH", segment.key, "other")

    with pytest.raises(JournalFailed, match="another writer"):
        segment.append(b"two")


def test_what_ends_before_is_dropped(store: RedisStore, lease: RedisLease, durable: Server) -> None:
    for after in (0, 5, 9):
        store.journal(lease, after).append(b"x")

    store.drop_segments("s", 5)
    assert [after for _, after, _ in store.segments("s")] == [5, 9]
    store.drop_segments("s", 8)
    assert [after for _, after, _ in store.segments("s")] == [5, 9]
    store.drop_segments("s", 2**62)

    assert [after for _, after, _ in store.segments("s")] == [9]
    assert len(durable.ask("KEYS", "*:journal:*")) == 1
    store.drop_segments("other", 5)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"appendonly": "yes", "appendfsync": "everysec"},
        {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "yes"},
    ],
)
def test_a_server_that_confirms_what_is_not_on_its_disk_keeps_no_journal(
    own_redis: Callable[..., Server], config: dict[str, str]
) -> None:
    store = RedisStore(own_redis(config).url)
    lease = store.acquire("s")

    with pytest.raises(CheckpointError, match="appendfsync always"):
        store.journal(lease, 0)

    lease.release()


def test_a_lease_that_was_released_opens_no_segment(store: RedisStore, lease: RedisLease) -> None:
    lease.release()

    with pytest.raises(Fenced, match="released"):
        open_segment(lease, store._all.scripts, 0)
