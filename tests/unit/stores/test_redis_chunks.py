"""Chunks: whatever the pieces are in which bytes come and go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.stores.redis_trio import CHUNK, LIFE, RedisSink, RedisSource
from tests.servers import Server


@pytest.fixture
def link(redis_url: str) -> Iterator[RedisLink]:
    link = open_link(redis_url)
    yield link
    link.close()


@pytest.mark.parametrize("step", [1 << 20, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_what_was_written_in_any_pieces_is_read_in_any_pieces(link: RedisLink, step: int) -> None:
    data = bytes(range(256)) * (CHUNK // 100)
    sink = RedisSink(link, "p:", print)

    for at in range(0, len(data), step):
        assert sink.write(memoryview(data)[at : at + step]) == len(data[at : at + step])

    assert (sink.size, sink.count) == (len(data), -(-len(data) // CHUNK))
    assert [sink.key(n) for n in range(sink.staged)] == [f"p:{n}" for n in range(sink.count - 1)]
    link.client.set(sink.key(sink.staged), bytes(sink.tail))  # as the commit does it
    source, found = RedisSource(link, "p:", sink.size, "path"), bytearray()
    buffer = memoryview(bytearray(step))
    while count := source.readinto(buffer):
        found += buffer[:count]
    assert bytes(found) == data


def test_the_senders_buffer_is_its_own_again(link: RedisLink) -> None:
    sink, buffer = RedisSink(link, "p:", print), bytearray(b"one")

    sink.write(buffer)
    buffer[:] = b"two!"
    sink.write(memoryview(bytearray(b"abc")).cast("B"))

    assert (sink.tail, sink.key(sink.staged)) == (b"oneabc", "p:0")


def test_every_chunk_expires_until_it_is_committed(link: RedisLink, redis_server: Server) -> None:
    sink = RedisSink(link, "p:", print)
    sink.write(bytes(2 * CHUNK + 1))

    assert all(0 < redis_server.ask("TTL", f"p:{n}") <= LIFE for n in range(2))
    assert (redis_server.ask("DBSIZE"), sink.tail) == (2, b"\0")


def test_somebody_is_told_before_a_chunk_is_written(link: RedisLink, redis_server: Server) -> None:
    seen: list[int] = []
    sink = RedisSink(link, "p:", lambda: seen.append(redis_server.ask("DBSIZE")))

    sink.write(bytes(CHUNK))
    assert seen == []
    sink.write(bytes(2 * CHUNK))

    assert seen == [0, 1]


def test_nothing_is_no_chunk_and_reads_as_nothing(link: RedisLink, redis_server: Server) -> None:
    sink = RedisSink(link, "p:", print)
    sink.write(b"")

    assert sink.count == 0
    assert redis_server.ask("DBSIZE") == 0
    assert RedisSource(link, "p:", 0, "path").readinto(memoryview(bytearray(9))) == 0


def test_a_chunk_that_is_not_there_is_told_with_its_path(link: RedisLink) -> None:
    with pytest.raises(CheckpointCorrupt, match="path lacks chunk 0") as corrupt:
        RedisSource(link, "p:", 5, "path").readinto(memoryview(bytearray(9)))

    assert corrupt.value.path == "path"


def test_a_closed_source_reads_nothing(link: RedisLink) -> None:
    source = RedisSource(link, "p:", 3, "path", b"abc")

    source.close()

    assert source.readinto(memoryview(bytearray(9))) == 0
