"""A thread that a task has left behind writes into a value that is saved: torn at worst, never corrupt."""

from __future__ import annotations

import logging
import pickle
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, task, workflow
from graflow_ckpt.core.errors import Fenced
from graflow_ckpt.stores import open_store

pytestmark = pytest.mark.usefixtures("checkpoints_alone")

SIZE = 2 << 20  # of eight bytes each: four chunks


class Watched:
    """A live value whose pickle has the bytes of an array as they are in that moment."""

    def __init__(self, values: array[int]) -> None:
        self.values = values

    def __reduce_ex__(self, protocol: Any) -> Any:
        return bytearray, (pickle.PickleBuffer(self.values),)


@contextmanager
def written_to(values: array[int]) -> Iterator[None]:
    """Every part of it changes all the time."""
    ending = threading.Event()
    block = array("q", [0]) * (SIZE // 8)

    def write() -> None:
        turn = 0
        while not ending.is_set():
            turn += 1
            block[0] = turn
            start = turn % 8 * len(block)
            values[start] = values[start + len(block) // 2] = values[start + len(block) - 1] = turn

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def test_every_checkpoint_that_was_reported_verifies(store_url: str) -> None:
    saved_under("checkpoint", store_url)


def test_so_does_every_one_beside_a_journal(tmp_path: Path) -> None:
    saved_under("journal", str(tmp_path / "kept"))


def saved_under(durability: Any, store_url: str) -> None:
    values = array("q", [0]) * SIZE

    with workflow("w", "s", store=store_url, durability=durability, rng=False) as flow:

        @task(inject_context=True)
        def step(context: Any) -> None:
            if context.cycle == 0:
                context.get_channel().set("values", Watched(values))
            context.checkpoint()
            if context.cycle < 3:
                context.next_iteration()

        with written_to(values):
            flow.execute(max_steps=10)

    saved = [found.path for found in CheckpointManager.list_checkpoints("s", store=store_url)]
    assert len(saved) >= 4
    for path in saved:
        CheckpointManager.verify(path)


def test_what_comes_too_late_is_refused_by_the_store_and_kept_in_the_log(
    store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[Any] = []

    with workflow("w", "late", store=store_url, rng=False) as flow:

        @task(inject_context=True)
        def step(context: Any) -> None:
            context.checkpoint({"n": context.cycle})
            if context.cycle == 1:
                in_folder = "://" not in store_url and store_url != "memory:"
                if in_folder:  # an owner cannot be fenced while its lock file is in place
                    Path(store_url, ".late.lock").unlink()
                taken.append(open_store(store_url).acquire("late", take_over=not in_folder))
            context.next_iteration()

        with caplog.at_level(logging.ERROR), pytest.raises(Fenced):
            flow.execute(max_steps=5)

    (record,) = [record for record in caplog.records if "was refused" in record.getMessage()]
    assert (record.__dict__["session"], record.__dict__["step"]) == ("late", 2)
    assert record.__dict__["epoch"] < taken[0].epoch
    kept = CheckpointManager.list_checkpoints("late", store=store_url)
    assert [found.user_metadata["n"] for found in kept] == [0]
    taken[0].release()
