"""What a look at a meta has brought along: where the parts are, and the small ones of them.

Promise: each part is told once, within FRESH seconds, and only for the stage that the reader asks for. What
was written anew since has other chunks, so who was told too late finds nothing there, and looks again.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from graflow_ckpt.stores.redis_names import Target

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
