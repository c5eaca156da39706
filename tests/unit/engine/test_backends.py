"""Where a session's queue and channel are: both in one place, and what that place needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from graflow_ckpt import ExecutionContext, TaskGraph
from graflow_ckpt.core.errors import SessionError
from graflow_ckpt.engine.context import one_backend


@pytest.mark.parametrize("name", ["queue", "channel"])
def test_a_backend_that_is_not_there_is_refused_by_name(name: str) -> None:
    with pytest.raises(SessionError, match=f"{name}_backend='kafka' is not available") as refusal:
        ExecutionContext.create(TaskGraph(), "a", **{f"{name}_backend": "kafka"})  # type: ignore[arg-type]

    assert refusal.value.hint == "There are: memory, redis."


@pytest.mark.parametrize(("queue", "channel"), [("memory", "redis"), ("redis", "memory")])
def test_a_mixture_of_backends_is_refused_by_name(queue: str, channel: str) -> None:
    with pytest.raises(SessionError, match=f"queue_backend='{queue}' and channel_backend='{channel}'"):
        ExecutionContext.create(TaskGraph(), "a", queue_backend=queue, channel_backend=channel)


def test_both_in_one_place_is_taken() -> None:
    assert [one_backend(name, name) for name in ("memory", "redis")] == ["memory", "redis"]


def test_redis_without_an_address_is_refused_with_the_ways_to_give_one() -> None:
    with pytest.raises(SessionError, match="needs a server") as refusal:
        ExecutionContext.create(TaskGraph(), "a", queue_backend="redis", channel_backend="redis")

    assert all(word in refusal.value.hint for word in ("redis_client", "redis_url", "GRAFLOW_CKPT_REDIS_URL"))


def test_without_the_package_the_extra_to_install_is_named() -> None:
    program = """
import sys
sys.modules["redis"] = None
from graflow_ckpt import ExecutionContext, TaskGraph
try:
    ExecutionContext.create(TaskGraph(), "a", queue_backend="redis", channel_backend="redis")
except Exception as error:
    print(type(error).__name__, error)
"""

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert said.startswith("PackageMissing A Redis server cannot be used")
    assert "graflow-ckpt[fleet]" in said
