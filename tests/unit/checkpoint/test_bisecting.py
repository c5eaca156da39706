"""Bisecting: the first wrong cut is found, and few are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from graflow_ckpt.checkpoint.codec import encode
from graflow_ckpt.checkpoint.difference import Bisected, bisect
from graflow_ckpt.core.conditions import BadCondition, parse
from graflow_ckpt.stores.local import LocalStore
from tests.unit.checkpoint import trios


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


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
