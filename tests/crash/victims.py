"""Processes that are made to be killed, stopped and raced: `python -m tests.crash.victims ROLE FOLDER …`.

Each role prints JSON lines. The roles that need many short lives fork them from a process of their own,
which has no threads, so that 200 deaths take seconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from graflow_ckpt.core.errors import GraflowError, SessionBusy
from graflow_ckpt.core.protocols import Lease
from graflow_ckpt.stores.files.store import LocalStore
from tests.crash.trio_reader import CORRUPT, NOTHING, parts, read

SIZE = 20_000


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


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


# --- a writer that dies again and again, and who reads meanwhile ---------------------------


def storm(folder: str, deaths: str, seed: str) -> None:
    """Overwrite one path in a loop; be killed at a random moment; look; again."""
    chance = random.Random(int(seed))
    path, number = f"{folder}/best.pkl", 0
    bad, unrolled = [], 0
    for death in range(int(deaths)):
        reports, report = os.pipe()

        def write(fd: int = report, first: int = number, death: int = death) -> None:
            store = LocalStore(folder)
            lease = store.acquire("storm") if death % 2 else None
            for tag in range(first + 1, first + 100_000):
                stage = f"t{tag}-{death}"  # unique: a dead writer may have left the same tag staged
                store.put(path, parts(stage, SIZE), lease=lease, stage=stage)
                os.write(fd, f"{tag}\n".encode())

        pid = forked(write)
        os.close(report)
        said = os.read(reports, 1)  # it is at work now
        time.sleep(chance.random() * 0.01)
        killed(pid)
        with os.fdopen(reports, "rb") as rest:
            promised = int((said + rest.read()).split()[-1])
        found = read(LocalStore(folder), path)
        unrolled += bool(list(Path(folder).glob("best.*.pkl.tmp")))
        number = -1 if found in (NOTHING, CORRUPT) else int(found[1:].partition("-")[0])
        if number not in (promised, promised + 1):  # it may have died before it could report the last one
            bad.append((death, promised, found))
    say(deaths=int(deaths), writes=number, bad=bad, leftovers=unrolled)


def reader(folder: str) -> None:
    """Load until the file `stop` appears."""
    store, path = LocalStore(folder), f"{folder}/best.pkl"
    loads, bad = 0, []
    while not os.path.exists(f"{folder}/stop"):
        found = read(store, path)
        loads += 1
        if found in (NOTHING, CORRUPT):
            bad.append(found)
    say(loads=loads, bad=bad)


# --- owners ------------------------------------------------------------------------------


def owner(folder: str) -> None:
    """Own session s; for each line that comes in, write a checkpoint or a frame, and say what came of it."""
    store = LocalStore(folder)
    lease = store.acquire("s")
    journal = store.journal(lease, 0)
    say(epoch=lease.epoch, pid=os.getpid())
    for number, line in enumerate(sys.stdin):
        try:
            if line.strip() == "append":
                journal.append(b"frame")
            else:
                store.put(own_path(folder, number), parts(f"p{number}"), lease=lease, stage=f"p{number}")
            say(done=line.strip())
        except GraflowError as error:
            say(refused=type(error).__name__)


def own_path(folder: str, number: int) -> str:
    return f"{folder}/session_s_step_{number}_1700000000-{number}.pkl"


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
    killed(pid)
    os.close(ready)
    os.close(tell)
    return pid


if __name__ == "__main__":
    {"storm": storm, "reader": reader, "owner": owner, "parent": parent, "races": races}[sys.argv[1]](
        *sys.argv[2:]
    )
