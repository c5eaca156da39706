"""The parent of horses, on a real server of RQ: what it lives through while one runs, and when one dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from rq import Queue
from rq.serializers import JSONSerializer

from graflow_ckpt.fleet.board import Board
from graflow_ckpt.fleet.horses import InHorses
from tests.servers import Server


def parent(server: Server) -> InHorses:
    made = InHorses(["q"], "w", connection=server.client(), serializer=JSONSerializer, worker_ttl=75)
    made.line = Board(1).lines[0]
    return made


def test_a_server_that_is_away_does_not_take_the_parent_from_its_horse(
    own_redis: Callable[..., Server],
) -> None:
    server = own_redis()
    worker = parent(server)
    queue = Queue("q", connection=worker.connection, serializer=JSONSerializer)
    job = queue.enqueue_call("builtins.len", args=("abc",), timeout=-1)
    worker.prepare_execution(job)
    server.kill()

    worker.set_current_job_working_time(30.0)
    worker.maintain_heartbeats(job)

    assert worker.current_job_working_time == 30.0


def test_the_alarm_for_a_horse_that_lives_does_not_go_off_for_a_dead_one(
    redis_server: Server, redis_url: str
) -> None:
    worker = parent(redis_server)
    worker.line.note("s", "e1t1")
    left: list[int] = []

    class Seen(InHorses):
        def _bury(self, death: object) -> None:
            left.append(signal.alarm(0))

    worker.__class__ = Seen
    worker._horse_pid = os.fork()
    if worker._horse_pid == 0:
        os._exit(1)

    with worker.death_penalty_class(60, TimeoutError):
        worker.wait_for_horse()

    assert left == [0]
