"""What is promised in milliseconds, on any machine. How fast it is, `make bench` says."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from statistics import mean, median
from time import perf_counter
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, ExecutionContext, task, workflow

TIMES = 20
_numbers = count()


def context_with(store: str, size: int) -> ExecutionContext:
    """A session with one value of so many bytes, none of which can be packed."""
    with workflow("w", f"s{next(_numbers)}", store=store) as flow:
        flow.add(task(id="one")(lambda: 1))
    context = flow.execution_context
    context.get_channel().set("value", os.urandom(size))
    return context


def seconds(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


def saves_and_loads(store: str, size: int) -> tuple[list[float], list[float]]:
    context = context_with(store, size)
    saves, loads = [], []
    for _ in range(TIMES):
        saves.append(seconds(context.checkpoint))
        path = context.last_checkpoint_path
        assert path is not None
        loads.append(seconds(lambda path=path: CheckpointManager.resume_from_checkpoint(path)))  # type: ignore[misc]
    return saves, loads


def test_a_kilobyte_is_saved_within_50_ms_and_loaded_within_20(store_url: str) -> None:
    saves, loads = saves_and_loads(store_url, 1000)

    far = store_url.startswith(("s3:", "postgresql:"))  # over a network 100 to 500 ms
    assert mean(saves) < (0.5 if far else 0.050)
    assert mean(loads) < (0.1 if far else 0.020)


def test_a_megabyte_is_saved_and_loaded_within_half_a_second_each(store_url: str) -> None:
    saves, loads = saves_and_loads(store_url, 1_000_000)

    assert mean(saves) < 0.5
    assert mean(loads) < 0.5


@pytest.mark.parametrize(("kind", "limit"), [("memory", 0.005), ("sqlite", 0.010)])
def test_what_needs_no_network_is_faster(kind: str, limit: float, tmp_path: Any) -> None:
    store = "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/kept.db"

    assert min(median(saves_and_loads(store, 1000)[0]) for _ in range(3)) < limit


def test_a_hundred_sessions_at_once_each_come_to_their_own_result(store_url: str) -> None:
    def run(n: int) -> tuple[int, int]:
        with workflow("w", f"h{n}", store=store_url, checkpoint=EveryTask()) as flow:

            @task
            def one() -> int:
                return n

            @task
            def two(one: int) -> int:
                return one + 1

            flow.add(one >> two)
            return n, flow.execute()

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(run, range(100)))

    assert found == [(n, n + 1) for n in range(100)]
    sessions = {m.session_id for m in CheckpointManager.list_checkpoints(store=store_url)}
    assert sessions >= {f"h{n}" for n in range(100)}
