"""A Lua script that a server runs: sent by its digest, loaded where it is not known.

Promise: a call is sent once; it is sent again only where the server has certainly not run it
(it did not know the script, or the key's slot is served by another node).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from graflow_ckpt.links.complaints import Key, code_of, in_our_words, taken
from graflow_ckpt.links.library import redis, theirs
from graflow_ckpt.links.routes import Route

Argument = bytes | str | int | float | bytearray | memoryview

_REDIRECTS = 5


class Script:
    """Call it with keys and arguments. All keys of a call are in one slot.

    `types`: what each key holds (`hash`, `zset` …), so that one that something else uses can be named.
    """

    __slots__ = ("_address", "_route", "sha", "source", "types")

    def __init__(self, route: Route, address: str, source: str, types: Sequence[str] = ()) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        self.types = tuple(types)
        self._route = route
        self._address = address

    def __call__(self, keys: Sequence[Key], args: Sequence[Argument] = ()) -> Any:
        try:
            return self._run(keys, args)
        except (redis.RedisError, theirs.RedisClusterException) as error:
            if code_of(error) == "WRONGTYPE":
                client = self._route.client_for(keys[0])
                raise taken(self._address, keys, self.types, client.type) from error
            raise in_our_words(error, self._address) from error

    def _run(self, keys: Sequence[Key], args: Sequence[Argument]) -> Any:
        for _ in range(_REDIRECTS):
            client = self._route.client_for(keys[0] if keys else None)
            try:
                return client.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)
            except theirs.NoScriptError:
                # not SCRIPT LOAD and then the call: between the two it could be forgotten again
                return client.execute_command("EVAL", self.source, len(keys), *keys, *args)
            except theirs.MovedError:
                self._route.forget()
        return client.execute_command("EVALSHA", self.sha, len(keys), *keys, *args)

    def __repr__(self) -> str:
        return f"Script({self.sha[:8]})"
