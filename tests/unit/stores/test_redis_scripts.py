"""The scripts: all are there, and a call that may be repeated is repeated for as long as patience lasts."""

from __future__ import annotations

import threading
import time
from importlib.resources import files

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, ServerError, ServerGone
from graflow_ckpt.links.redis import RedisLink, open_link
from graflow_ckpt.stores import redis_scripts
from graflow_ckpt.stores.redis_scripts import Scripts, source
from graflow_ckpt.stores.redis_trio import CHUNK, LIFE, RedisSink, RedisSource
from tests.proxy import Proxy
from tests.servers import Server

NAMES = sorted(
    path.name.removesuffix(".lua") for path in (files("graflow_ckpt.stores") / "scripts").iterdir()
)


def test_each_script_says_what_it_takes_and_its_keys_have_types() -> None:
    assert sorted(redis_scripts._TYPES) == NAMES
    for name in NAMES:
        head = source(name)
        keys = head.partition("-- KEYS")[2].partition("-- ARGV")[0].split(";")
        assert head.startswith("-- ")
        assert len(redis_scripts._TYPES[name]) == len([key for key in keys if "then each" not in key]), name
        for kind, key in zip(redis_scripts._TYPES[name], keys, strict=False):
            assert f": {kind}" in key, f"{name}: {key} is to be a {kind}"


@pytest.mark.parametrize("name", NAMES)
def test_each_script_compiles(name: str, redis_server: Server) -> None:
    assert redis_server.ask("SCRIPT", "LOAD", source(name))


def test_a_server_that_comes_back_in_time_was_never_away(redis_server: Server, redis_url: str) -> None:
    with Proxy(redis_server) as proxy:
        scripts = Scripts(open_link(proxy.url))
        proxy.refuse()
        back = threading.Timer(0.2, proxy.resume)
        back.start()

        assert scripts.sure("release", ["graflow:ck:{s}:lease"], [1]) == 1
        back.join()


def test_patience_ends(redis_server: Server, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_scripts, "PATIENCE", 0.2)
    with Proxy(redis_server) as proxy:
        scripts = Scripts(open_link(proxy.url))
        proxy.refuse()
        began = time.monotonic()

        with pytest.raises(ServerGone):
            scripts.sure("release", ["graflow:ck:{s}:lease"], [1])

        assert time.monotonic() - began >= 0.2


def test_what_will_not_pass_is_not_repeated(redis_server: Server, redis_url: str) -> None:
    scripts = Scripts(open_link(redis_url))
    redis_server.ask("SET", "graflow:ck:{s}:lease", "a string")

    with pytest.raises(ServerError, match="is a string, not a hash"):
        scripts.sure("release", ["graflow:ck:{s}:lease"], [1])


# --- chunks -----------------------------------------------------------------------------


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
