"""Tokens in RQ: posted, posted again where they were lost, withdrawn, and never a pickle on the wire."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from redis import RedisError
from rq import Queue, SimpleWorker
from rq.job import Job
from rq.serializers import JSONSerializer

from graflow_ckpt.fleet.tokens import Carrier, job_id, queue_name
from tests.servers import Server


@pytest.fixture
def carrier(redis_server: Server, redis_url: str) -> Carrier:
    return Carrier(redis_server.client())


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
    carrier = Carrier(server.client(retry=None, socket_timeout=1))
    server.kill()

    carrier.offer("s", "e1t1", "gpu")

    assert "waits for a steward" in caplog.text
    with pytest.raises(RedisError):
        carrier.post("s", "e1t1", "gpu")


def test_ids_are_what_rq_takes(carrier: Carrier) -> None:
    assert job_id("s_1-x", "e1t1") == "s_1-x-e1t1"
    carrier.post("s_1-x", "e1t1", "gpu")
    assert carrier.waiting(["gpu", "other"]) == {"gpu": 1, "other": 0}
