"""Contents of keyed stores: nothing of them stays or is lost, whoever dies, is fenced, or is not answered.

Not here: what every store with contents promises (tests/conformance).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, CheckpointNotFound, Fenced
from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores import lease as leases
from graflow_ckpt.stores.driver import Put
from graflow_ckpt.stores.head import head_key
from tests.trios import (
    content,
    held,
    meta_holding,
    name_of,
    own_name,
    path_of,
    pieces,
    put,
    put_holding,
    put_meta,
    there,
    writer,
)
from tests.unit.stores.kinds import Kind, kept

ONE, TWO, THREE = content(1), content(2), content(3)
LARGE = content(4, 300_000)
NAMES = pytest.mark.parametrize("name", [own_name(), "best"], ids=["own", "named"])


def saving_of(store: Any, name: str, lease: Any, stage: str, found: list[bytes], new: list[bytes]) -> Any:
    """A save under way, and what writes its values."""
    saving = store.contents.saving(path_of(store, name), lease=lease, stage=stage)

    def values(sink: object) -> None:
        saving.hold([name_of(each) for each in found])
        for each in new:
            saving.add(name_of(each), len(each), pieces(each))
        saving.settle()

    return saving, values


# --- where they lie ----------------------------------------------------------------------


def test_what_has_not_changed_is_not_written_and_another_name_has_its_own(
    store: CheckpointStore, kind: Kind
) -> None:
    lease = store.acquire("s")
    own = put_holding(store, own_name(sequence=1), "one", [ONE, TWO], lease=lease)
    put_holding(store, own_name(sequence=2), "two", [ONE, TWO, THREE], lease=lease)
    assert len(kept(kind)) == 3
    path = put_holding(store, "best", "two", [ONE, TWO], lease=lease)
    assert len(kept(kind)) == 5

    store.delete_many([own, path_of(store, own_name(sequence=2))])
    put(store, own_name(sequence=3), "three", lease=lease)

    assert len(kept(kind)) == 2
    assert held(kind.open(), path) == [ONE, TWO]
    put_holding(store, "best", "three", [TWO], lease=lease)
    assert (held(store, path), len(kept(kind))) == ([TWO], 1)
    store.delete(path)
    assert kept(kind) == set()
    lease.release()


def test_a_name_that_is_sealed_anew_keeps_its_contents_and_gets_no_others(
    store: CheckpointStore, kind: Kind
) -> None:
    path = put_holding(store, "best", "one", [ONE, TWO])

    put_meta(store, "best", meta_holding("one", [name_of(TWO), name_of(ONE)]), stage="one")
    with pytest.raises(CheckpointError, match="contents"):
        put_meta(store, "best", meta_holding("one", [name_of(THREE)]), stage="one")

    assert held(store, path) == [TWO, ONE]
    put(store, "best", "plain")
    assert kept(kind) == set()


def test_ten_checkpoints_of_sixty_four_contents_are_a_head_of_some_kilobytes(
    store: CheckpointStore, kind: Kind
) -> None:
    lease = store.acquire("s")
    some = [content(number, 100) for number in range(64)]
    for turn in range(10):
        some[turn] = content(1000 + turn, 100)
        put_holding(store, own_name(sequence=turn), f"n{turn}", some, lease=lease)

    assert len(kept(kind)) == 64 + 9  # the first one changed before it was saved
    assert len(kind.head().encode()) < 150_000
    lease.release()


# --- what is damaged ---------------------------------------------------------------------


def test_what_the_place_has_dropped_is_missed_and_stored_anew(store: CheckpointStore, kind: Kind) -> None:
    path = put_holding(store, "best", "one", [LARGE])
    (first, *_) = [key for key in kind.listed() if len(key.split("/")) == 5]
    kind.driver.batch([], [first])
    with pytest.raises(CheckpointCorrupt, match="holds no content"):
        store.contents.open(path, name_of(LARGE), "one")
    store.contents.distrust(path, name_of(LARGE), "one")

    put_holding(store, "best", "two", [LARGE])

    assert held(store, path) == [LARGE]
    store.delete(path)
    assert kept(kind) == set()


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record[6][0].pop(),
        lambda record: record[6][0].__setitem__(0, "../x"),
        lambda record: record[6][0].__setitem__(1, "x"),
        lambda record: record[6][0].__setitem__(2, 10**18),
        lambda record: record.__setitem__(3, {"pkl": [-1, 5]}),
        lambda record: record.__setitem__(3, {"pkl": [0, 10**12]}),
        lambda record: record.__setitem__(3, {"pkl": ["0", 1]}),
        lambda record: record.__setitem__(4, 10**18),
        lambda record: record.__setitem__(5, "7"),
        lambda record: record.__setitem__(5, -7),
        lambda record: record.__setitem__(7, 10**9),
        lambda record: record.clear(),
    ],
)
@NAMES
def test_a_record_that_is_not_one_is_damage_and_no_other_trouble(
    store: CheckpointStore, kind: Kind, name: str, damage: Callable[[Any], object]
) -> None:
    path = put_holding(store, name, "one", [ONE])
    key = head_key("s" if name != "best" else "@best")
    (found,) = kind.driver.get(key)
    line, _, inline = found.data.partition(b"\n")
    said = json.loads(line)
    (record,) = said["checkpoints"].values()
    damage(record)
    kind.driver.batch([Put(key, json.dumps(said).encode() + b"\n" + inline, fresh=False)])

    calls: list[Callable[[], object]] = [lambda: store.meta(path), lambda: store.delete(path)]
    for call in (*calls, lambda: put(store, name, "two")):
        with pytest.raises(CheckpointCorrupt, match="damaged"):
            call()


# --- at every point at which a save can be stopped ----------------------------------------


@NAMES
@pytest.mark.parametrize("fenced", [False, True])
def test_a_save_that_fails_or_is_fenced_takes_away_what_it_has_written(
    fresh: Callable[[], Any], kind: Kind, name: str, fenced: bool
) -> None:
    store, other = fresh(), fresh()
    lease = store.acquire("s")
    path = put_holding(store, name, "one", [ONE, TWO], lease=lease)
    before = kind.listed()
    saving, write = saving_of(store, name, lease, "two", [ONE], [THREE])

    def values(sink: object) -> None:
        write(sink)
        assert len(kept(kind)) == 3
        if not fenced:
            raise OSError("no more")
        other.acquire("s", take_over=True).release()

    meta = writer(meta_holding("two", [name_of(THREE)]))
    with pytest.raises(Fenced if fenced else OSError):
        store.put(path, [("pkl", values), ("meta.json", meta)], lease=lease, stage="two")
    saving.end()

    assert kind.listed() == before
    assert kind.head().pins == {}
    assert held(other, path) == [ONE, TWO]


def test_what_a_stopped_owner_writes_after_a_takeover_is_swept_and_never_believed(
    fresh: Callable[[], Any], kind: Kind
) -> None:
    old, new = fresh(), fresh()
    lease = old.acquire("s")
    _, values = saving_of(old, own_name(), lease, "late", [], [ONE])
    next_lease = new.acquire("s", take_over=True)

    meta = writer(meta_holding("late", [name_of(ONE)]))
    with pytest.raises(Fenced):
        old.put(path_of(old, own_name()), [("pkl", values), ("meta.json", meta)], lease=lease, stage="late")
    assert len(kept(kind)) == 1  # it was not taken away by who is not told any more
    assert there(new, [ONE]) == set()

    assert new.contents.sweep() >= 1

    assert kept(kind) == set()
    next_lease.release()


@pytest.mark.parametrize("faster", [own_name(sequence=9), "other"])
def test_one_that_was_faster_disturbs_nobody(fresh: Callable[[], Any], faster: str) -> None:
    store, other = fresh(), fresh()
    saving = store.contents.saving(path_of(store, own_name()), lease=None, stage="one")

    def slowly() -> Iterator[bytes]:
        yield from list(pieces(LARGE))[:1]
        put_holding(other, faster, "two", [LARGE])
        yield from list(pieces(LARGE))[1:]

    def values(sink: object) -> None:
        saving.hold([name_of(LARGE)])
        saving.add(name_of(LARGE), len(LARGE), slowly())
        saving.settle()

    meta = writer(meta_holding("one", [name_of(LARGE)]))
    path = path_of(store, own_name())
    store.put(path, [("pkl", values), ("meta.json", meta)], lease=None, stage="one")
    saving.end()

    assert held(store, path) == held(store, path_of(store, faster)) == [LARGE]
    other.delete(path_of(store, faster))
    assert held(store, path) == [LARGE]


# --- without a lease ---------------------------------------------------------------------


def test_who_has_no_lease_and_takes_longer_than_a_day_is_refused_and_swept(
    fresh: Callable[[], Any], kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = fresh(), fresh()
    former = put_holding(store, own_name(sequence=1), "one", [ONE])
    other.acquire("s").release()
    path = path_of(store, own_name(sequence=2))
    saving, write = saving_of(store, own_name(sequence=2), None, "two", [ONE], [TWO])

    def values(sink: object) -> None:
        write(sink)
        other.delete(former)
        assert other.contents.sweep() == 0
        assert len(kept(kind)) == 2
        with monkeypatch.context() as patch:
            patch.setattr(leases, "LIFE", -5.0)
            other.contents.sweep()
        assert kept(kind) == set()

    meta = writer(meta_holding("two", [name_of(ONE), name_of(TWO)]))
    with pytest.raises(CheckpointError, match="2 of its contents"):
        store.put(path, [("pkl", values), ("meta.json", meta)], lease=None, stage="two")
    saving.end()

    with pytest.raises(CheckpointNotFound):
        store.meta(path)


def test_what_a_dead_save_without_a_lease_holds_is_swept_after_a_day(
    fresh: Callable[[], Any], kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fresh()
    path = put_holding(store, own_name(sequence=1), "one", [ONE])
    dead, values = saving_of(store, own_name(sequence=2), None, "dead", [ONE], [TWO])
    values(None)
    store.delete(path)
    assert (fresh().contents.sweep(), len(kept(kind))) == (0, 2)
    monkeypatch.setattr(leases, "LIFE", -5.0)

    fresh().contents.sweep()

    assert (kept(kind), kind.head().pins) == (set(), {})
    with pytest.raises(CheckpointError, match="contents"):  # else it would be believed to have written TWO
        dead.hold([name_of(THREE)])
