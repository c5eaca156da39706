"""Contents in a bucket: what they cost, where they lie, and what a save leaves that was killed anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.core.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointNotFound,
    Fenced,
    ServerGone,
)
from graflow_ckpt.stores import objects_head, objects_orphans, objects_put
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.stores.objects_chunks import CHUNK
from graflow_ckpt.stores.objects_trio import AHEAD
from graflow_ckpt.stores.strays import strays
from graflow_ckpt.testing.trios import (
    all_of,
    content,
    held,
    meta_holding,
    name_of,
    own_name,
    path_of,
    put,
    put_holding,
    put_meta,
    put_own,
    there,
    writer,
)
from tests.unit.stores.buckets import keys, requests
from tests.unit.stores.interruptions import Killed, happening, killed, lost

ROOT = Path(__file__).parents[3]
ONE, TWO, THREE = content(1), content(2), content(3)
NAMES = pytest.mark.parametrize("name", ["best", own_name()])
MOST = 30  # operations; that no save has more is asserted


@pytest.fixture
def fresh(objects_url: str) -> Callable[[], ObjectStore]:
    """Another process's view of the same store."""
    return lambda: ObjectStore(objects_url)


@pytest.fixture
def store(fresh: Callable[[], ObjectStore]) -> ObjectStore:
    return fresh()


# --- what it costs -----------------------------------------------------------------------


