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
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.links.wire import Argument, Step
from graflow_ckpt.stores.driver import BatchDone, Entry, Hit, Put, Row, Stored, Tag, facts_of

PREFIX = "graflow:ck:"
_NAMES, _ROWS = f"{PREFIX}names", f"{PREFIX}rows"
_AHEAD = 64 << 10  # bytes of a fresh thing that are too many for a script
_LIFE = 3600  # seconds: what was written ahead of a script that never came is gone by then
_HEAD = 20
_PAGE = 1000

_SYNCS = [[b"appendonly", b"yes"], [b"appendfsync", b"always"], [b"no-appendfsync-on-rewrite", b"no"]]
_ASKED: list[Step] = [(None, (), (b"CONFIG", b"GET", name)) for name, _ in _SYNCS]


class RedisDriver:
    """One database of a server, opened at the first use."""

    atomic = True
    inline = 0
    chunk = 1 << 20

    def __init__(self, link: Callable[[], RedisLink]) -> None:
        self._open = link

    def now(self) -> float:
        return self._open().now()

    def get(self, *keys: str) -> Sequence[Stored | None]:
        found: list[Any] = self._open().ask("MGET", *(PREFIX + key for key in keys)) if keys else []
        return [None if raw is None else Stored(raw[_HEAD:], raw[:12].hex(), _time(raw)) for raw in found]

    def read(self, key: str, start: int, length: int) -> Buffer | None:
        end = _HEAD + start + length - 1
        found: Buffer = self._open().ask_text(length, "GETRANGE", PREFIX + key, _HEAD + start, end)
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
                steps.append((None, (), ("SET", ahead[-1], (head, put.data), "EX", _LIFE)))
                args += [2, _noted(put), ahead[-1]]
            else:
                args += [int(put.fresh), _noted(put), bytes(put.data)]  # hiredis packs no other buffer
        keys += [*(PREFIX + key for key in (*drops, *needs)), *ahead]
        steps.append((link.script(source("batch"), ("zset", "hash")), keys, args))
        if not soft:
            steps += _ASKED
        replies = link.together(steps)
        if not _raised(replies[: len(ahead) + 1])[-1]:
            return None
        return BatchDone(tag.hex(), not soft and _all_synced(replies[len(ahead) + 1 :]))

    def keys(self, prefix: str) -> Iterator[Entry]:
        link = self._open()
        first, end = f"[{PREFIX}{prefix}".encode(), f"({PREFIX}{prefix}\x7f".encode()
        while True:
            found: list[Any] = link.ask("ZRANGEBYLEX", _NAMES, first, end, "LIMIT", 0, _PAGE)
            asked = [(("STRLEN", key), ("GETRANGE", key, 0, _HEAD - 1)) for key in found]
            steps: list[Step] = [(None, (), words) for both in asked for words in both]
            said = _raised(link.together(steps)) if steps else []
            for key, size, head in zip(found, said[::2], said[1::2], strict=True):
                if head:
                    yield Entry(key.decode().removeprefix(PREFIX), size - _HEAD, _time(head))
            if len(found) < _PAGE:
                return
            first = b"(" + found[-1]

    def find(self, wanted: Row, limit: int, below: int | None = None) -> Sequence[Hit]:
        facts = [f"{_ROWS}{fact}" for fact in facts_of(wanted)]
        limit = min(limit, 1 << 31)
        script = self._open().script(source("find"), ("hash", "zset"))
        found = script([_ROWS, *facts], [limit, "+inf" if below is None else f"({below}"])
        triples = zip(found[::3], found[1::3], found[2::3], strict=True)
        return [Hit(int(number), key.decode().removeprefix(PREFIX), data) for number, key, data in triples]

    def syncs(self) -> bool:
        """Return whether what the server confirms is on its disk."""
        return _all_synced(self._open().together(_ASKED))


@cache
def source(name: str) -> str:
    return (files("graflow_ckpt.stores.drivers.redis") / "scripts" / f"{name}.lua").read_text(
        encoding="utf-8"
    )


def _noted(put: Put) -> str:
    """Return what is noted of a thing with a row: how many bytes are listed, and its facts."""
    return "\n".join([str(put.shown), *facts_of(put.row)]) if put.row is not None else ""


def _time(raw: bytes) -> float:
    at: float = struct.unpack(">d", raw[12:_HEAD])[0]
    return at


# Any: whatever the server answers.
def _raised(replies: list[Any]) -> list[Any]:
    """Return the replies; raise an error that is among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def _all_synced(replies: list[Any]) -> bool:
    """Return whether what the server confirms is on its disk. Hosted servers commonly refuse to say.

    WAITAOF is not asked: from Redis 7.4 to its repair in 2025, and in Valkey 9.1 still, it confirms
    under `everysec` what no sync has reached.
    """
    return replies == _SYNCS
