"""Seals: what fits opens, anything else is refused, and no seal stands in for another."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.checkpoint.seals import (
    LIVE,
    META_LIMIT,
    Chain,
    SealedCells,
    canonical,
    seal,
    sealed_by,
    sealed_bytes,
    verify,
)
from graflow_ckpt.core import errors
from graflow_ckpt.core.facts import Live
from graflow_ckpt.stores.around.keys import Keyring

RING = Keyring({"k1": b"1" * 32, "k0": b"0" * 32})
META = {
    "session": "s",
    "sequence": 3,
    "host": "box",
    "parts": {"pkl": {"size": 1, "chunks": ["ab"]}},
    "x": 0.1,
}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=())),
)
names = st.text(max_size=3)
metas = st.dictionaries(
    names, scalars | st.lists(scalars, max_size=3) | st.dictionaries(names, scalars, max_size=3)
)


@given(metas)
def test_what_was_sealed_verifies_after_a_trip_through_json(meta: dict[str, Any]) -> None:
    sealed = seal(meta, RING)

    verify(json.loads(json.dumps(sealed, indent=1, sort_keys=True)), RING)
    assert {**meta, "key_id": "k1", "seal": sealed["seal"]} == sealed


@given(metas, st.data())
def test_a_changed_meta_does_not_verify(meta: dict[str, Any], data: st.DataObject) -> None:
    sealed = seal(meta, RING)
    key = data.draw(st.sampled_from([*meta, "new"]).filter(lambda key: key not in ("seal", "key_id")))
    value = data.draw(scalars)
    changed = {**sealed, key: value}

    if json.dumps(changed, sort_keys=True) != json.dumps(sealed, sort_keys=True):
        with pytest.raises(errors.UnsafeCheckpoint):
            verify(changed, RING)


def test_a_field_that_was_taken_away_does_not_verify() -> None:
    sealed = seal(META, RING)
    del sealed["sequence"]

    with pytest.raises(errors.UnsafeCheckpoint, match="does not fit"):
        verify(sealed, RING)


def test_the_canonical_bytes_and_the_seal_never_change() -> None:
    sealed = seal(META, RING)

    assert canonical(sealed) == (
        b'{"host":"box","key_id":"k1","parts":{"pkl":{"chunks":["ab"],"size":1}},"sequence":3,"session":"s","x":0.1}'
    )
    assert sealed["seal"] == "1077cf5d259c0595be4c1023035ee16161e9576296d20b3d0b7f4ed5c396e9c1"


def test_order_of_keys_does_not_matter_and_text_is_ascii() -> None:
    assert (
        canonical({"b": "é\udc80", "a": 1})
        == canonical({"a": 1, "b": "é\udc80"})
        == (b'{"a":1,"b":"\\u00e9\\udc80"}')
    )


def test_what_json_would_change_is_sealed_as_it_is_read() -> None:
    sealed = seal({"t": (1, 2), "d": {1: "a"}}, RING)

    assert sealed["t"] == [1, 2]
    verify(json.loads(json.dumps(sealed)), RING)


def test_an_old_key_of_the_ring_verifies() -> None:
    verify(seal(META, Keyring({"k0": b"0" * 32})), RING)


def test_an_unknown_key_is_named_with_its_host_and_both_ways_on() -> None:
    sealed = seal(META, Keyring({"other": b"2" * 32}))

    with pytest.raises(errors.UnknownKey) as caught:
        verify(sealed, RING)

    assert (caught.value.key_id, caught.value.host) == ("other", "box")
    for part in ("other", "box", "GRAFLOW_CKPT_KEY", "graflow-ckpt trust"):
        assert part in str(caught.value)


def test_a_key_of_the_same_name_with_another_secret_does_not_verify() -> None:
    with pytest.raises(errors.UnsafeCheckpoint, match="does not fit"):
        verify(seal(META, Keyring({"k1": b"2" * 32})), RING)


@pytest.mark.parametrize("seal_of", [None, 7, "", "é", "00" * 32])
def test_a_seal_of_any_other_form_is_refused(seal_of: Any) -> None:
    for key_id in ("k1", None, 5):
        with pytest.raises(errors.UnsafeCheckpoint):
            verify({**META, "seal": seal_of, "key_id": key_id}, RING)


def test_a_meta_that_cannot_be_written_as_json_is_corrupt() -> None:
    with pytest.raises(errors.CheckpointCorrupt):
        verify({**seal(META, RING), "x": float("nan")}, RING)


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_a_chain_verifies_what_it_sealed(payloads: list[bytes]) -> None:
    writer, reader = Chain(b"1" * 32, b"s/1/0"), Chain(b"1" * 32, b"s/1/0")

    for payload in payloads:
        mac = writer.next(payload)
        assert len(mac) == 16
        assert reader.check(payload, mac)
    assert reader.last == writer.last


def test_no_record_can_be_changed_moved_left_out_or_brought_from_elsewhere() -> None:
    writer = Chain(b"1" * 32, b"s/1/0")
    records = [(payload, writer.next(payload)) for payload in (b"a", b"b", b"a")]
    reader = Chain(b"1" * 32, b"s/1/0")

    assert not reader.check(b"x", records[0][1])  # changed
    assert not reader.check(*records[1])  # moved, or the first left out
    assert reader.check(*records[0])
    assert not reader.check(*records[0])  # twice
    assert not reader.check(*records[2])  # left out; the same payload as the first
    for elsewhere in (Chain(b"1" * 32, b"s/2/0"), Chain(b"2" * 32, b"s/1/0"), Chain(b"1" * 32, b"s/1/0a")):
        assert not elsewhere.check(*records[0])


def test_a_record_cannot_be_taken_for_the_start_of_another_chain() -> None:
    key = b"1" * 32

    assert Chain(key, b"s").last != Chain(key, b"").next(b"s")
    assert Chain(key, b"s").next(b"tart") != Chain(key, b"").last


def test_the_seals_of_a_chain_never_change() -> None:
    assert Chain(b"1" * 32, b"s/1/0").next(b"a").hex() == "765b09f7f603a905a680a923937da45b"


def test_metadata_that_no_reader_would_take_are_refused_when_they_are_written() -> None:
    ring = Keyring({"k1": b"1" * 32})

    with pytest.raises(errors.CheckpointError, match=r"its metadata have \d+ bytes, and the limit is"):
        sealed_bytes({"user_metadata": {"text": "x" * META_LIMIT}}, ring, "a.pkl")

    assert len(sealed_bytes({"user_metadata": {"text": "x"}}, ring, "a.pkl")) < 1000


# --- what is sealed ---------------------------------------------------------------------


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
            errors.UnsafeCheckpoint, match="value of session s is not opened: its seal does not hold"
        ):
            cells.unpack("value", data)
    with pytest.raises(errors.UnknownKey, match="sealed with key two, which is not here"):
        cells.unpack("value", SealedCells("s", OTHERS).seal(bomb, "=value"))
    with pytest.raises(errors.UnknownKey):
        SealedCells("s", None).unpack("value", sealed)


def test_a_cell_opens_in_its_own_place_only() -> None:
    cells = SealedCells("s", KEYS)
    places = {"=one", "=two", "result", "data a", "data b", "rng", "task one", "program", "proof"}

    for place in places:
        sealed = cells.seal(pickle.dumps(Bomb()), place)
        assert cells.open("it", sealed, place)
        for other in places - {place}:
            with pytest.raises(errors.UnsafeCheckpoint, match="its seal does not hold"):
                cells.open("it", sealed, other)


def test_a_value_is_in_the_place_of_its_name_and_results_share_one() -> None:
    cells = SealedCells("s", KEYS)

    assert cells.open("a", cells.pack("a", Live([1])), "=a")
    result = cells.unpack("a.__result__", cells.pack("its result", Live([1]), "result"))
    assert isinstance(result, Live)
    assert result.value == [1]
    with pytest.raises(errors.UnsafeCheckpoint):
        cells.unpack("b", cells.pack("a", Live(Bomb())))


@pytest.mark.parametrize("data", [b"", pickle.dumps(1), LIVE, LIVE + b"\x03one", LIVE + b"\xffone"])
def test_what_has_no_whole_seal_is_refused(data: bytes) -> None:
    with pytest.raises(
        errors.UnsafeCheckpoint, match=r"with key|not hold" if data[:1] == LIVE else "has no seal"
    ):
        SealedCells("s", KEYS).open("the program", data, "program")


def test_without_a_key_nothing_is_sealed_and_the_error_says_how() -> None:
    with pytest.raises(errors.UnsafeCheckpoint, match="graflow-ckpt key new"):
        SealedCells("s", None).seal(b"pickle", "=value")


def test_what_is_too_large_is_refused_with_its_size_and_the_limit() -> None:
    cells = SealedCells("s", KEYS, limit=5_000)

    for cell in (bytes(5_001), Live(list(range(5_000)))):
        with pytest.raises(
            errors.TooLarge, match=r"rows takes \d+ bytes; a value of this session may take 5000"
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

    with pytest.raises(errors.CheckpointError, match=r"value of session s cannot be restored: ValueError"):
        cells.unpack("value", cells.pack("value", Live(picky)))
