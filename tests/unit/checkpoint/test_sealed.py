"""Values on a server that others write to: what is opened, and what is refused by name."""

from __future__ import annotations

import pickle

import pytest

from graflow_ckpt.checkpoint.sealed import LIVE, SealedCells, sealed_by
from graflow_ckpt.core.errors import CheckpointError, TooLarge, UnknownKey, UnsafeCheckpoint
from graflow_ckpt.core.facts import Live
from graflow_ckpt.stores.keys import Keyring

KEYS = Keyring({"one": bytes(32)})
OTHERS = Keyring({"two": bytes([1]) * 32})


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("a pickle was opened",)


def test_a_live_value_comes_back_and_a_plain_one_stays_as_it_is() -> None:
    cells = SealedCells("s", KEYS)

    data = cells.pack("value", Live([1]))

    back = cells.unpack("value", data)
    assert isinstance(back, Live)
    assert back.value == [1]
    assert sealed_by(data) == sealed_by(data[:66]) == "one"
    assert cells.unpack("value", cells.pack("value", b"\x01")) == b"\x01"


def test_no_pickle_is_opened_whose_seal_does_not_hold() -> None:
    bomb = pickle.dumps(Bomb())
    sealed = SealedCells("s", KEYS).seal(bomb, "=value")
    cells = SealedCells("s", KEYS)
    of_another = SealedCells("t", KEYS).seal(bomb, "=value")
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])

    for data in (changed, of_another):
        with pytest.raises(
            UnsafeCheckpoint, match="value of session s is not opened: its seal does not hold"
        ):
            cells.unpack("value", data)
    with pytest.raises(UnknownKey, match="sealed with key two, which is not here"):
        cells.unpack("value", SealedCells("s", OTHERS).seal(bomb, "=value"))
    with pytest.raises(UnknownKey):
        SealedCells("s", None).unpack("value", sealed)


def test_a_cell_opens_in_its_own_place_only() -> None:
    cells = SealedCells("s", KEYS)
    places = {"=one", "=two", "result", "data a", "data b", "rng", "task one", "program", "proof"}

    for place in places:
        sealed = cells.seal(pickle.dumps(Bomb()), place)
        assert cells.open("it", sealed, place)
        for other in places - {place}:
            with pytest.raises(UnsafeCheckpoint, match="its seal does not hold"):
                cells.open("it", sealed, other)


def test_a_value_is_in_the_place_of_its_name_and_results_share_one() -> None:
    cells = SealedCells("s", KEYS)

    assert cells.open("a", cells.pack("a", Live([1])), "=a")
    result = cells.unpack("a.__result__", cells.pack("its result", Live([1]), "result"))
    assert isinstance(result, Live)
    assert result.value == [1]
    with pytest.raises(UnsafeCheckpoint):
        cells.unpack("b", cells.pack("a", Live(Bomb())))


@pytest.mark.parametrize("data", [b"", pickle.dumps(1), LIVE, LIVE + b"\x03one", LIVE + b"\xffone"])
def test_what_has_no_whole_seal_is_refused(data: bytes) -> None:
    with pytest.raises(UnsafeCheckpoint, match=r"with key|not hold" if data[:1] == LIVE else "has no seal"):
        SealedCells("s", KEYS).open("the program", data, "program")


def test_without_a_key_nothing_is_sealed_and_the_error_says_how() -> None:
    with pytest.raises(UnsafeCheckpoint, match="graflow-ckpt key new"):
        SealedCells("s", None).seal(b"pickle", "=value")


def test_what_is_too_large_is_refused_with_its_size_and_the_limit() -> None:
    cells = SealedCells("s", KEYS, limit=5_000)

    for cell in (bytes(5_001), Live(list(range(5_000)))):
        with pytest.raises(
            TooLarge, match=r"rows takes \d+ bytes; a value of this session may take 5000"
        ) as raised:
            cells.pack("rows", cell)
        assert (raised.value.path, raised.value.limit) == ("rows", 5_000)
        assert raised.value.size > 5_000
        assert "value_limit" in raised.value.hint
    assert cells.pack("rows", bytes(5_000)) == bytes(5_000)


class Picky:
    def __setstate__(self, state: object) -> None:
        raise ValueError("not this one")


def test_what_a_class_raises_when_it_is_restored_is_said_with_the_name_of_the_value() -> None:
    picky = Picky()
    picky.__dict__["a"] = 1
    cells = SealedCells("s", KEYS)

    with pytest.raises(CheckpointError, match=r"value of session s cannot be restored: ValueError"):
        cells.unpack("value", cells.pack("value", Live(picky)))
