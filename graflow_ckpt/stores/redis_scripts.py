"""The scripts of the Redis store, as calls that survive a lost reply.

Each script tells a call that it has carried out before and answers it again, so that `sure` may
repeat one whose reply was lost. Not here: what the scripts do; each says so at its head.

What a look at a meta has brought along: where the parts are, and the small ones of them.
Promise: each part is told once, within FRESH seconds, and only for the stage that the reader asks for. What
was written anew since has other chunks, so who was told too late finds nothing there, and looks again.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.links.complaints import Key
from graflow_ckpt.links.redis import RedisLink
from graflow_ckpt.links.wire import Argument, Script, Step, together
from graflow_ckpt.stores.redis_names import Target

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


FRESH = 30.0
_MOST = 16  # checkpoints


@dataclass(frozen=True, slots=True)
class Part:
    """Of a checkpoint. `first`: its first chunk, if that has come along."""

    nonce: str
    stage: str
    size: int
    first: bytes = b""


def parts_in(record: bytes) -> dict[str, Part]:
    said = json.loads(record)["parts"] if record else {}
    return {name: Part(its["nonce"], its["stage"], int(its["size"])) for name, its in said.items()}


class Seen:
    """That of one store."""

    def __init__(self) -> None:
        self._known: OrderedDict[Target, tuple[dict[str, Part], float]] = OrderedDict()
        self._mutex = threading.Lock()

    def remember(self, target: Target, parts: dict[str, Part]) -> None:
        with self._mutex:
            self._known[target] = parts, time.monotonic() + FRESH
            self._known.move_to_end(target)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)

    def take(self, target: Target, part: str, stage: str) -> Part | None:
        with self._mutex:
            parts, until = self._known.get(target, ({}, 0.0))
            found = parts.pop(part, None)
            if not parts:
                self._known.pop(target, None)
        return found if found is not None and found.stage == stage and time.monotonic() < until else None
