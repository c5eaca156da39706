"""A Lua script that a server runs: sent by its digest, loaded where it is not known.

Promise: a call is sent once; it is sent again only where the server has certainly not run it
(it did not know the script). `together` is for what may
be run twice: several calls and commands in one round trip.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from graflow_ckpt.links.complaints import Key, code_of, in_our_words, redis, taken, theirs

Argument = bytes | str | int | float | bytearray | memoryview
Step = tuple["Script | None", Sequence[Key], Sequence[Argument]]  # a call; without a script, plain words


class Script:
    """Call it with keys and arguments.

    `types`: what each key holds (`hash`, `zset` …), so that one that something else uses can be named.
    """

    __slots__ = ("_address", "_client", "sha", "source", "types")

    def __init__(self, client: redis.Redis, address: str, source: str, types: Sequence[str] = ()) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        self.types = tuple(types)
        self._client = client
        self._address = address

    def __call__(self, keys: Sequence[Key], args: Sequence[Argument] = ()) -> Any:
        try:
            return self._run(keys, args)
        except redis.RedisError as error:
            if code_of(error) == "WRONGTYPE":
                raise taken(self._address, keys, self.types, self._client.type) from error
            raise in_our_words(error, self._address, keys) from error

    def words(self, keys: Sequence[Key], args: Sequence[Argument], *, whole: bool) -> list[Argument]:
        """The call as a command; `whole`: with the text of the script."""
        head: list[Argument] = ["EVAL", self.source] if whole else ["EVALSHA", self.sha]
        return [*head, len(keys), *keys, *args]

    def _run(self, keys: Sequence[Key], args: Sequence[Argument]) -> Any:
        try:
            return self._client.execute_command(*self.words(keys, args, whole=False))
        except theirs.NoScriptError:
            # not SCRIPT LOAD and then the call: between the two it could be forgotten again
            return self._client.execute_command(*self.words(keys, args, whole=True))

    def __repr__(self) -> str:
        return f"Script({self.sha[:8]})"


def together(client: redis.Redis, address: str, steps: Sequence[Step]) -> list[Any]:
    """Return what the steps come to, in one round trip.

    All of them are sent again if the server does not know a script, so each has to be one that may be run
    twice. An error of one step is in its place, in our words; the others are run.
    """
    for whole in (False, True):
        line = client.pipeline(transaction=False)
        for script, keys, args in steps:
            line.execute_command(*(args if script is None else script.words(keys, args, whole=whole)))
        try:
            replies: list[Any] = line.execute(raise_on_error=False)
        except redis.RedisError as error:
            raise in_our_words(error, address) from error
        if not any(isinstance(reply, theirs.NoScriptError) for reply in replies):
            break
    return [
        _complaint(reply, step, address, client.type) if isinstance(reply, redis.RedisError) else reply
        for reply, step in zip(replies, steps, strict=True)
    ]


def _complaint(error: redis.RedisError, step: Step, address: str, type_of: Any) -> Exception:
    script, keys, _ = step
    if script is not None and code_of(error) == "WRONGTYPE":
        return taken(address, keys, script.types, type_of)
    return in_our_words(error, address, keys)
