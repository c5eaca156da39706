"""Sealed cells: a pickle from a shared server is opened only if a holder of a key made it for its session."""

from __future__ import annotations

import pickle
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.checkpoint.keys import SIZE, Keyring
from graflow_ckpt.checkpoint.sealed import LIVE, MAC_SIZE, SealedCells, sealed_by
from graflow_ckpt.core.errors import NotStorable, UnknownKey, UnsafeCheckpoint
from graflow_ckpt.core.values import Live

OLD, NEW = b"\x01" * SIZE, b"\x02" * SIZE
RING = Keyring({"new": NEW, "old": OLD})


class Box:
    """A live value."""

    def __init__(self, what: Any) -> None:
        self.what = what


class Trap:
    """A pickle that tells when it is opened."""

    opened = 0

    def __reduce__(self) -> Any:
        return (spring, ())


def spring() -> None:
    Trap.opened += 1


def cells(session: str = "s", keyring: Keyring | None = RING, limit: int = 1000) -> SealedCells:
    return SealedCells(session, keyring, limit)


def sealed(value: Any = None, **options: Any) -> bytes:
    return cells(**options).pack("x", Live(Box(7) if value is None else value))


def test_a_plain_cell_stays_as_it_is() -> None:
    assert cells(keyring=None).pack("x", b"\xc0") == b"\xc0"
    assert cells(keyring=None).unpack("x", b"\xc0") == b"\xc0"
    assert cells().unpack("x", b"") == b""


def test_a_live_value_comes_back() -> None:
    found = cells().unpack("x", sealed())

    assert isinstance(found, Live)
    assert isinstance(found.value, Box)
    assert found.value.what == 7


def test_any_key_of_the_ring_opens_and_the_first_one_seals() -> None:
    old = sealed(keyring=Keyring({"old": OLD}))

    assert cells().unpack("x", old).value.what == 7  # type: ignore[union-attr]
    assert sealed()[2:5] == b"new"


@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_no_byte_can_be_changed(at: int, flip: int) -> None:
    Trap.opened = 0
    data = bytearray(sealed(Trap()))
    data[at % len(data)] ^= flip

    try:
        found = cells().unpack("x", bytes(data))
    except UnsafeCheckpoint:
        pass
    else:
        assert found == bytes(data)  # it is plain now, and whoever decodes it says what is wrong
        assert at % len(data) == 0

    assert Trap.opened == 0


@given(length=st.integers(0, 100))
def test_what_was_cut_off_is_not_opened(length: int) -> None:
    whole = sealed()

    if 0 < length < len(whole):
        with pytest.raises(UnsafeCheckpoint):
            cells().unpack("x", whole[:length])


def test_bytes_of_anybody_are_not_opened() -> None:
    Trap.opened = 0
    bare = pickle.dumps(Trap())
    for key_id in (b"", b"new", b"old", b"\xff" * 255):
        for data in (bare, b"\0" * MAC_SIZE + bare, b"", b"\0" * (MAC_SIZE - 1)):
            with pytest.raises(UnsafeCheckpoint):
                cells().unpack("x", b"%b%c%b%b" % (LIVE, len(key_id), key_id, data))

    assert Trap.opened == 0


def test_a_value_of_another_session_is_not_opened() -> None:
    with pytest.raises(UnsafeCheckpoint, match="moved from another session"):
        cells("s2").unpack("x", sealed())

    # nor one of a session whose name begins as the other's ends
    assert cells("ab").seal(b"c...") != cells("a").seal(b"bc...")


def test_the_key_that_is_lacking_is_named() -> None:
    with pytest.raises(UnknownKey, match="key new, which is not here") as caught:
        cells(keyring=Keyring({"old": OLD})).unpack("the model", sealed())

    assert caught.value.ids == {"key_id": "new", "session": "s"}
    assert "the model" in str(caught.value)
    with pytest.raises(UnknownKey):
        cells(keyring=None).unpack("x", sealed())


def test_another_key_of_the_same_name_is_not_enough() -> None:
    with pytest.raises(UnsafeCheckpoint, match="does not hold"):
        cells(keyring=Keyring({"new": OLD})).unpack("x", sealed())


def test_the_key_of_a_cell_is_known_without_opening_it() -> None:
    assert sealed_by(sealed()) == "new"
    assert sealed_by(sealed()[:5]) == "new"
    assert [sealed_by(data) for data in (b"", LIVE, b"\xc0", b"\xc4\x03new")] == [""] * 4


def test_without_a_key_nothing_live_is_stored() -> None:
    with pytest.raises(UnsafeCheckpoint, match="GRAFLOW_CKPT_KEY"):
        cells(keyring=None).pack("x", Live(Box(1)))


def test_a_secret_is_in_no_bytes_and_no_message() -> None:
    data = sealed()

    assert NEW not in data
    with pytest.raises(UnsafeCheckpoint) as caught:
        cells("s2").unpack("x", data)
    assert NEW.hex() not in str(caught.value)


@pytest.mark.parametrize("cell", [b"x" * 1001, Live(Box(b"x" * 2000))])
def test_what_is_too_large_is_refused_by_name(cell: Any) -> None:
    with pytest.raises(NotStorable, match="the model") as caught:
        cells().pack("the model", cell)

    assert caught.value.ids["path"] == "the model"


def test_what_is_just_large_enough_is_stored() -> None:
    assert len(cells().pack("x", b"x" * 1000)) == 1000


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(NotStorable, match="x"):
        cells().pack("x", Live(iter(n for n in [1])))


def test_what_was_sealed_once_can_be_opened_for_ever() -> None:
    """The format, byte by byte."""
    data = b"\xc1\x03new" + bytes.fromhex("607665f8d433778c1b28adc0f1f870a7") + b"a pickle"

    assert cells().seal(b"a pickle") == data
    assert cells().open("x", data) == b"a pickle"


def test_no_plain_value_looks_like_a_live_one() -> None:
    assert LIVE == b"\xc1"
    with pytest.raises(msgpack.exceptions.FormatError):
        msgpack.unpackb(LIVE)
    for value in (None, True, 1.5, "é", b"b", [1], {"k": 1}, -1, 2**63, msgpack.ExtType(5, b"")):
        assert msgpack.packb(value)[:1] != LIVE


def test_a_longer_session_id_than_fits_a_byte_is_not_sealed() -> None:
    with pytest.raises(OverflowError):
        cells("s" * 256).seal(b"")
