"""The floors: one connection that sends an empty script, and processes that share nothing.

Not here: anything that a queue does.
"""

from __future__ import annotations

import os
from typing import Any

from redis.connection import Connection

from benchmarks.fleet_runs import first_core, placed, serving
from benchmarks.harness import Run
from benchmarks.peers import jobs


def evalsha(run: Run, full: int, *, smoke: int) -> None:
    """Seconds for EVALSHA of `return 1` on one bare connection of redis-py: RESP2, no pool, no retry."""
    count = run.size(full, smoke=smoke)
    with placed(first_core()), serving(run) as server:
        connection: Any = Connection(host=server.host, port=server.port, protocol=2)
        connection.connect()
        connection.send_command("SCRIPT", "LOAD", "return 1")
        digest = connection.read_response()
        pack, send, read = connection.pack_command, connection.send_packed_command, connection.read_response
        with run.timed(per=count):
            for _ in range(count):
                send(pack("EVALSHA", digest, 0), check_health=False)
                read()
        connection.disconnect()


def gained(run: Run) -> None:
    """Spins of 5 ms: the time of two processes as a share of the time of one."""
    count = run.size(400, smoke=20)
    run.report(_spinning(run, 2, count) / _spinning(run, 1, count))


def _spinning(run: Run, processes: int, count: int) -> float:
    """Seconds for `count` spins, shared by processes that were started before."""
    begin, start = os.pipe()
    children = [_child(begin, start, count // processes) for _ in range(processes)]
    clock = Run(run.folder, "wall", run.smoke)
    clock.start()
    os.close(start)
    for child in children:
        os.waitpid(child, 0)
    clock.stop()
    os.close(begin)
    assert clock.value is not None
    return clock.value


def _child(begin: int, start: int, count: int) -> int:
    child = os.fork()
    if child == 0:
        os.close(start)
        os.read(begin, 1)  # returns when the parent has closed its end
        for _ in range(count):
            jobs.spin()
        os._exit(0)
    return child
