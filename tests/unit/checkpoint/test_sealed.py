"""Values on a server that others write to: what is opened, and what is refused by name."""

from __future__ import annotations

import pickle

import pytest

from graflow_ckpt.checkpoint.keys import Keyring
from graflow_ckpt.checkpoint.sealed import LIVE, SealedCells, sealed_by
from graflow_ckpt.core.errors import TooLarge, UnknownKey, UnsafeCheckpoint
from graflow_ckpt.core.values import Live

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
    sealed = SealedCells("s", KEYS).seal(bomb)
    cells = SealedCells("s", KEYS)
    of_another = SealedCells("t", KEYS).seal(bomb)
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])

    for data in (changed, of_another):
        with pytest.raises(
            UnsafeCheckpoint, match="value of session s is not opened: its seal does not hold"
        ):
            cells.unpack("value", data)
    with pytest.raises(UnknownKey, match="sealed with key two, which is not here"):
        cells.unpack("value", SealedCells("s", OTHERS).seal(bomb))
    with pytest.raises(UnknownKey):
        SealedCells("s", None).unpack("value", sealed)


@pytest.mark.parametrize("data", [b"", pickle.dumps(1), LIVE, LIVE + b"\x03one", LIVE + b"\xffone"])
def test_what_has_no_whole_seal_is_refused(data: bytes) -> None:
    with pytest.raises(UnsafeCheckpoint, match=r"with key|not hold" if data[:1] == LIVE else "has no seal"):
        SealedCells("s", KEYS).open("the program", data)


def test_without_a_key_nothing_is_sealed_and_the_error_says_how() -> None:
    with pytest.raises(UnsafeCheckpoint, match="graflow-ckpt key new"):
        SealedCells("s", None).seal(b"pickle")


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
