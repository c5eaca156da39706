"""Processes that are made to be killed, stopped and raced: `python -m tests.crash.victims ROLE FOLDER …`.

Each role prints JSON lines. Races fork their many short lives from a process without threads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable

from graflow_ckpt.core.errors import SessionBusy
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.files.store import LocalStore


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def forked(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        body()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(0)


# --- owners ------------------------------------------------------------------------------


def parent(folder: str) -> None:
    """Own session s, and have a child that lives on."""
    lease = LocalStore(folder).acquire("s")
    child = forked(lambda: signal.pause())
    say(epoch=lease.epoch, pid=os.getpid(), child=child)
    signal.pause()


def races(folder: str, rounds: str) -> None:
    """Again and again an owner dies, and two who waited for that go for its session at once."""
    for _ in range(int(rounds)):
        died = die_as_owner(folder)
        gate, open_gate = os.pipe()
        done, finish = os.pipe()
        results, result = os.pipe()

        def contend(gate: int = gate, done: int = done, result: int = result, also: int = finish) -> None:
            os.close(also)
            os.read(gate, 1)
            kept: list[Lease] = []
            try:
                kept.append(LocalStore(folder).acquire("s"))
                taken = kept[0].taken_from
                os.write(result, f"won {kept[0].epoch} {taken.pid if taken else 0}\n".encode())
            except SessionBusy as busy:
                os.write(result, f"busy {busy.owner.pid if busy.owner else 0} 0\n".encode())
            os.read(done, 1)  # the winner keeps it until both have spoken

        pids = [forked(contend), forked(contend)]
        os.write(open_gate, b"..")
        said = b""
        while said.count(b"\n") < 2:
            said += os.read(results, 100)
        os.close(finish)
        for pid in pids:
            os.waitpid(pid, 0)
        for fd in (gate, open_gate, done, results, result):
            os.close(fd)
        words = [line.split() for line in said.decode().splitlines()]
        say(
            won=[int(epoch) for what, epoch, _ in words if what == "won"],
            taken_from_the_dead=[int(pid) == died for what, _, pid in words if what == "won"],
            busy_with_the_winner=[int(pid) in pids for what, pid, _ in words if what == "busy"],
        )


def die_as_owner(folder: str) -> int:
    ready, tell = os.pipe()

    def own() -> None:
        lease = LocalStore(folder).acquire("s")
        os.write(tell, b".")
        signal.pause()
        lease.release()

    pid = forked(own)
    os.read(ready, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(ready)
    os.close(tell)
    return pid


if __name__ == "__main__":
    {"parent": parent, "races": races}[sys.argv[1]](*sys.argv[2:])
