"""The worker of histories.py: does what it is told with a session, and says what came of it.

For each line a number, an operation and a session; for each answer the number, the result and the epoch.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import cloudpickle

from graflow_ckpt.core.errors import Fenced, JournalFailed, SessionBusy
from graflow_ckpt.core.protocols import CheckpointStore, Journal, Lease
from tests.trios import own_name, parts_of, path_of

__all__ = ["own_name"]


class Holder:
    """One session as this process sees it: its lease, and the one that it had before."""

    def __init__(self, store: CheckpointStore, session: str) -> None:
        self.store, self.session = store, session
        self.held: list[tuple[Lease, Journal | None]] = []

    def do(self, op: str, number: int) -> tuple[str, int]:
        if op in ("acquire", "take"):
            lease = self.store.acquire(self.session, take_over=op == "take")
            self.held = [(lease, None), *self.held][:2]
            return "owner", lease.epoch
        old = op.endswith("_old")
        if len(self.held) <= old:
            return "none", 0
        lease, journal = self.held[old]
        try:
            match op.removesuffix("_old"):
                case "put":
                    stage = f"e{lease.epoch}n{number}"
                    parts = parts_of(stage, session=self.session, sequence=number)
                    path = path_of(self.store, own_name(self.session, number))
                    self.store.put(path, parts, lease=lease, stage=stage)
                case "append":
                    if journal is None:
                        journal = self.store.journal(lease, 0)
                        self.held[old] = (lease, journal)
                    journal.append(b"e%dn%d;" % (lease.epoch, number))
                case "check":
                    lease.check()
                case "release":
                    lease.release()
        except Fenced:
            return "fenced", lease.epoch
        except JournalFailed as error:  # a fence may close a segment for good
            return ("fenced" if "closed" in error.message else repr(error)), lease.epoch
        return "done", lease.epoch


def main() -> None:
    """Until nobody tells it anything any more."""
    store = cloudpickle.loads(bytes.fromhex(json.loads(sys.stdin.readline())))()
    holders: dict[str, Holder] = {}
    for line in sys.stdin:
        number, op, session = json.loads(line)
        answer: list[Any] = [number]
        if session not in holders:
            holders = {session: Holder(store, session)}
        try:
            answer += holders[session].do(op, number)
        except SessionBusy:
            answer += ["busy", 0]
        except Fenced:  # taken over while it was acquiring: some stores find out before it is theirs
            answer += ["fenced", 0]
        except Exception as error:  # noqa: BLE001  the one who judges wants to see it
            answer += [f"{type(error).__name__}: {error}", 0]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
