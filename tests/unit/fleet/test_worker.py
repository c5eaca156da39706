"""A worker's name and its connections. How it lives: tests/crash."""

from __future__ import annotations

from graflow_ckpt.fleet.worker import reached, rq_name


def test_a_worker_is_named_by_its_machine_and_process() -> None:
    assert rq_name(77).startswith("graflow-")
    assert rq_name(77).endswith("-77")


def test_a_server_that_is_there_is_reached(redis_url: str) -> None:
    link = reached(redis_url)

    assert link.client.ping()
    link.close()
