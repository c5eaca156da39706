"""Servers that are killed in the middle of a copy and of a prune, and come back: who was at it fails by
name, what is there is whole, and the same command ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, KeepLast
from graflow_ckpt.checkpoint.care.copying import Move
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from tests.crash.doomed import NAMES, REFUSED, SESSION, saved
from tests.crash.ways import FAR, Way, fill, own_name, parts, whole
from tests.unit.checkpoint import trios
from tests.unit.checkpoint.care.test_copying import replayed

pytestmark = pytest.mark.crash

ANSWER, REQUEST = 4, 7  # one that is not heard, and one that is not carried out


@pytest.fixture(params=FAR)
def way(request: pytest.FixtureRequest, way_to: Callable[[str], Way]) -> Way:
    return way_to(request.param)


def copied(origin: CheckpointStore, target: CheckpointStore) -> None:
    moved = Move(origin, target, trios.RING, trios.RING).session(SESSION)
    assert moved.error is None
    assert {cut.state for cut in moved.cuts} <= {"copied", "there"}


def test_a_copy_whose_target_is_killed_is_ended_when_it_is_back(way: Way, tmp_path: Path) -> None:
    origin = open_store(f"file://{tmp_path}/origin")
    fill(origin)

    assert way.without_server("copy", REQUEST, origin=origin.url) == REFUSED

    assert whole(way.store).items() <= whole(origin).items()
    copied(origin, way.store)
    assert parts(way.store) == parts(origin)
    assert replayed(way.store, trios.RING) == [2, 3]
    way.owned_anew(after=1)
    way.emptied()


def test_a_copy_whose_origin_is_killed_is_ended_when_it_is_back(way: Way, tmp_path: Path) -> None:
    fill(way.store)
    before = parts(way.store)
    target = open_store(f"sqlite:///{tmp_path}/target.db")

    assert way.without_server("copy", ANSWER, origin=way.far, store=target.url) == REFUSED

    assert parts(way.store) == before
    assert whole(target).items() <= whole(way.store).items()
    copied(way.store, target)
    assert whole(target) == whole(way.store)
    assert replayed(target, trios.RING) == [2, 3]


def test_a_prune_whose_server_is_killed_is_ended_by_the_next_one(way: Way) -> None:
    for number in range(1, 5):
        saved(way.store, own_name(number), number)

    assert way.without_server("prune", ANSWER) == REFUSED

    left = sorted(whole(way.store).values())
    assert left == list(range(left[0], 5))
    assert not CheckpointManager.prune(KeepLast(1), store=way.url).failed
    assert whole(way.store) == {own_name(4): 4}
    way.owned_anew()
    way.emptied()


@pytest.mark.parametrize("role", ["save", "copy"])
def test_a_server_that_is_killed_and_back_at_once_interrupts_by_name_or_not_at_all(
    way: Way, tmp_path: Path, role: str
) -> None:
    url = f"file://{tmp_path}/origin"
    fill(open_store(url))
    order = {"origin": url, "sequence": 2}

    status = way.with_server_restarted(role, REQUEST, **order)

    assert status == 0 if way.kind == "postgres" else status in (0, REFUSED)
    if status == REFUSED:
        assert way.uninterrupted(role, **order) == 0
    assert whole(way.store).keys() >= set(NAMES)
    assert role == "save" or parts(way.store) == parts(open_store(url))
    way.owned_anew()
    way.emptied()
