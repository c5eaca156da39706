"""A driver over Redis: a batch is one script, and one round trip."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from graflow_ckpt.core.protocols import Buffer
from graflow_ckpt.links.complaints import translated
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.links.wire import Argument, Step, together
from graflow_ckpt.stores.driver import BatchDone, Entry, Hit, Put, Row, Stored, Tag

PREFIX = "graflow:ck:"
_NAMES, _ROWS = f"{PREFIX}names", f"{PREFIX}rows"
_AHEAD = 64 << 10  # bytes of a fresh thing that are too many for a script
_LIFE = 3600  # seconds: what was written ahead of a script that never came is gone by then
_HEAD = 20
_PAGE = 1000

SYNCS = ("CONFIG", "GET", "*append*")


class RedisDriver:
    """One database of a server, opened at the first use."""

    atomic = True
    inline = 0
    chunk = 1 << 20

    def __init__(self, link: Callable[[], RedisLink]) -> None:
        self._open = link

    def now(self) -> float:
        link = self._open()
        with translated(link.address):
            seconds, micros = link.client.time()
        return float(seconds) + float(micros) / 1e6

    def get(self, *keys: str) -> Sequence[Stored | None]:
        link = self._open()
        with translated(link.address):
            found: list[Any] = link.client.mget([PREFIX + key for key in keys])
        return [None if raw is None else Stored(raw[_HEAD:], raw[:12].hex(), _time(raw)) for raw in found]

    def read(self, key: str, start: int, length: int) -> Buffer | None:
        link = self._open()
        with translated(link.address):
            found: Any = link.client.getrange(PREFIX + key, _HEAD + start, _HEAD + start + length - 1)
        return found if len(found) == length else None

    def batch(
        self,
        puts: Sequence[Put],
        drops: Sequence[str] = (),
        *,
        guards: Mapping[str, Tag | None] | None = None,
        needs: Sequence[str] = (),
        soft: bool = False,
    ) -> BatchDone | None:
        link, tag = self._open(), os.urandom(12)
        head = tag + struct.pack(">d", time.time())
        asked = dict(guards or {})
        steps: list[Step] = []
        ahead: list[str] = []
        keys: list[str] = [_NAMES, _ROWS, *(PREFIX + key for key in asked)]
        args: list[Argument] = [tag, len(asked), len(puts), len(drops)]
        args += ["-" if wanted is None else bytes.fromhex(wanted) for wanted in asked.values()]
        for put in puts:
            keys.append(PREFIX + put.key)
            if put.fresh and len(put.data) > _AHEAD:
                # under a name of this call alone: if the script never comes, no reader takes it for written
                ahead.append(f"{PREFIX}ahead/{tag.hex()}/{len(ahead)}")
                steps.append((None, (), ("SET", ahead[-1], head + put.data, "EX", _LIFE)))
                args += [2, _facts(put.row), ahead[-1]]
            else:
                # older clients take no other buffer
                args += [int(put.fresh), _facts(put.row), bytes(put.data)]
        keys += [*(PREFIX + key for key in (*drops, *needs)), *ahead]
        steps.append((link.script(source("batch"), ("zset", "hash")), keys, args))
        if not soft:
            steps.append((None, (), SYNCS))
        replies = together(link.client, link.address, steps)
        for reply in replies[: len(ahead) + 1]:
            if isinstance(reply, Exception):
                raise reply
        if not replies[len(ahead)]:
            return None
        return BatchDone(tag.hex(), not soft and syncs(replies[-1]))

    def keys(self, prefix: str) -> Iterator[Entry]:
        link = self._open()
        first, end = f"[{PREFIX}{prefix}".encode(), f"({PREFIX}{prefix}\x7f".encode()
        while True:
            with translated(link.address):
                found: Any = link.client.zrange(_NAMES, first, end, bylex=True, offset=0, num=_PAGE)
                line = link.client.pipeline(transaction=False)
                for key in found:
                    line.strlen(key)
                    line.getrange(key, 0, _HEAD - 1)
                said = line.execute() if found else []
            for key, size, head in zip(found, said[::2], said[1::2], strict=True):
                if head:
                    yield Entry(key.decode().removeprefix(PREFIX), size - _HEAD, _time(head))
            if len(found) < _PAGE:
                return
            first = b"(" + found[-1]

    def find(self, wanted: Row, limit: int, below: int | None = None) -> Sequence[Hit]:
        facts = [f"{_ROWS}{fact}" for fact in _facts(wanted).split("\n") if fact]
        limit = min(limit, 1 << 31)
        script = self._open().script(source("find"), ("zset",))
        found = script(facts, [limit, "+inf" if below is None else f"({below}"])
        triples = zip(found[::3], found[1::3], found[2::3], strict=True)
        return [Hit(int(number), key.decode().removeprefix(PREFIX), data) for number, key, data in triples]

    def syncs(self) -> bool:
        """Return whether what the server confirms is on its disk."""
        link = self._open()
        (reply,) = together(link.client, link.address, [(None, (), SYNCS)])
        return syncs(reply)


@cache
def source(name: str) -> str:
    return (files("graflow_ckpt.stores.drivers.redis") / "scripts" / f"{name}.lua").read_text(
        encoding="utf-8"
    )


def _facts(row: Row | None) -> str:
    """Return the row, a line for each fact; the first line stands for all rows."""
    if row is None:
        return ""
    said = [f":{name}:{fact}" for name, fact in zip(Row._fields, row, strict=True) if fact]
    return "\n".join([":", *said])


def _time(raw: bytes) -> float:
    at: float = struct.unpack(">d", raw[12:_HEAD])[0]
    return at


# Any: whatever the server answers.
def syncs(reply: Any) -> bool:
    """Return whether what the server confirms is on its disk, by its answer to SYNCS.

    WAITAOF is not asked: from Redis 7.4 to its repair in 2025, and in Valkey 9.1 still, it confirms
    under `everysec` what no sync has reached.
    """
    if not isinstance(reply, list):
        return False  # hosted servers commonly refuse to say
    found = dict(zip(reply[::2], reply[1::2], strict=True))
    kept = [found.get(name) for name in (b"appendonly", b"appendfsync", b"no-appendfsync-on-rewrite")]
    return kept == [b"yes", b"always", b"no"]
