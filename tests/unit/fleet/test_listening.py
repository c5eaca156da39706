"""RQ's side of a worker: its alarm, its signs of life, and what it is not asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any, ClassVar

import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from graflow_ckpt.fleet.slice import serve
from graflow_ckpt.fleet.worker import Listening, NoAlarm
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.stores.around.keys import new_key
from tests.servers import Server


@pytest.fixture
def worker(redis_server: Server, redis_url: str) -> Listening:
    return Listening(["q"], "w", connection=redis_server.client(), serializer=JSONSerializer, worker_ttl=75)


def test_an_alarm_of_a_task_is_left_alone() -> None:
    rang = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rang.append(number))
    signal.setitimer(signal.ITIMER_REAL, 60)

    with NoAlarm(-1):
        left, _ = signal.getitimer(signal.ITIMER_REAL)
    still, _ = signal.getitimer(signal.ITIMER_REAL)

    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    assert left > 50
    assert still > 50


def test_while_a_slice_runs_rq_hears_that_it_does(worker: Listening) -> None:
    queue = Queue("q", connection=worker.connection, serializer=JSONSerializer)
    worker.register_birth()
    job = queue.enqueue_call("builtins.len", args=("abc",), timeout=-1)
    worker.prepare_execution(job)
    worker.job = job
    registry: Any = queue.started_job_registry
    redis: Any = worker.connection
    redis.zadd(registry.key, dict.fromkeys(redis.zrange(registry.key, 0, -1), 5.0))  # long ago
    redis.expire(worker.key, 1)

    worker.beat()

    assert redis.zrange(registry.key, 0, 0, withscores=True)[0][1] > 1000
    assert redis.ttl(worker.key) > 60


def test_a_wait_ends_before_the_connection_is_taken_for_dead(redis_url: str) -> None:
    client = open_link(redis_url).client  # it has a connection, which keeps the time it was opened with
    worker = Listening(["q"], "w", connection=client, serializer=JSONSerializer, worker_ttl=75)

    connection = client.connection_pool.get_connection()

    assert worker.dequeue_timeout < connection.socket_timeout


def test_an_idle_worker_s_beat_is_nothing(worker: Listening) -> None:
    worker.beat()

    assert worker.connection.keys() == []


def test_a_worker_that_is_told_to_stop_takes_no_job(worker: Listening) -> None:
    Queue("q", connection=worker.connection, serializer=JSONSerializer).enqueue_call(
        "builtins.len", args=("abc",)
    )
    worker.take_no_more()

    with pytest.raises(SystemExit):
        worker.dequeue_job_and_maintain_ttl(1)

    assert worker.connection.llen("rq:queue:q") == 1


EARLY = """
import sys
from time import monotonic
from graflow_ckpt.fleet.board import Board, Order
from graflow_ckpt.fleet.worker import PoolSettings, work
from graflow_ckpt.stores.around.keys import Keyring

(line,) = Board(1).lines
line.tell(Order.DRAIN, monotonic() + 300)  # and its signal came before there was a handler
sys.exit(work(PoolSettings(sys.argv[1]), line, "worker-1", Keyring.load(local=False)))
"""


def test_an_order_that_came_before_a_worker_could_hear_it_ends_one_that_is_idle(redis_url: str) -> None:
    environment = {**os.environ, "GRAFLOW_CKPT_KEY": new_key()}

    ended = subprocess.run([sys.executable, "-c", EARLY, redis_url], env=environment, timeout=15, check=False)

    assert ended.returncode == 0


WAITING = """
import sys
from graflow_ckpt.fleet.board import Board
from graflow_ckpt.fleet.worker import Listening, PoolSettings, work
from graflow_ckpt.stores.around.keys import Keyring

Listening.dequeue_timeout = 50
(line,) = Board(1).lines
sys.exit(work(PoolSettings(sys.argv[1] + "?socket_timeout=60"), line, "worker-1", Keyring.load(local=False)))
"""


def test_an_order_is_heard_in_the_middle_of_a_wait_for_a_token(redis_server: Server, redis_url: str) -> None:
    environment = {**os.environ, "GRAFLOW_CKPT_KEY": new_key()}
    with subprocess.Popen([sys.executable, "-c", WAITING, redis_url], env=environment) as process:
        try:
            deadline = time.monotonic() + 15
            while redis_server.info()["blocked_clients"] == "0":
                assert time.monotonic() < deadline

            process.send_signal(signal.SIGTERM)

            assert process.wait(15) == 0
        finally:
            process.kill()


def test_no_thread_listens_for_orders_of_rq(worker: Listening) -> None:
    worker.subscribe()
    worker.unsubscribe()

    assert worker.pubsub_thread is None


JUNK = [
    b"\xff",
    b"",
    b"evil",
    b"s-e1t1 ",
    b"s-e1t",
    b"../s-e1t1",
    b"s-e1t1\n",
    b"s" * 65 + b"-e1t1",
    "s-e1t²".encode(),
]


@pytest.mark.parametrize("queues", [["q"], ["q", "r"]])
def test_a_name_that_is_no_token_s_is_removed_and_nothing_is_read_for_it(
    redis_server: Server, redis_url: str, queues: list[str]
) -> None:
    worker = Listening(
        queues, "w", connection=redis_server.client(), serializer=JSONSerializer, worker_ttl=75
    )
    redis: Any = worker.connection
    redis.rpush("rq:queue:q", *JUNK, "s-e1t1")
    redis.set("rq:job:s-e1t1", "no hash at all")

    found = worker.dequeue_job_and_maintain_ttl(None)

    assert found is not None
    job, queue = found
    assert (job.id, queue.name) == ("s-e1t1", "q")
    assert redis.lrange("rq:queue:q:intermediate", 0, -1) == ([b"s-e1t1"] if len(queues) == 1 else [])


@pytest.mark.parametrize(
    "key", ["rq:wip:q", "rq:workers", "rq:workers:q", "rq:job:s-e1t1", "rq:executions:s-e1t1", "rq:queue:r"]
)
def test_what_cannot_be_written_to_rq_s_lists_is_named_and_the_slice_runs(
    redis_server: Server, redis_url: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    connection = redis_server.client()
    made = Listening(["r", "q"], "w", connection=connection, serializer=JSONSerializer, worker_ttl=75)
    made.worker = Mute()  # type: ignore[assignment]
    serve(made.worker)
    connection.set(key, "junk")
    connection.rpush("rq:queue:q", "s-e1t1")

    made.register_birth()
    found = made.dequeue_job_and_maintain_ttl(1)
    assert found is not None
    made.execute_job(*found)
    made.register_death()

    assert Mute.ran == [("s", "e1t1")]
    assert f"{key} is a string, not a" in caplog.text


class Mute:
    """A worker that notes what it is to run."""

    ran: ClassVar[list[tuple[str, str]]] = []
    worn = False

    def run(self, session: str, token: str) -> None:
        self.ran[:] = [(session, token)]
