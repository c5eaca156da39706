"""Writes what stands in the Redis of a fleet into fleet-N, once: `python -m tests.golden.make_fleet`.

fleet-1 was written by commit 55b29496, before the package was rebuilt, by Python 3.11 and by 3.13: code that
is stored by value can be opened by the minor version of Python that stored it, and by no other. PYTHONPATH is
a copy of that commit in /tmp, because the paths of its files stand in tracebacks. The checkpoint in it was
copied into the layout of keyed stores when that took the place of another.

A server, a pool of two workers, sessions that a program submits (fleet_flows.py). The pool is killed in the
middle of two tasks; then more is submitted that no worker begins on. What the server holds after that is
written down as commands, one a line in JSON, which any version of a server takes: words are texts, or
deflated and in base64 where they are not ASCII. `EXPIRE` has what was left, and counts from the moment at
which a test loads it.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden.make_sessions import HERE, PLACE, call, empty, surroundings
from tests.servers import Server

NUMBER = 1
FOLDER = HERE / f"fleet-{NUMBER}"
RUNS = PLACE / "runs"
FLOWS = HERE / "fleet_flows.py"
CALLS, DELAYED = "square-calls-f62d242cedd2", "square-delayed-219d268cae77"
BEGUN = {
    "done": "done", "failed": "failed", "calls": CALLS, "values": "values", "made": "made", "kept": "kept",
    "by_reference": "by_reference", "loop": "loop", "claimed": "claimed", "asked": "asked",
}  # fmt: skip
"""Functions of the program, with the sessions that they make."""

NOT_BEGUN = ("waiting", "delayed", "paused", "cancelled")
BY_REFERENCE = ("failed", "kept", "by_reference", "claimed", "delayed", "paused", "cancelled")
HELD = {"claimed": "held", "asked": "charge"}
"""The sessions whose workers are killed, with the task that runs then."""

HOST = "import socket\nsocket.gethostname = lambda: 'golden'\n"
OF_PROCESSES = (b"rq:worker", b"rq:clean", b"graflow:pool")
"""Signs of life: of a minute, and of the machine."""

_OF_THIS_MACHINE = {
    Path("/proc/sys/kernel/random/boot_id").read_bytes().strip(): b"golden-boot",
    os.readlink("/proc/self/ns/pid").encode(): b"pid:[1]",
    re.sub(r"\D", "", os.readlink("/proc/self/ns/pid")).encode(): b"1",
}

Word = str | int | float | bytes
Row = list[Any]  # of a command: what JSON can hold


# --- out -----------------------------------------------------------------------------------------


def commands(client: Any) -> Iterator[list[Word]]:
    """Those that fill an empty server with what this one holds; each needs no other one before it."""
    for key in sorted(client.keys("*")):
        if key.startswith(OF_PROCESSES):
            continue
        kind = client.type(key).decode()
        if kind == "string":
            yield ["SET", key, client.get(key)]
        elif kind == "hash":
            for field, value in sorted(client.hgetall(key).items()):
                yield ["HSET", key, field, value]
        elif kind == "zset":
            for member, score in client.zrange(key, 0, -1, withscores=True):
                yield ["ZADD", key, score, member]
        elif kind == "list":
            yield ["RPUSH", key, *client.lrange(key, 0, -1)]
        else:
            yield ["SADD", key, *sorted(client.smembers(key))]
        if (left := client.ttl(key)) >= 0:
            yield ["EXPIRE", key, left]


def written(word: Word) -> Any:
    if not isinstance(word, bytes):
        return word
    for own, golden in _OF_THIS_MACHINE.items():
        word = word.replace(own, golden)
    text = word.decode("latin-1")
    plain = re.sub("[\x1e\x1f\n]", "", text)
    if plain.isascii() and plain.isprintable():
        return text
    return {"deflated": base64.b64encode(zlib.compress(word, 9)).decode()}


def dump(client: Any) -> str:
    return "".join(json.dumps([written(word) for word in row]) + "\n" for row in commands(client))


# --- in ------------------------------------------------------------------------------------------


def load(client: Any, text: str) -> None:
    """Into an empty server."""
    pipe = client.pipeline(transaction=False)
    for line in text.splitlines():
        row = json.loads(line)
        pipe.execute_command(*map(read, row))
    pipe.execute()


def read(word: Any) -> Word:
    return zlib.decompress(base64.b64decode(word["deflated"])) if isinstance(word, dict) else word


# --- written once --------------------------------------------------------------------------------


def submit(name: str, url: str) -> None:
    given = {"GRAFLOW_CKPT_REDIS_URL": url, "GOLDEN_RUNS": str(RUNS)}
    if name in BY_REFERENCE:
        call("-c", f"import fleet_flows; fleet_flows.{name}()", **given)
    else:
        call("fleet_flows.py", name, **given)


def rests(session: str, url: str) -> bool:
    """Whether it has ended, what is left of it is for other queues, or its task is held."""
    if session in HELD:
        return RUNS.exists() and f"{session} {HELD[session]}" in RUNS.read_text().splitlines()
    found = json.loads(call("-m", "graflow_ckpt", "status", session, "--json", GRAFLOW_CKPT_REDIS_URL=url))
    left = found["steps"] and found["ready"] and not found["running"] and not found["slices"]
    return bool(left) or found["status"] in ("completed", "failed", "stopped")


def begin(url: str) -> None:
    """Submit what is to stand in the middle, work at it, and kill whoever works."""
    given = {"GRAFLOW_CKPT_REDIS_URL": url, "GOLDEN_RUNS": str(RUNS)}
    given |= {"GOLDEN_HELD": " ".join(HELD.values()), "GOLDEN_BROKEN": "1"}
    command = ["python", "-m", "graflow_ckpt", "worker", "-n", "2"]
    with (PLACE / "pool.log").open("w") as log:
        pool = subprocess.Popen(command, cwd=PLACE, env=surroundings(**given), stdout=log, stderr=log)
    try:
        for name, session in BEGUN.items():
            submit(name, url)
            deadline = time.monotonic() + 60
            while not rests(session, url):
                assert time.monotonic() < deadline, (PLACE / "pool.log").read_text()
    finally:
        pool.kill()  # its workers die with it
        pool.wait()


def main() -> None:
    target = FOLDER / f"python{sys.version_info[0]}.{sys.version_info[1]}.jsonl"
    if target.exists():
        raise SystemExit(f"{target} is there already; what was released is not written again")
    empty()
    with (PLACE / "home" / "sitecustomize.py").open("a") as more:
        more.write(HOST)
    shutil.copyfile(FLOWS, PLACE / FLOWS.name)
    with Server() as server:
        begin(server.url)
        for name in NOT_BEGUN:
            submit(name, server.url)
        text = dump(server.client())
    FOLDER.mkdir(exist_ok=True)
    target.write_text(text)
    shutil.rmtree(PLACE)


if __name__ == "__main__":
    main()
