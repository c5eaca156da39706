"""Saves, prunes and copies that are killed at every step, on every kind of store: what is there is whole,
old or new, the same command ends it, and nothing is left that nobody refers to.

Steps are counted, so that nothing here is a matter of luck. To save time only some of them are taken,
others with each operation; `KILLS=all pytest tests/crash/test_killed_anywhere.py` takes them all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from graflow_ckpt import CheckpointManager, KeepLast
from graflow_ckpt.checkpoint.care.copying import Move
from graflow_ckpt.checkpoint.values.contents import shares
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import open_store
from tests.crash.doomed import NAMES, SESSION
from tests.crash.ways import Way, fill, own_name, parts, whole
from tests.unit.checkpoint import stocked, trios
from tests.unit.checkpoint.care.test_copying import replayed

pytestmark = pytest.mark.crash

EVERY = 13  # of the steps, one; odd, so that requests and answers have their turns


def test_a_save_that_is_killed_leaves_the_old_one_or_the_new_one_whole(way: Way) -> None:
    seen: list[list[int]] = []
    status = -1
    for at in way.steps(EVERY):
        epoch = way.saved_by_an_owner(dict.fromkeys(NAMES, 1))

        status = way.killed("save", at, sequence=2)

        found = whole(way.store)
        seen.append([found[name] for name in NAMES])
        way.owned_anew(after=epoch)
        assert whole(way.store) == found
        way.emptied()
        if status == 0:
            break

    assert seen[0] == [1, 1]
    assert seen[-1] == [2, 2]
    assert all(one in ([1, 1], [2, 1], [2, 2]) for one in seen)


def test_a_prune_that_is_killed_has_taken_the_oldest_and_the_next_one_ends_it(way: Way) -> None:
    way.saved_by_an_owner({own_name(4): 4})
    alone = len(way.pieces())
    counts: list[int] = []
    status = -1
    for at in way.steps(EVERY):
        way.saved_by_an_owner({own_name(number): number for number in (1, 2, 3, 4)})

        status = way.killed("prune", at)

        left = sorted(whole(way.store).values())
        counts.append(len(left))
        assert left == list(range(left[0], 5))
        way.owned_anew()
        done = CheckpointManager.prune(KeepLast(1), store=way.url)
        assert not done.failed
        assert whole(way.store) == {own_name(4): 4}
        assert len(way.pieces()) == alone
        if status == 0:
            break

    assert (counts[0], counts[-1]) == (4, 1)


def test_nothing_is_left_of_what_was_being_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner of the session clears away what a dead one has left half deleted."""
    monkeypatch.setenv("GRAFLOW_CKPT_KEY", trios.KEY)
    store = open_store(tmp_path)
    stocked.line(store, "s", 3)
    target = tmp_path / "session_s_step_1_17-1"
    # as a kill leaves it after the first of the renames
    target.with_suffix(".meta.json").rename(tmp_path / "session_s_step_1_17-1.deleted.meta.json.tmp")

    assert [cut.sequence for cut in CheckpointManager.prune(KeepLast(1), store=str(tmp_path)).cuts] == [2]
    store.acquire("s").release()

    names = {path.name.partition(".")[0] for path in tmp_path.iterdir() if path.name.startswith("session_")}
    assert names == {"session_s_step_3_17-3"}


@pytest.fixture
def filled(way: Way, tmp_path: Path) -> CheckpointStore:
    """Another store with checkpoints, and a journal after the newest. It shares if the first one does."""
    folder = open_store(f"sqlite:///{tmp_path}/other.db" if shares(way.store) else f"file://{tmp_path}/other")
    fill(folder)
    return folder


def test_a_copy_to_it_that_is_killed_leaves_whole_ones_and_is_ended_by_the_next(
    way: Way, filled: CheckpointStore
) -> None:
    status = -1
    for at in way.steps(EVERY):
        status = way.killed("copy", at, origin=filled.url)

        found = whole(way.store)
        assert found.items() <= whole(filled).items()
        moved = Move(filled, way.store, trios.RING, trios.RING).session(SESSION)
        assert moved.error is None
        assert {cut.state for cut in moved.cuts} <= {"copied", "there"}
        assert sum(cut.state == "there" for cut in moved.cuts) >= len(found)
        assert parts(way.store) == parts(filled)
        assert replayed(way.store, trios.RING) == [2, 3]
        way.owned_anew()  # in a folder, what is emptied begins with epoch 1 again
        way.emptied()
        if status == 0:
            break

    assert at > EVERY


def test_a_copy_from_it_that_is_killed_changes_nothing_there_and_is_ended_by_the_next(
    way: Way, tmp_path: Path
) -> None:
    fill(way.store)
    before, pieces = parts(way.store), way.pieces()
    status = -1
    for at in way.steps(EVERY):
        url = f"sqlite:///{tmp_path}/to-{at}.db" if shares(way.store) else f"file://{tmp_path}/to-{at}"
        target = open_store(url)

        status = way.killed("copy", at, origin=way.far, store=url)

        assert (parts(way.store), way.pieces(), way.store.owner(SESSION)) == (before, pieces, None)
        assert whole(target).items() <= whole(way.store).items()
        moved = Move(way.store, target, trios.RING, trios.RING).session(SESSION)
        assert moved.error is None
        assert parts(target) == before
        assert replayed(target, trios.RING) == [2, 3]
        if status == 0:
            break

    assert at > EVERY
