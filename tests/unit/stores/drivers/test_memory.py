"""What is the memory store's own: places, bounds, forks. That it is a store is shown in tests/conformance."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from graflow_ckpt import CheckpointManager, EveryTask, stores
from graflow_ckpt.core.errors import CheckpointError, Fenced, TooLarge
from graflow_ckpt.stores import open_store, store_of
from graflow_ckpt.stores.drivers.memory.driver import MemoryDriver
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from tests.loops import pair
from tests.trios import listed, own_name, path_of, put, put_own, read
from tests.unit.stores.programs import printed

_STORES = os.path.dirname(stores.__file__)


@pytest.fixture
def place() -> Iterator[str]:
    yield "memory://unit"
    MemoryStore("memory://unit").forget()


@pytest.mark.parametrize(
    "where", ["memory:", "memory://", "memory://main", "memory:?max_bytes=5", "memory://main/"]
)
def test_one_place_is_meant_by_all_its_names(where: str) -> None:
    store = open_store(where)

    assert isinstance(store, MemoryStore)
    assert store.url == store.folder == "memory://main"
    assert (store.synced, store.shared) == (False, False)


def test_places_of_other_names_are_other_places(place: str) -> None:
    path = put(open_store(place), "best", "one")

    assert listed(open_store(place)) == ["best"]
    assert listed(open_store(f"{place}2")) == []
    assert store_of(path) == place
    assert open_store(f"{place}2").takes(path) is None


@pytest.mark.parametrize(
    "where", ["memory://a/b", "memory://a b", "memory:?max=1", "memory:?max_bytes=x", "memory:?max_bytes=-1"]
)
def test_what_is_no_place_is_refused(where: str) -> None:
    with pytest.raises(CheckpointError, match="max_bytes"):
        MemoryStore(where)


def test_a_place_takes_no_more_checkpoints_than_it_may(place: str) -> None:
    store = MemoryStore(f"{place}?max_checkpoints=2")
    kept = [put(store, name, "one") for name in ("a", "b")]

    with pytest.raises(TooLarge, match="2 checkpoints at most") as refused:
        put(store, "c", "one")

    assert refused.value.limit == 2
    assert sorted(listed(store)) == ["a", "b"]
    put(store, "a", "two")  # in the place of one that is there
    store.delete(kept[1])
    put(store, "c", "one")
    assert listed(store) == ["c", "a"]


def test_a_place_takes_no_more_bytes_than_it_may(place: str) -> None:
    store = MemoryStore(place, max_bytes=10_000)
    path = put(store, "best", "one", size=8_000)

    with pytest.raises(TooLarge, match="10000 at most") as refused:
        put(store, "other", "two", size=3_000)
    with pytest.raises(TooLarge):
        put(store, "best", "two", size=10_000)

    assert refused.value.size > refused.value.limit == 10_000
    assert read(store, path).stage == "one"
    put(store, "best", "two", size=9_000)
    assert read(store, path).stage == "two"


def test_what_is_forgotten_is_gone_and_its_owners_with_it(place: str) -> None:
    store = MemoryStore(place)
    lease = store.acquire("s")
    put_own(store, lease, 1)
    store.journal(lease, 1).append(b"frame")

    store.forget()

    assert listed(store) == list(store.segments("s")) == []
    assert store.owner("s") is None
    with pytest.raises(Fenced):
        put_own(store, lease, 2)


def test_a_forked_child_is_refused_and_told_why() -> None:
    program = """
import os
from graflow_ckpt.core.errors import CheckpointError, Fenced
from graflow_ckpt.stores.drivers.memory.driver import MemoryDriver
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from tests.trios import put, put_own
store = MemoryStore("memory:")
lease = store.acquire("s")
journal = store.journal(lease, 0)
if os.fork() == 0:
    for write in (lambda: put(store, "best", "one"), lambda: store.probe(), lambda: store.acquire("t")):
        try:
            write()
        except CheckpointError as error:
            print(error, flush=True)
    for write in (lambda: put_own(store, lease, 1), lambda: journal.append(b"x"), lease.check):
        try:
            write()
        except Fenced:
            print("fenced", flush=True)
    os._exit(0)
os.wait()
put_own(store, lease, 1)
"""
    lines = printed(program)

    assert len(lines) == 6
    assert all("forked child" in line and "Give a folder" in line for line in lines[:3])
    assert lines[3:] == ["fenced"] * 3


def test_a_put_may_read_the_store_that_it_writes(place: str) -> None:
    store = MemoryStore(place)
    path = put(store, "best", "one")

    store.put(
        path_of(store, "copy"),
        [("meta.json", lambda sink: sink.write(store.meta(path)) and None)],
        lease=None,
        stage="one",
    )

    assert store.meta(path_of(store, "copy")) == store.meta(path)
    assert store.takes(path_of(store, own_name())) == path_of(store, own_name())


@pytest.mark.parametrize("durability", ["checkpoint", "journal"])
def test_a_session_goes_on_from_memory(place: str, durability: str) -> None:
    ran: list[str] = []
    kept: dict[str, Any] = {"store": place, "checkpoint": EveryTask(), "durability": durability}

    with pytest.raises(OSError, match="not yet"):
        pair(ran, fails=True, **kept).execute()
    result = pair(ran, **kept).execute()

    assert result == 2
    assert ran == ["a", "b", "b"]
    newest = CheckpointManager.get_latest("s", store=place)
    assert newest.startswith(f"{place}/session_s_step_2_")
    assert CheckpointManager.verify(newest).session_id == "s"


def test_wherever_ctrl_c_comes_the_former_checkpoint_is_there_or_the_new_one() -> None:
    store = MemoryStore("memory://interrupted")
    put(store, "best", "n0")
    step = 0

    def interrupted(frame: FrameType, event: str, argument: object) -> object:
        nonlocal step
        if frame.f_code.co_filename.startswith(_STORES) and event in ("call", "line"):
            step += 1
            if step == at:
                raise KeyboardInterrupt
        # no signal comes between a block and its `with`, and a line does: where locks are held, calls do
        return interrupted if frame.f_code is MemoryDriver.batch.__code__ else None

    former, ended, at = "n0", False, 0
    while not ended:
        step, tracing, at = 0, sys.gettrace(), at + 1
        sys.settrace(interrupted)
        try:
            put(store, "best", f"n{at}")
            ended = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracing)
        found = read(store, path_of(store, "best")).stage
        assert found in {former, f"n{at}"}
        former = found
    assert former == f"n{at}"
    assert at > 50
    store.forget()