def test_what_has_not_changed_is_pinned_and_committed_and_not_written(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = store.acquire("s")
    put_holding(store, own_name(sequence=1), "one", [ONE, TWO], lease=lease)

    with requests(store, monkeypatch) as same:
        put_holding(store, own_name(sequence=2), "two", [ONE, TWO], lease=lease)
    with requests(store, monkeypatch) as changed:
        put_holding(store, own_name(sequence=3), "three", [ONE, THREE], lease=lease)
    with requests(store, monkeypatch) as small:
        put_own(store, lease, 4)

    assert same == ["_put", "_put"]
    assert changed == ["_put", "_put", "_put"]
    assert small == ["_put"]
    assert len(keys(store, "data")) == 3
    lease.release()


def test_a_load_asks_once_for_what_is_small_and_once_for_each_content(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put_holding(store, own_name(), "one", [ONE, TWO, THREE])

    with requests(store, monkeypatch) as made:
        assert held(store, path) == [ONE, TWO, THREE]

    assert made == ["get", *["get_range"] * 3]


def test_ten_checkpoints_of_sixty_four_contents_are_a_head_of_a_few_kilobytes(store: ObjectStore) -> None:
    lease = store.acquire("s")
    some = [content(number, 100) for number in range(64)]
    for turn in range(10):
        some[turn] = content(1000 + turn, 100)
        put_holding(store, own_name(sequence=turn), f"n{turn}", some, lease=lease)

    assert len(lease.head.encode().partition(b"\n")[0]) < 20_000  # behind it are the metas
    assert len(keys(store, "data")) == 64 + 9  # the first one changed before it was saved
    lease.release()


def test_contents_are_fetched_while_others_are_read_and_no_more_than_a_few(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [content(number) for number in (5, 3, 9, 1, 7, 2, 8, 4)]
    path = put_holding(store, own_name(), "one", some)
    store.meta(path)
    ahead = store._all.trios._ahead

    with requests(store, monkeypatch) as made:
        first = store.contents.open(path, name_of(some[0]), "one")
        for future in ahead._coming.values():
            future.result()

    assert made == ["get_range"] * (1 + AHEAD)
    assert all_of(first) == some[0]
    assert held(store, path) == some
    assert ahead._coming == {}
    assert ahead._pool is None


def test_what_could_not_be_fetched_ahead_is_asked_for_again_in_its_turn(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put_holding(store, own_name(), "one", [ONE, TWO])
    store.meta(path)

    bucket, times = store._all.bucket, []
    get_range = bucket.get_range

    def lost_once(key: str, start: int, length: int) -> Any:
        if name_of(TWO) in key and not times:
            times.append(key)
            lost()
        return get_range(key, start, length)

    with monkeypatch.context() as patch:
        patch.setattr(bucket, "get_range", lost_once)
        store.contents.open(path, name_of(ONE), "one").close()
        for future in store._all.trios._ahead._coming.values():
            assert isinstance(future.exception(), ServerGone)

    assert times
    assert all_of(store.contents.open(path, name_of(TWO), "one")) == TWO


# --- where they lie ----------------------------------------------------------------------


def test_another_name_has_contents_of_its_own_and_takes_them_with_it(store: ObjectStore) -> None:
    lease = store.acquire("s")
    own = put_holding(store, own_name(), "one", [ONE, TWO], lease=lease)
    path = put_holding(store, "best", "two", [ONE, TWO], lease=lease)
    assert len(keys(store, "data")) == 4

    store.delete(own)

    assert held(ObjectStore(store.url), path) == [ONE, TWO]
    put_holding(store, "best", "three", [TWO], lease=lease)
    assert held(store, path) == [TWO]
    assert len(keys(store, "data")) == 1
    store.delete(path)
    assert keys(store, "data") == []
    lease.release()


def test_a_name_that_is_sealed_anew_keeps_its_contents_and_gets_no_others(store: ObjectStore) -> None:
    path = put_holding(store, "best", "one", [ONE, TWO])

    put_meta(store, "best", meta_holding("one", [name_of(TWO), name_of(ONE)]), stage="one")
    with pytest.raises(CheckpointError, match="contents"):
        put_meta(store, "best", meta_holding("one", [name_of(THREE)]), stage="one")
    with pytest.raises(CheckpointError, match="another checkpoint"):
        put_meta(store, "best", meta_holding("two", [name_of(ONE)]), stage="two")

    assert held(store, path) == [TWO, ONE]
    put(store, "best", "plain")
    assert keys(store, "data") == []


def test_where_the_head_has_no_room_a_checkpoint_has_contents_of_its_own(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put_holding(store, own_name(sequence=1), "one", [ONE])
    monkeypatch.setattr(objects_put, "LISTED", 2 * objects_head.ROW)

    second = put_holding(store, own_name(sequence=2), "two", [ONE, TWO, THREE])  # ONE is there

    assert held(ObjectStore(store.url), second) == [ONE, TWO, THREE]
    assert there(store, [ONE, TWO, THREE]) == {ONE}
    put_meta(store, own_name(sequence=2), meta_holding("two", map(name_of, [THREE, ONE, TWO])), stage="two")
    assert held(store, second) == [THREE, ONE, TWO]
    assert len(keys(store, "data")) == 3
    store.delete(first)
    assert held(store, second) == [THREE, ONE, TWO]
    store.delete(second)
    assert keys(store, "data") == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda said: said["commits"].popitem()[1][-1][0].append(99),
        lambda said: said["commits"].popitem()[1][-1][0].append(-1),
        lambda said: said["contents"].clear(),
        lambda said: said.update(contents={"0-x": [["../x", 3]]}),
        lambda said: said.update(contents={"0-x": [["a" * 64, 10**18]]}),
        lambda said: said.update(bad=[7]),
        lambda said: said.update(pins={"0-x": ["yesterday", [0]]}),
    ],
)
def test_a_head_whose_contents_make_no_sense_is_damaged(
    store: ObjectStore, damage: Callable[[Any], object]
) -> None:
    path = put_holding(store, own_name(), "one", [ONE])
    bucket = store._all.bucket
    found = bucket.get("sessions/s")
    assert found is not None
    line, _, inline = found.data.partition(b"\n")
    said = json.loads(line)
    commits = dict(said["commits"])
    damage(said)
    bucket.put("sessions/s", json.dumps(said | {"commits": commits}).encode() + b"\n" + inline)

    with pytest.raises(CheckpointCorrupt, match="damaged"):
        store.meta(path)


def test_what_is_let_go_is_removed_at_once_and_nothing_else(store: ObjectStore) -> None:
    first = put_holding(store, own_name(sequence=1), "one", [ONE, TWO])
    second = put_holding(store, own_name(sequence=2), "two", [TWO, THREE])
    assert len(keys(store, "data")) == 3

    put_holding(store, own_name(sequence=1), "three", [TWO])
    assert len(keys(store, "data")) == 2
    store.delete_many([second])
    assert len(keys(store, "data")) == 1
    assert held(store, first) == [TWO]
    put(store, own_name(sequence=1), "plain")
    assert keys(store, "data") == []


# --- what is left ------------------------------------------------------------------------


@NAMES
def test_a_save_killed_anywhere_leaves_whole_checkpoints_and_nothing_once_somebody_owns_the_session(
    fresh: Callable[[], ObjectStore], name: str
) -> None:
    large = content(4, CHUNK + 5)
    done = False
    for at in range(MOST):
        victim = fresh()
        lease = victim.acquire("s", take_over=True)
        put_holding(victim, name, f"old{at}", [ONE, TWO], lease=lease)
        with killed(victim, at), suppress(Killed):
            put_holding(victim, name, f"new{at}", [TWO, THREE, large], lease=lease)
            done = True

        new = fresh().acquire("s", take_over=True)
        stage = json.loads(fresh().meta(name))["stage"]
        expected = [ONE, TWO] if stage.startswith("old") else [TWO, THREE, large]
        assert held(fresh(), name) == expected
        assert len(keys(fresh(), "data")) == sum(-(-len(each) // CHUNK) for each in expected)
        assert fresh()._all.heads.read("s").head.pins == {}
        new.release()
        assert fresh().delete(name)
        assert keys(fresh(), "data") == []
        if done:
            break

    assert done


@NAMES
def test_a_reply_lost_anywhere_in_a_save_leaves_it_whole_or_undone(
    fresh: Callable[[], ObjectStore], name: str
) -> None:
    for at in range(MOST):
        store = fresh()
        lease = store.acquire("s", take_over=True)
        put_holding(store, name, f"old{at}", [ONE, TWO], lease=lease)

        failed = True
        with happening(store, at, lost, after=True) as point, suppress(CheckpointError):
            put_holding(store, name, f"new{at}", [TWO, THREE], lease=lease)
            failed = False

        assert held(fresh(), name) == ([ONE, TWO] if failed else [TWO, THREE])
        lease.release()
        fresh().acquire("s").release()
        assert len(keys(fresh(), "data")) == 2
        if not point.happened:
            break

    assert not point.happened


@NAMES
@pytest.mark.parametrize("fenced", [False, True])
def test_a_save_that_fails_or_is_fenced_takes_away_what_it_has_written(
    fresh: Callable[[], ObjectStore], name: str, fenced: bool
) -> None:
    store, other = fresh(), fresh()
    lease = store.acquire("s")
    put_holding(store, name, "one", [ONE, TWO], lease=lease)
    before = keys(other, "data")
    saving = store.contents.saving(name, lease=lease, stage="two")

    def values(sink: object) -> None:
        saving.hold([name_of(ONE), name_of(THREE)])
        saving.add(name_of(THREE), len(THREE), [THREE])
        saving.settle()
        assert len(keys(other, "data")) == len(before) + 1
        if not fenced:
            raise OSError("no more")
        other.acquire("s", take_over=True).release()

    meta = writer(meta_holding("two", [name_of(THREE)]))
    with pytest.raises(Fenced if fenced else OSError):
        store.put(name, [("pkl", values), ("meta.json", meta)], lease=lease, stage="two")
    saving.end()

    assert keys(other, "data") == before
    assert other._all.heads.read("s").head.pins == {}
    assert held(other, name) == [ONE, TWO]


def test_what_a_stopped_owner_writes_after_a_takeover_is_swept_and_never_believed(
    fresh: Callable[[], ObjectStore],
) -> None:
    old, new = fresh(), fresh()
    lease = old.acquire("s")
    saving = old.contents.saving(path_of(old, own_name()), lease=lease, stage="late")
    next_lease = new.acquire("s", take_over=True)

    def values(sink: object) -> None:
        saving.add(name_of(ONE), len(ONE), [ONE])
        saving.settle()

    meta = writer(meta_holding("late", [name_of(ONE)]))
    with pytest.raises(Fenced):
        old.put(own_name(), [("pkl", values), ("meta.json", meta)], lease=lease, stage="late")
    assert len(keys(new, "data")) == 1  # it was not taken away by who is not told any more
    assert there(new, [ONE]) == set()

    assert new.contents.sweep() == 1

    assert keys(new, "data") == []
    next_lease.release()


def test_who_has_no_lease_and_takes_longer_than_a_day_is_refused_and_swept(
    fresh: Callable[[], ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = fresh(), fresh()
    former = put_holding(store, own_name(sequence=1), "one", [ONE])
    path = path_of(store, own_name(sequence=2))
    saving = store.contents.saving(path, lease=None, stage="two")

    def values(sink: object) -> None:
        assert set(saving.hold([name_of(ONE)])) == {name_of(ONE)}
        saving.add(name_of(TWO), len(TWO), [TWO])
        saving.settle()
        other.delete(former)
        assert other.contents.sweep() == 0
        assert len(keys(other, "data")) == 2
        with monkeypatch.context() as patch:
            patch.setattr(objects_orphans, "LIFE", timedelta(-1))
            assert other.contents.sweep() == 2
        assert keys(other, "data") == []

    meta = writer(meta_holding("two", [name_of(ONE), name_of(TWO)]))
    with pytest.raises(CheckpointError, match="2 of its contents"):
        store.put(path, [("pkl", values), ("meta.json", meta)], lease=None, stage="two")
    saving.end()

    with pytest.raises(CheckpointNotFound):
        store.meta(path)


def test_who_was_swept_for_it_is_not_pinned_again(
    fresh: Callable[[], ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fresh()
    saving = store.contents.saving(own_name(), lease=None, stage="one")
    saving.hold([])
    monkeypatch.setattr(objects_orphans, "LIFE", timedelta(-1))
    saving.add(name_of(ONE), len(ONE), [ONE])
    saving.settle()

    assert fresh().contents.sweep() == 1

    with pytest.raises(CheckpointError, match="contents"):  # else it would be believed to have written ONE
        saving.hold([name_of(TWO)])
    saving.end()


def test_what_is_left_under_a_name_without_a_lease_is_swept_after_a_day(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put_holding(store, "best", "one", [ONE])
    dead = store.contents.saving("other", lease=None, stage="dead")
    dead.add(name_of(TWO), len(TWO), [TWO])
    dead.settle()

    assert store.contents.sweep() == 0
    monkeypatch.setattr(objects_orphans, "LIFE", timedelta(-1))
    assert store.contents.sweep() == 1

    assert held(store, path) == [ONE]
    assert len(keys(store, "data")) == 1


SAVER = """
import sys
from graflow_ckpt.stores.objects import ObjectStore
from graflow_ckpt.testing.trios import content, name_of, put_holding
from graflow_ckpt.testing.trios import own_name
store = ObjectStore(sys.argv[1])
lease = store.acquire("s")
put_holding(store, own_name(sequence=1), "one", [content(1), content(2)], lease=lease)
saving = store.contents.saving(own_name(sequence=2), lease=lease, stage="two")
def values(sink):
    saving.hold([name_of(content(1))])
    saving.add(name_of(content(3)), len(content(3)), [content(3)])
    saving.settle()
    print("there", flush=True)
    sys.stdin.read()
store.put(own_name(sequence=2), [("pkl", values), ("meta.json", values)], lease=lease, stage="two")
"""


def test_what_a_saver_has_left_that_was_killed_in_mid_save_is_seen_and_swept(
    store: ObjectStore, objects_url: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SAVER, objects_url], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as saver:
        assert saver.stdout is not None
        assert saver.stdout.readline() == b"there\n"
        assert store.contents.sweep() == 0
        assert list(strays(store) or ()) == []  # it is run
        assert len(keys(store, "data")) == 3
        saver.kill()

    (stray,) = strays(store) or ()
    assert (stray.kind, stray.size, stray.session) == ("staged", len(THREE), "s")
    assert store.contents.sweep() == 1

    assert len(keys(store, "data")) == 2
    assert store._all.heads.read("s").head.pins == {}
    assert list(strays(store) or ()) == []
    assert held(store, own_name(sequence=1)) == [ONE, TWO]
