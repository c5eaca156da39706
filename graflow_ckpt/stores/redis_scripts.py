"""The scripts of the Redis store, as calls that survive a lost reply.

Each script tells a call that it has carried out before and answers it again, so that `sure` may
repeat one whose reply was lost. Not here: what the scripts do; each says so at its head.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.links.complaints import Key
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.links.scripts import Argument, Script, Step, together

T = TypeVar("T")

PATIENCE = 5.0  # seconds within which a server that was lost must be back
_PAUSE = 0.05
_TYPES = {
    "claim": ("hash",),
    "hold": ("hash",),
    "release": ("hash",),
    "raise": ("hash", "hash"),
    "stage": ("hash", "hash"),
    "commit": ("hash", "hash", "hash", "zset", "hash", "hash", "set"),
    "look": ("hash", "hash"),
    "delete": ("hash", "hash", "zset", "set"),
    "sweep": ("hash", "hash", "set"),
    "pin": ("hash", "hash", "hash"),
    "place": ("hash", "hash"),
    "keep": ("hash", "hash"),
    "find": ("hash", "hash"),
    "free": ("hash", "set", "hash"),
    "withdraw": ("hash", "hash"),
    "begin": ("hash", "set", "list"),
    "append": ("hash", "list"),
    "drop": ("set",),
}


@cache
def source(name: str) -> str:
    return (files("graflow_ckpt.stores") / "scripts" / f"{name}.lua").read_text(encoding="utf-8")


class Scripts:
    """Those of one link."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._made: dict[str, Script] = {}

    def __getitem__(self, name: str) -> Script:
        if name not in self._made:
            self._made[name] = self._link.script(source(name), _TYPES[name])
        return self._made[name]

    def sure(self, name: str, keys: Sequence[Key], args: Sequence[Argument] = ()) -> Any:
        """Call it again if the server was lost, for some seconds."""
        return _patient(lambda: self[name](keys, args))

    def sure_together(self, steps: Sequence[Step]) -> list[Any]:
        """The same for several steps in one round trip. The reply of the last one is none that may pass."""

        def ask() -> list[Any]:
            replies = together(self._link.client, self._link.address, steps)
            if isinstance(replies[-1], ServerGone):
                raise replies[-1]
            return replies

        return _patient(ask)


def _patient(ask: Callable[[], T]) -> T:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except ServerGone:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE)
