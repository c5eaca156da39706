"""What workers and their parent tell each other: a board read whole, tokens, and what a worker hears."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from mmap import mmap
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from rq import Queue, SimpleWorker
from rq.job import Job
from rq.serializers import JSONSerializer

from graflow_ckpt.core.errors import ServerGone
from graflow_ckpt.fleet.board import Board, BoardLine, Order, RunningSlice, State
from graflow_ckpt.fleet.client import Client, Terms
from graflow_ckpt.fleet.deaths import OPAQUE
from graflow_ckpt.fleet.lists import ACTIVE, Presence, host_key, owner_text, place
from graflow_ckpt.fleet.slice import Worker, serve
from graflow_ckpt.fleet.tokens import Carrier, job_id, queue_name
from graflow_ckpt.fleet.worker import Listening, NoAlarm, Shutdown
from graflow_ckpt.links.processes import is_near, myself, owner_from
from graflow_ckpt.links.redis import open_link
from graflow_ckpt.sessions.redis.session import RedisSession
from graflow_ckpt.stores.around.keys import new_key
from tests.servers import Server
from tests.stretch import until
from tests.unit.fleet.played import bag, task_of


class Killed(Exception):
    pass


class Mortal(mmap):
    """A page whose writer dies at its nth write."""

    writes = 10**9

    def __setitem__(self, where: Any, what: Any) -> None:
        self.writes -= 1
        if self.writes < 0:
            raise Killed
        super().__setitem__(where, what)


def line() -> BoardLine:
    return Board(1).lines[0]


def test_what_a_child_notes_its_parent_reads() -> None:
    board = Board(2)
    pid = os.fork()
    if pid == 0:
        board.lines[1].note("session", "e1t7")
        os._exit(0)
    os.waitpid(pid, 0)

    assert board.lines[1].run == RunningSlice("session", "e1t7")
    assert board.lines[1].slices == 1
    assert board.lines[1].state is State.BUSY
    assert board.lines[0].run is None


def test_a_slice_that_is_over_is_not_there_any_more() -> None:
    one = line()
    one.note("session", "e1t7")
    one.note("", "")

    assert one.run is None
    assert one.state is State.IDLE


def test_the_longest_names_fit() -> None:
    one = line()
    one.note("s" * 64, "e123456t12345678901234567890")

    assert one.run == RunningSlice("s" * 64, "e123456t12345678901234567890")


@pytest.mark.parametrize("after", range(4))
def test_a_writer_that_dies_leaves_nothing_or_the_whole(after: int) -> None:
    page = Mortal(-1, 4096)
    one = BoardLine(page, 256)
    one.note("before", "e1t1")

    page.writes = after
    with pytest.raises(Killed):
        one.note("a-session-with-a-longer-name", "e1t2")

    assert one.run in (
        None,
        RunningSlice("before", "e1t1"),
        RunningSlice("a-session-with-a-longer-name", "e1t2"),
    )
    assert (one.run is None) == (after in (1, 2))


def test_orders_and_their_deadlines_reach_the_child() -> None:
    one = line()
    assert one.order is Order.WORK

    one.tell(Order.DRAIN, 12.5)

    assert (one.order, one.deadline) == (Order.DRAIN, 12.5)


def test_a_new_child_finds_nothing_of_the_one_before_it() -> None:
    one = line()
    one.begin(77)
    one.note("session", "e1t7")
    one.tell(Order.LEAVE, 1.0)

    one.reset()

    assert (one.pid, one.run, one.order, one.slices, one.state) == (0, None, Order.WORK, 0, State.STARTING)


# --- lists ------------------------------------------------------------------------------


def test_a_place_is_where_a_pid_means_the_same_process() -> None:
    assert place() == place()
    assert myself().boot in place()
    assert set(place()) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")


def test_an_owner_is_read_as_it_was_written_and_nonsense_is_nobody() -> None:
    me = myself()

    assert owner_from(owner_text(me)) == me
    assert is_near(me)
    for text in ("", "x", "{}", "[1]", '{"pid": 1}'):
        assert owner_from(text) is None


def test_a_slice_is_listed_while_it_runs(client: Client, redis: Any) -> None:
    presence = Presence(client.link, "somebody")
    pipe = redis.pipeline(transaction=False)

    presence.begin("s", "e1t1", pipe)
    pipe.execute()
    during = redis.hgetall(host_key(place()))
    presence.end("s", "e1t1")

    assert during == {b"s e1t1": b"somebody"}
    assert redis.hgetall(host_key(place())) == {}


def test_what_is_due_before_the_next_round_is_announced(client: Client, redis: Any) -> None:
    client.submit_calls(task_of("soon"), None, Terms("soon", delay=0.3))
    client.submit_calls(task_of("late"), None, Terms("late", delay=30))
    bag(client, "none", tasks=1)
    for name in ("soon", "late", "none"):
        redis.zadd(ACTIVE, {name: 10**15})
        Presence(client.link, "somebody").end(name, "e1t1")

    looks = {name: redis.zscore(ACTIVE, name) for name in ("soon", "late", "none")}
    assert looks["late"] == looks["none"] == 10**15
    assert 0 < looks["soon"] / 1000 - time.time() <= 0.3


def test_a_session_that_has_left_the_rota_is_not_brought_back(client: Client, redis: Any) -> None:
    client.submit_calls(task_of("soon"), None, Terms("soon", delay=0.3))
    redis.zrem(ACTIVE, "soon")

    Presence(client.link, "somebody").end("soon", "e1t1")

    assert redis.zscore(ACTIVE, "soon") is None


# --- tokens ---------------------------------------------------------------------------


@pytest.fixture
def carrier(redis_url: str) -> Carrier:
    return Carrier(open_link(redis_url))


def waits(carrier: Carrier) -> list[str]:
    return list(carrier.queue("gpu").job_ids)


def test_a_token_is_a_job_with_two_strings(carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle, "loads", lambda *args: pytest.fail("a pickle was opened"))
    monkeypatch.setattr(pickle, "dumps", lambda *args: pytest.fail("a pickle was made"))

    carrier.post("s", "e1t1", "gpu")

    job = Job.fetch("s-e1t1", carrier.connection, serializer=JSONSerializer)
    assert (job.func_name, job.args, job.timeout, job.result_ttl) == (
        "graflow_ckpt.fleet.slice.run_slice", ["s", "e1t1"], -1, 0,
    )  # fmt: skip
    assert job.origin == queue_name("gpu")


def test_a_token_that_waits_is_not_posted_again(carrier: Carrier) -> None:
    for token in ("e1t1", "e1t2"):
        carrier.post("s", token, "gpu")

    assert not carrier.post_again("s", "e1t1", "gpu")
    assert waits(carrier) == ["s-e1t1", "s-e1t2"]


def test_a_token_that_was_lost_is_posted_again_once(carrier: Carrier) -> None:
    carrier.post("s", "e1t1", "gpu")
    carrier.queue("gpu").remove("s-e1t1")  # the job is known, and in no queue

    assert carrier.post_again("s", "e1t1", "gpu")
    assert not carrier.post_again("s", "e1t1", "gpu")
    assert waits(carrier) == ["s-e1t1"]


def test_nothing_is_left_of_a_token_that_is_withdrawn_wherever_it_is(carrier: Carrier) -> None:
    queue = carrier.queue("gpu")
    carrier.post("s", "e1t1", "gpu")
    carrier.connection.lmove(queue.key, queue.intermediate_queue_key)  # a worker has taken it
    job = queue.fetch_job("s-e1t1")
    assert job is not None
    SimpleWorker([queue], connection=carrier.connection, serializer=JSONSerializer).prepare_execution(job)

    carrier.withdraw("s", "e1t1")
    carrier.withdraw("s", "e1t1")  # once more does no harm

    assert carrier.connection.keys("*e1t1*") == []
    assert queue.started_job_registry.get_job_ids() == []
    assert carrier.taken_by_nobody("gpu") == []


def test_what_a_worker_took_and_did_not_begin_is_known(carrier: Carrier) -> None:
    queue = carrier.queue("gpu")
    carrier.post("a-session-with-dashes", "e1t1", "gpu")
    carrier.connection.lmove(queue.key, queue.intermediate_queue_key)

    assert carrier.taken_by_nobody("gpu") == [("a-session-with-dashes", "e1t1")]


def test_what_a_worker_has_begun_on_is_known_in_all_our_queues(carrier: Carrier) -> None:
    queue = carrier.queue("gpu")
    carrier.post("a-session-with-dashes", "e1t1", "gpu")
    carrier.post("s", "e1t2", "default")
    Queue("others", connection=carrier.connection).enqueue(print)
    job = queue.fetch_job("a-session-with-dashes-e1t1")
    assert job is not None
    SimpleWorker([queue], connection=carrier.connection, serializer=JSONSerializer).prepare_execution(job)

    assert carrier.begun() == ({("a-session-with-dashes", "e1t1"): "gpu"}, [])


def test_in_mid_work_a_queue_that_is_away_is_left_to_a_steward(
    own_redis: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = own_redis()
    carrier = Carrier(open_link(server.url, timeout=1))
    server.kill()

    carrier.offer("s", "e1t1", "gpu")

    assert "waits for a steward" in caplog.text
    with pytest.raises(ServerGone):
        carrier.post("s", "e1t1", "gpu")


def test_ids_are_what_rq_takes(carrier: Carrier) -> None:
    assert job_id("s_1-x", "e1t1") == "s_1-x-e1t1"
    carrier.post("s_1-x", "e1t1", "gpu")
    assert carrier.waiting(["gpu", "other"]) == {"gpu": 1, "other": 0}


# --- what a worker hears --------------------------------------------------------------


def listening(connection: Any, *queues: str) -> Listening:
    return Listening(queues, "w", connection=connection, serializer=JSONSerializer, worker_ttl=75)


@pytest.fixture
def worker(redis_server: Server, redis_url: str) -> Listening:
    return listening(redis_server.client(), "q")


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
    worker = listening(client, "q")

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


def test_a_process_that_leaves_takes_no_token_after_the_slice_that_it_ends(
    worker: Listening, redis_url: str
) -> None:
    link = open_link(redis_url)
    worker.worker = Worker(link, Carrier(link), None, owner="{}")
    (line,) = Board(1).lines
    leaving = Shutdown(worker, line, 1.0)
    leaving._gone = True  # a thread has released what runs, and unwinds the body
    worker.worker.carrier.post("s", "e1t1", "q")

    with pytest.raises(SystemExit):
        leaving.told(signal.SIGTERM, None)
    with pytest.raises(SystemExit):  # the slice has caught the first one, and RQ asks for the next token
        worker.dequeue_job_and_maintain_ttl(1)

    assert worker.worker.carrier.waiting(["q"]) == {"q": 1}


def test_a_process_stays_whose_token_was_retired_by_a_commit_that_was_answered_after_the_keeper(
    worker: Listening, redis_url: str
) -> None:
    link = open_link(redis_url)
    worker.worker = Worker(link, Carrier(link), None, owner="{}")
    (line,) = Board(1).lines
    slow: Any = SimpleNamespace(part=SimpleNamespace(session=RedisSession(link, "s", OPAQUE)))
    worker.worker.slice = slow  # all that it held is committed, and its checkpoint is being written
    if (pid := os.fork()) == 0:
        Shutdown(worker, line, 1.0)._go_when_it_stays(slow)
        os._exit(0)

    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 0


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
            until(lambda: redis_server.info()["blocked_clients"] != "0")

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
    worker = listening(redis_server.client(), *queues)
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
    made = listening(connection, "r", "q")
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
