"""Two checkpoints side by side: what is told of tasks and values. No pickle is opened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graflow_ckpt.checkpoint.care.difference import (
    Bisected,
    Change,
    Holdings,
    bisect,
    difference,
    holdings,
    inner,
)
from graflow_ckpt.checkpoint.values.codec import encode
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.conditions import BadCondition, parse
from graflow_ckpt.core.errors import CheckpointCorrupt, UnknownKey
from graflow_ckpt.core.facts import Live, Op
from graflow_ckpt.stores.files.store import LocalStore
from tests.unit.checkpoint import trios


class Tells:
    """Nobody may open this."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.deep = {"same": 1, "other": number}

    def __setstate__(self, state: Any) -> None:
        raise AssertionError("a pickle was opened")


def put(name: str, value: Any) -> Op:
    cell = encode(value) if not isinstance(value, (Tells, np.ndarray)) else Live(value)
    return ("put", name, cell, -1)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def held(store: LocalStore, name: str, *ops: Op, **more: Any) -> Holdings:
    path = trios.save(Path(store.folder), name, of=trios.state("s", *ops), store=store, **more).path
    return holdings(store, trios.RING, path)


def told(changes: tuple[Change, ...] | list[Change]) -> dict[str, str]:
    return {change.name: change.what for change in changes}


def test_values_are_added_removed_changed_or_the_same(store: LocalStore) -> None:
    before = held(store, "a.pkl", put("gone", 1), put("n", 1), put("live", Tells(1)), put("still", Tells(5)))
    after = held(store, "b.pkl", put("n", 2), put("new", "x"), put("live", Tells(2)), put("still", Tells(5)))

    found = difference(before, after)

    assert told(found.values) == {"gone": "removed", "n": "changed", "live": "changed", "new": "added"}
    assert found.same == ("still", "x")
    assert (before.values["n"].value, before.values["n"].plain) == (1, True)
    assert before.values["live"].kind.endswith("test_difference.Tells")
    assert before.values["live"].size > 0


def test_a_value_with_another_type_has_changed(store: LocalStore) -> None:
    before = held(store, "a.pkl", put("n", 1), put("m", [1.0]))
    after = held(store, "b.pkl", put("n", True), put("m", np.array([1.0])))

    assert told(difference(before, after).values) == {"n": "changed", "m": "changed"}


def test_what_has_changed_inside_is_told(store: LocalStore) -> None:
    before = held(store, "a.pkl", put("live", Tells(1)), put("d", {"a": {"b": 1, "c": 2}, "gone": 1}))
    after = held(store, "b.pkl", put("live", Tells(2)), put("d", {"a": {"b": 5, "c": 2}, "new": 1}))

    changes = {change.name: change for change in difference(before, after).values}

    assert told(inner(changes["live"])) == {".number": "changed", ".deep.other": "changed"}
    assert told(inner(changes["d"])) == {".a.b": "changed", ".gone": "removed", ".new": "added"}


def test_what_was_appended_counts_as_part_of_the_list(store: LocalStore) -> None:
    whole = held(store, "a.pkl", put("list", [1, 2, 3]))
    state = trios.state("s", put("list", [1]))
    apply(state, [("append", "list", encode(2)), ("append", "list", encode(3))], 0.0)
    assert state.appended
    path = trios.save(Path(store.folder), "b.pkl", of=state, store=store).path

    found = holdings(store, trios.RING, path)

    assert found.values["list"].value == [1, 2, 3]
    assert difference(whole, found).values == ()


def test_how_far_each_is_and_what_tasks_have_come_to(store: LocalStore) -> None:
    before = held(store, "a.pkl", user={"loss": 1, "same": 2})
    spec = before.found.facts["pending_tasks"][0]
    after = held(store, "b.pkl", ("claim", spec["key"], 1), sequence=2, user={"loss": 2, "same": 2})

    found = difference(before, after)

    assert told(found.facts) == {"sequence": "changed"}
    assert told(found.metadata) == {"loss": "changed"}
    assert not difference(before, before)
    assert found.code == ()


def test_a_damaged_or_foreign_one_is_not_compared(store: LocalStore) -> None:
    path = held(store, "a.pkl").found.path
    with pytest.raises(UnknownKey):
        holdings(store, trios.Keyring({"other": b"2" * 32}), path)
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[:-1] + b"?")

    with pytest.raises(CheckpointCorrupt):
        holdings(store, trios.RING, path)


# --- bisecting --------------------------------------------------------------------------


def line(store: LocalStore, values: Sequence[object], name: str = "n") -> None:
    for number, value in enumerate(values, 1):
        ops = [] if value is None else [("put", name, encode(value), -1)]
        trios.save(
            Path(store.folder), f"session_s_step_{number}_17-{number}.pkl", sequence=number,
            of=trios.state("s", *ops), store=store, user={"round": number},
        )  # fmt: skip


def search(store: LocalStore, text: str, *, everything: bool = False) -> Bisected:
    return bisect(store, trios.RING, "s", parse(text), everything=everything)


def numbers(found: Bisected) -> tuple[int | None, int | None]:
    bad, good = found.first_bad, found.last_good
    return (bad and bad.sequence, good and good.sequence)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 40])
def test_the_first_wrong_one_is_found_wherever_it_is(store: LocalStore, count: int) -> None:
    line(store, list(range(1, count + 1)))

    for first in {1, 2, count // 2 + 1, count}:
        if first <= count:
            found = search(store, f"n >= {first}")
            assert numbers(found) == (first, first - 1 if first > 1 else None)
            assert found.cuts == count
            assert len(found.looked_at) <= 3 + count.bit_length()


def test_none_may_be_wrong(store: LocalStore) -> None:
    line(store, [1, 2, 3])

    found = search(store, "n > 7")

    assert (numbers(found), len(found.looked_at)) == ((None, 3), 1)


def test_where_right_and_wrong_take_turns_all_are_looked_at(store: LocalStore) -> None:
    line(store, [0, 1, 0, 0, 1])

    assert numbers(search(store, "n == 1", everything=True)) == (2, 1)
    assert len(search(store, "n == 1", everything=True).looked_at) == 5


def test_a_value_that_is_not_there_yet_is_right_and_one_that_never_is_an_error(store: LocalStore) -> None:
    line(store, [None, None, 3, 4])

    assert numbers(search(store, "n >= 3")) == (3, 2)
    with pytest.raises(BadCondition, match="no 'm' here") as caught:
        search(store, "m >= 3")
    assert caught.value.path.endswith("-4.pkl")


def test_a_condition_sees_more_than_values(store: LocalStore) -> None:
    line(store, [1, 2, 3], name="two words")

    assert numbers(search(store, "metadata.round > 1")) == (2, 1)
    assert numbers(search(store, "sequence > 2 and steps == 0 and status == 'running'")) == (3, 2)
    assert numbers(search(store, "values['two words'] > 1 and tasks.a == 'pending'")) == (2, 1)


def test_damaged_cuts_are_passed_over_and_told(store: LocalStore) -> None:
    line(store, [1, 2, 3])
    Path(store.folder, "session_s_step_2_17-2.state.json").write_bytes(b"{")

    found = search(store, "n >= 2")

    assert numbers(found) == (3, 1)
    assert [path[-6:] for path, _ in found.damaged] == ["-2.pkl"]
