"""Journal segments in Postgres: appended once, by the owner, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graflow_ckpt.core.errors import Fenced, JournalFailed
from graflow_ckpt.stores import postgres_link
from graflow_ckpt.stores.postgres import PostgresStore
from graflow_ckpt.stores.postgres_lease import PostgresLease
from tests.postgres_servers import PostgresServer
from tests.proxy import Proxy
from tests.unit.stores.leases import OwnedSegments


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    yield store
    store.close()


@pytest.fixture
def lease(store: PostgresStore) -> Iterator[PostgresLease]:
    lease = store.acquire("s")
    yield lease
    lease.release()


def behind(proxy: Proxy, store: PostgresStore) -> PostgresStore:
    database = store.folder.rpartition("/")[2]
    return PostgresStore(f"{proxy.url.rpartition('/')[0]}/{database}?sslmode=disable")


class TestOwnedSegments(OwnedSegments):
    """In Postgres."""


def test_many_frames_are_read_in_pages(
    store: PostgresStore, lease: PostgresLease, postgres_server: PostgresServer
) -> None:
    store.journal(lease, 0)
    postgres_server.ask(
        "insert into graflow_ckpt.frames select 's', 1, 0, n, convert_to(n || ',', 'UTF8') "
        "from generate_series(0, 2000) n",
        database=store.folder.rpartition("/")[2],
    )

    assert list(store.segments("s")) == [(1, 0, b"".join(b"%d," % n for n in range(2001)))]


@pytest.mark.parametrize("frame", [b"", b"\0\xff%s'\\", b"x" * (5 << 20)], ids=["none", "odd", "large"])
def test_a_frame_is_any_bytes(store: PostgresStore, lease: PostgresLease, frame: bytes) -> None:
    segment = store.journal(lease, 0)

    segment.append(frame)
    segment.append(b"end")

    assert list(store.segments("s")) == [(1, 0, frame + b"end")]


def test_what_was_appended_survives_the_servers_death(
    store: PostgresStore, lease: PostgresLease, postgres_server: PostgresServer
) -> None:
    segment = store.journal(lease, 0)
    segment.append(b"one")

    postgres_server.restart()

    segment.append(b"two")
    postgres_server.restart()
    assert list(store.segments("s")) == [(1, 0, b"onetwo")]


def test_an_append_whose_reply_is_lost_is_there_once(
    store: PostgresStore, postgres_server: PostgresServer
) -> None:
    with Proxy(postgres_server) as proxy:  # type: ignore[arg-type]
        far = behind(proxy, store)
        lease = far.acquire("s")
        segment = far.journal(lease, 0)
        segment.append(b"one")
        proxy.drop_next_reply(b"two")

        segment.append(b"two")
        segment.append(b"three")

        assert proxy.dropped()
        assert list(store.segments("s")) == [(1, 0, b"onetwothree")]
        lease.release()
        far.close()


def test_an_append_that_is_not_confirmed_is_the_last(
    store: PostgresStore, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link, "PATIENCE", 0.1)
    with Proxy(postgres_server) as proxy:  # type: ignore[arg-type]
        far = behind(proxy, store)
        lease = far.acquire("s")
        segment = far.journal(lease, 0)
        proxy.refuse()

        with pytest.raises(JournalFailed, match=r"session 's' \(1:0 in .* cannot be reached"):
            segment.append(b"one")
        proxy.resume()
        with pytest.raises(JournalFailed, match="closed"):
            segment.append(b"one")

        assert list(store.segments("s")) == [(1, 0, b"")]
        lease.release()
        far.close()


@pytest.mark.parametrize("number", [1, 5])
def test_another_writer_of_the_same_segment_is_noticed(
    store: PostgresStore, lease: PostgresLease, postgres_server: PostgresServer, number: int
) -> None:
    segment = store.journal(lease, 0)
    segment.append(b"one")
    moved = (
        "update graflow_ckpt.frames set number = 7"
        if number == 5
        else ("insert into graflow_ckpt.frames values ('s', 1, 0, 1, 'other')")
    )
    postgres_server.ask(moved, database=store.folder.rpartition("/")[2])

    with pytest.raises(JournalFailed, match="another writer"):
        segment.append(b"two")


def test_what_ends_before_is_dropped(
    store: PostgresStore, lease: PostgresLease, postgres_server: PostgresServer
) -> None:
    for after in (0, 5, 9):
        store.journal(lease, after).append(b"x")

    store.drop_segments("s", 5)
    assert [after for _, after, _ in store.segments("s")] == [5, 9]
    store.drop_segments("s", 8)
    assert [after for _, after, _ in store.segments("s")] == [5, 9]
    store.drop_segments("s", 2**62)

    assert [after for _, after, _ in store.segments("s")] == [9]
    asked = "select count(*) from graflow_ckpt.frames"
    assert postgres_server.ask(asked, database=store.folder.rpartition("/")[2]) == [(1,)]
    store.drop_segments("other", 5)


def test_a_lease_that_was_released_opens_no_segment_and_appends_nothing(
    store: PostgresStore, lease: PostgresLease
) -> None:
    segment = store.journal(lease, 0)
    lease.release()

    for call in (lambda: store.journal(lease, 1), lambda: segment.append(b"one")):
        with pytest.raises(Fenced, match="released"):
            call()
