"""The journal: records come back as they went in, a torn tail is cut off, damage is named."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from zlib import crc32

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.checkpoint.journal import CellPickle, Record, Writer, pack, read, unpack
from graflow_ckpt.checkpoint.values.pickles import live_bytes
from graflow_ckpt.core.apply import apply
from graflow_ckpt.core.errors import JournalDamaged, NotStorable, UnknownKey
from graflow_ckpt.core.facts import Live, Op
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.stores.around.keys import Keyring
from tests.unit.core.histories import Record as Step
from tests.unit.core.histories import dump, histories, run

RING = Keyring({"k1": b"1" * 32})
PLACE = ("s", 2, 7)


def segment(*payloads: bytes, ring: Keyring = RING, place: tuple[str, int, int] = PLACE) -> list[bytes]:
    """The frames of a segment, head first."""
    writer = Writer(ring, *place)
    return [writer.head, *(writer.frame(payload) for payload in payloads)]


def records(raw: bytes, ring: Keyring = RING, place: tuple[str, int, int] = PLACE) -> list[bytes]:
    return list(read(ring, *place, raw))


# --- records ---------------------------------------------------------------------------


@given(histories())
def test_replaying_packed_records_gives_an_equal_state(history: list[Step]) -> None:
    state = SessionState("s", ("a",))
    for number, (now, ops) in enumerate(history, 1):
        record = unpack(pack(number, now, ops))
        assert record == Record(number, now, ops)

        apply(state, record.ops, record.now)

    assert dump(state) == dump(run(history))


def test_a_live_value_comes_back_as_an_equal_one() -> None:
    record = unpack(pack(1, 0.0, [("put", "x", Live({1, (2, 3)}), -1), ("append", "y", Live([1.5]))]))

    assert record.ops[0][2].value == {1, (2, 3)}
    assert record.ops[1][2].value == [1.5]


def test_live_values_of_one_pickle_come_back_as_one() -> None:
    inner = [1]
    two, one, other = live_bytes([inner, {"a": inner}]), live_bytes({3}), live_bytes([inner, [inner]])
    ops: list[Op] = [
        ("put", "x", CellPickle(two, 0), -1), ("put", "alone", CellPickle(one), -1),
        ("append", "y", CellPickle(other, 1)), ("put", "z", CellPickle(two, 1), -1),
        ("end", 1, 1, "completed", CellPickle(other, 0)),
    ]  # fmt: skip

    x, alone, y, z, result = (op[-1] if op[0] != "put" else op[2] for op in unpack(pack(1, 0.0, ops)).ops)

    assert alone.value == {3}
    assert z.value == {"a": [1]}
    assert z.value["a"] is x.value
    assert y.value == [[1]]
    assert y.value[0] is result.value
    assert result.value is not x.value
    assert pack(1, 0.0, ops).count(two) == 1
    assert all(isinstance(op[2], Live) for op in unpack(pack(1, 0.0, ops[:4]), closed=True).ops)


def test_a_record_can_be_read_without_opening_its_pickles() -> None:
    payload = pack(1, 0.0, [("put", "x", Live(Armed()), -1), ("status", "closing", "")])

    record = unpack(payload, closed=True)

    assert (record.ops[0][2].value, record.ops[1]) == (None, ("status", "closing", ""))
    with pytest.raises(Exception, match="opened"):
        unpack(payload)


def go_off() -> None:
    raise AssertionError("opened")


class Armed:
    def __reduce__(self) -> tuple[Any, ...]:
        return go_off, ()


def test_text_that_is_no_unicode_survives() -> None:
    op = ("end", 1, 1, "failed", "OSError: \udcff.txt")

    assert unpack(pack(1, 0.0, [op])).ops == [op]


def test_what_has_no_pickle_is_refused() -> None:
    with pytest.raises(NotStorable):
        pack(1, 0.0, [("put", "x", Live(n for n in ()), -1)])
    with pytest.raises(TypeError, match="an op holds a object"):
        pack(1, 0.0, [("put", "x", object(), -1)])


@pytest.mark.parametrize("closed", [False, True])
def test_an_extension_of_another_version_is_left_as_it_is(closed: bool) -> None:
    payload: bytes = msgpack.packb([1, 0.0, ["put", "x", msgpack.ExtType(9, b"?"), -1]])

    assert unpack(payload, closed=closed).ops[0][2] == msgpack.ExtType(9, b"?")


# --- segments --------------------------------------------------------------------------

payload = st.binary(max_size=20).map(lambda rest: b"\x93" + rest)  # as msgpack's arrays begin
payload_lists = st.lists(payload, max_size=4)


@given(payload_lists)
def test_the_payloads_of_a_segment_come_back_in_order(payloads: list[bytes]) -> None:
    raw = b"".join(segment(*payloads))

    assert records(raw) == payloads
    assert records(raw + bytes(100)) == payloads  # room that was made ahead


@given(payload_lists, st.data())
def test_a_torn_tail_is_cut_off(payloads: list[bytes], data: st.DataObject) -> None:
    frames = segment(*payloads)
    raw = b"".join(frames)
    end = data.draw(st.integers(0, len(raw)))

    for left in (raw[:end], raw[:end] + bytes(50)):  # zeros after it may be those that were cut off
        whole = [n for n in range(len(frames) + 1) if left.startswith(b"".join(frames[:n]))][-1]
        assert records(left) == payloads[: max(0, whole - 1)]


def test_a_record_of_which_only_zeros_were_cut_off_is_whole_in_room_that_was_made_ahead() -> None:
    raw = b"".join(segment(b"\x93\x00"))

    assert records(raw[:-1]) == []
    assert records(raw[:-1] + bytes(50)) == [b"\x93\x00"]


@given(st.lists(payload, min_size=1, max_size=4), st.data())
def test_a_changed_bit_before_the_last_record_is_damage_that_is_named(
    payloads: list[bytes], data: st.DataObject
) -> None:
    frames = segment(*(pack(8 + n, 0.0, [("put", "x", each, -1)]) for n, each in enumerate(payloads)))
    raw = bytearray(b"".join(frames))
    bit = data.draw(st.integers(0, 8 * (len(raw) - len(frames[-1])) - 1))
    raw[bit // 8] ^= 1 << bit % 8

    with pytest.raises((JournalDamaged, UnknownKey)) as caught:
        records(bytes(raw))

    assert caught.value.session == "s"


@given(st.lists(payload, min_size=1, max_size=3), st.data())
def test_a_changed_bit_never_gives_another_record(payloads: list[bytes], data: st.DataObject) -> None:
    raw = bytearray(b"".join(segment(*payloads)))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8

    found: list[bytes] = []
    with suppress(JournalDamaged, UnknownKey):
        found += read(RING, *PLACE, bytes(raw))

    assert found == payloads[: len(found)]


def test_records_cannot_be_taken_out_or_moved() -> None:
    head, one, two, three = segment(b"1", b"2", b"3")

    for frames in ((head, two, three), (head, one, three), (head, two, one), (head, one, one)):
        with pytest.raises(JournalDamaged, match=r"epoch 2\) is damaged at byte .*: a record was changed"):
            records(b"".join(frames))


@pytest.mark.parametrize("place", [("t", 2, 7), ("s", 3, 7), ("s", 2, 8)])
def test_a_segment_cannot_stand_in_for_another(place: tuple[str, int, int]) -> None:
    raw = b"".join(segment(b"1"))

    with pytest.raises(JournalDamaged):
        records(raw, place=place)


def test_damage_says_where_and_what_to_do() -> None:
    head, one, two = segment(b"1", b"2")
    broken = bytearray(one)
    broken[-1] ^= 1

    with pytest.raises(JournalDamaged, match="a damaged record has good ones after it") as caught:
        records(head + bytes(broken) + two)

    error = caught.value
    assert (error.epoch, error.offset, error.session) == (2, len(head), "s")
    assert "graflow-ckpt checkpoints list" in error.hint


def test_a_frame_of_which_only_the_magic_was_written_is_a_torn_tail() -> None:
    raw = b"".join(segment(b"1"))

    assert records(raw + b"GJ" + bytes(64)) == [b"1"]


def test_what_only_looks_like_a_frame_after_a_torn_one_is_part_of_the_tail() -> None:
    head, one, two = segment(b"1", b"GJ" * 30)

    assert records(head + one + two[:-1]) == [b"1"]


@pytest.mark.parametrize("torn", ["cut", "hole", "head"])
def test_a_torn_record_that_holds_frames_is_a_torn_tail(torn: str) -> None:
    made_up = zlib_frame(b"x") + zlib_frame(b"y")
    own = b"".join(segment(pack(7, 0.0, []), pack(8, 0.0, [])))  # a task that stored its own journal
    head, one, two = segment(pack(8, 0.0, []), pack(9, 0.0, [("put", "page", made_up + own + bytes(90), -1)]))
    if torn == "cut":
        two = two[:-80]
    elif torn == "hole":
        two = two[:-20] + bytes(20)[:-1] + b"x"
    else:
        two = bytes(512) + two[512:] if len(two) > 512 else bytes(26) + two[26:]

    assert records(head + one + two) == [pack(8, 0.0, [])]


@given(st.integers(0, 1), st.data())
def test_damage_of_a_record_that_others_follow_is_found_although_its_head_says_anything(
    which: int, data: st.DataObject
) -> None:
    head, *frames = segment(*(pack(number, 0.0, [("put", "x", 7, -1)]) for number in range(8, 12)))
    start = data.draw(st.integers(0, 25))
    broken = bytearray(frames[which])
    broken[start:] = data.draw(st.binary(min_size=len(broken) - start, max_size=len(broken) - start))
    frames[which] = bytes(broken)

    with suppress(JournalDamaged):
        assert len(records(head + b"".join(frames))) == 4  # it was drawn as it was


def zlib_frame(payload: bytes) -> bytes:
    size, crc = len(payload).to_bytes(4, "little"), crc32(payload).to_bytes(4, "little")
    return b"GJ" + size + crc + bytes(16) + payload


# --- keys ------------------------------------------------------------------------------


def test_an_unknown_key_is_named_and_no_damage() -> None:
    raw = b"".join(segment(b"1", ring=Keyring({"k9": b"9" * 32})))

    with pytest.raises(UnknownKey, match="sealed with key k9, which this machine does not have") as caught:
        records(raw)

    assert (caught.value.key_id, caught.value.session) == ("k9", "s")


def test_an_older_key_of_the_ring_verifies() -> None:
    raw = b"".join(segment(b"1"))

    assert records(raw, ring=Keyring({"k2": b"2" * 32, "k1": b"1" * 32})) == [b"1"]


def test_another_key_under_the_same_id_is_refused() -> None:
    raw = b"".join(segment(b"1"))

    with pytest.raises(JournalDamaged):
        records(raw, ring=Keyring({"k1": b"2" * 32}))


def test_headers_in_headers_are_damage_before_all_of_them_are_looked_at() -> None:
    written = Writer(RING, "s", 1, 0).head
    size = 300_000
    flood = (
        b"GJ" + (size * 12).to_bytes(4, "little") + bytes(20)
    ) * size  # each declares half of what follows

    with pytest.raises(JournalDamaged):
        list(read(RING, "s", 1, 0, written + b"GJ" + flood))
