"""The codec: what goes in comes out, what could not is refused, and the bytes never change."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
import threading
import tracemalloc
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum
from functools import partial
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID, SafeUUID
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.checkpoint.values.codec import (
    FORGOTTEN,
    NONE,
    NotPlain,
    check_storable,
    decode,
    encode,
    is_atom,
    to_cell,
)
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, NotStorable
from graflow_ckpt.core.facts import Live
from graflow_ckpt.testing.drivers import at_once


def same(one: Any, other: Any) -> bool:
    """Equal in type, order and bits, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, complex):
        return same([one.real, one.imag], [other.real, other.imag])
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same([*one], [*other]) and same([*one.values()], [*other.values()])
    if isinstance(one, set | frozenset):
        return sorted(map(encode, one)) == sorted(map(encode, other))
    if isinstance(one, datetime | time):
        return repr(one) == repr(other)  # with fold and zone, which equality leaves out
    if isinstance(one, Decimal):
        return repr(one) == repr(other)
    if isinstance(one, np.generic):
        return bool(one.dtype == other.dtype) and one.tobytes() == other.tobytes()
    return bool(one == other)


zones = st.one_of(
    st.none(),
    st.just(UTC),
    st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23))),
    st.sampled_from(["Europe/Berlin", "America/New_York"]).map(ZoneInfo),
)
text = st.text(st.characters(exclude_categories=()))  # lone surrogates too
keys = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    text,
    st.binary(),
    st.dates(),
    st.datetimes(timezones=zones, allow_imaginary=False),
    st.times(timezones=st.sampled_from([None, UTC])),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.complex_numbers(allow_nan=False),
    text.filter(lambda s: "\0" not in s).map(PurePosixPath),
)
atoms = st.one_of(keys, st.floats(), st.decimals())
hashables = st.recursive(
    keys, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6
)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(hashables, inner),
        st.sets(hashables, max_size=4),
    ),
    max_leaves=12,
)


def unshared(value: Any) -> Any:
    """Strategies may hand out one list twice; what is plain has each only once."""
    if type(value) in (list, tuple):
        return type(value)(map(unshared, value))
    if type(value) is dict:
        return {key: unshared(item) for key, item in value.items()}
    return set(value) if type(value) is set else value


@given(values)
def test_what_goes_in_comes_out(value: Any) -> None:
    value = unshared(value)

    data = encode(value)

    assert same(decode(data), value)
    assert encode(decode(data)) == data


@given(values, st.data())
def test_damaged_bytes_are_decoded_or_refused_and_nothing_else(value: Any, data: st.DataObject) -> None:
    good = encode(unshared(value))
    at = data.draw(st.integers(0, len(good) - 1))

    for bad in (good[:at], good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :]):
        with suppress(CheckpointError):
            decode(bad)


NAIVE = datetime(2024, 2, 29, 1, 2, 3, 4, UTC).replace(tzinfo=None)
EAST = timezone(timedelta(hours=2))
EAST_X = timezone(timedelta(hours=2), "X")
BERLIN = ZoneInfo("Europe/Berlin")
GOLDEN: list[tuple[Any, str]] = [
    (None, "c0"),
    (True, "c3"),
    (1, "01"),
    (-1, "ff"),
    (2**63, "cf8000000000000000"),
    (2**64, "c70901010000000000000000"),
    (-(2**63) - 1, "c70901ff7fffffffffffffff"),
    (-0.0, "cb8000000000000000"),
    (math.inf, "cb7ff0000000000000"),
    (math.nan, "cb7ff8000000000000"),
    ("é", "a2c3a9"),
    ("\ud800", "a3eda080"),
    (b"\x00\xff", "c40200ff"),
    ([1, [2]], "92019102"),
    ((1, 2), "c70302920102"),
    ((), "d40290"),
    ({1: "a", "b": 2}, "8201a161a16202"),
    ({(1,): None}, "81d5029101c0"),
    ({3, 1, "a"}, "c70503930103a161"),
    (frozenset({2, 1}), "c70304920102"),
    (1 - 2j, "d8053ff0000000000000c000000000000000"),
    (date(2024, 2, 29), "d60607e8021d"),
    (time(1, 2, 3, 4, fold=1), "d7070102030000000401"),
    (NAIVE, "c70c0807e8021d0102030000000400"),
    (datetime(2024, 2, 29, 1, 2, 3, 4, UTC), "c70d0807e8021d010203000000040075"),
    (
        datetime(2024, 2, 29, tzinfo=EAST),
        "c7150807e8021d00000000000000006600000001ad274800",
    ),
    (
        datetime(2024, 2, 29, tzinfo=EAST_X),
        "c7160807e8021d00000000000000006e00000001ad27480058",
    ),
    (
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
        "c71a0807e80a1b021e0000000000017a4575726f70652f4265726c696e",
    ),
    (timedelta(days=-1, seconds=2, microseconds=3), "c70c09ffffffff0000000200000003"),
    (Decimal("-1.50E+3"), "d70a2d312e3530452b33"),
    (UUID(int=1), "d80b00000000000000000000000000000001"),
    (UUID(int=1, is_safe=SafeUUID.safe), "c7110b0000000000000000000000000000000173"),
    (PurePosixPath("/a/b"), "c7050c702f612f62"),
    (PureWindowsPath("c:/a"), "c7050c77633a5c61"),
    (PosixPath("/a"), "c7030c502f61"),
    (np.float32(1.5), "d70d033c66340000c03f"),
    (np.int64(-1), "c70c0d033c6938ffffffffffffffff"),
    (np.bool_(True), "c7050d037c623101"),
    (np.datetime64("2024-02-29", "D"), "c70f0d063c4d385b445d464d000000000000"),
    (FORGOTTEN, "c7000e"),
]


@pytest.mark.parametrize(("value", "golden"), GOLDEN, ids=[golden[:30] for _, golden in GOLDEN])
def test_the_bytes_of_every_kind_never_change(value: Any, golden: str) -> None:
    assert encode(value).hex() == golden
    assert same(decode(bytes.fromhex(golden)), value)


class Word(str):
    __slots__ = ()


class Level(IntEnum):
    LOW = 1


class OwnZone(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, _: datetime | None) -> str:
        return "own"

    dst = utcoffset


class Stamp(datetime):
    pass


class Folder(type(Path())):  # type: ignore[misc]  # the concrete class of this system
    pass


class Impostor:
    """Says that it comes from a module whose types are plain."""


Impostor.__module__ = "datetime"
Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Word("a"),
        Level.LOW,
        Point(1, 2),
        OrderedDict(a=1),
        defaultdict(int),
        Counter("a"),
        bytearray(b"a"),
        memoryview(b"a"),
        msgpack.Timestamp(1),
        msgpack.ExtType(2, b"\x90"),
        Stamp(2024, 1, 1),
        Folder("a"),
        Impostor(),
        datetime(2024, 1, 1, tzinfo=OwnZone()),
        datetime(2024, 1, 1, tzinfo=ZoneInfo.no_cache("Europe/Berlin")),
        np.zeros(2),
        np.longdouble(1),
        np.str_("a"),
        np.bytes_(b"a"),
        range(3),
        int,
        len,
        Ellipsis,
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize(
    "around",
    [lambda x: x, lambda x: [x], lambda x: (1, [x]), lambda x: {"a": {"b": x}}, lambda x: [0] * 50 + [[x]]],
    ids=["alone", "in a list", "in a tuple", "in a dict", "deep"],
)
def test_what_is_of_no_listed_type_is_not_plain_anywhere(value: Any, around: Callable[[Any], Any]) -> None:
    with pytest.raises(NotPlain):
        encode(around(value))


@pytest.mark.parametrize(
    "key", [Word("a"), Level.LOW, Point(1, 2), (1, (Level.LOW,)), frozenset({Word("a")})]
)
def test_what_is_not_plain_is_found_in_keys_and_sets(key: Any) -> None:
    for value in ({key: 1}, {key}, [[{key: 1}]]):
        with pytest.raises(NotPlain):
            encode(value)


def test_one_list_in_two_places_is_not_plain() -> None:
    inner: list[int] = []

    for value in ([inner, inner], {"a": inner, "b": [inner]}, ([inner], (inner,)), [[[inner]], inner]):
        with pytest.raises(NotPlain, match="two places"):
            encode(value)


def test_one_immutable_value_in_many_places_is_plain() -> None:
    pair, word = (1, "a"), "abc"
    value = [pair, pair, (pair, word), {"k": pair, "l": frozenset()}, frozenset(), word]

    assert decode(encode(value)) == value


def test_a_cycle_is_not_plain() -> None:
    ring: list[Any] = [1]
    ring.append((ring,))

    with pytest.raises(NotPlain):
        encode(ring)


def nested(levels: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    ("most", "wrap"),
    [
        (400, lambda x: [x]),
        (400, lambda x: {"a": x}),
        (100, lambda x: (x,)),
        (100, lambda x: frozenset({x})),
    ],
    ids=["lists", "dicts", "tuples", "frozensets"],
)
def test_levels_are_plain_up_to_400_of_tuples_and_sets_up_to_100(
    most: int, wrap: Callable[[Any], Any]
) -> None:
    assert encode(decode(encode(nested(most, wrap)))) == encode(nested(most, wrap))
    with pytest.raises(NotPlain):
        encode(nested(most + 1, wrap))


def test_a_few_tuples_that_stand_for_very_many_elements_are_not_plain() -> None:
    with pytest.raises(NotPlain, match="too many"):
        encode([[(0,) * 10_000] * 20_000])


def test_a_shared_text_that_stands_for_more_than_four_gib_is_not_plain() -> None:
    megabyte = "x" * 2**20

    with pytest.raises(NotPlain, match="4 GiB"):
        encode([[megabyte] * 4097])


def test_sets_have_the_same_bytes_in_every_process() -> None:
    program = (
        "from graflow_ckpt.checkpoint.values.codec import encode; print(encode({*map(str, range(99))}).hex())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }

    assert runs == {encode({*map(str, range(99))}).hex().encode() + b"\n"}


def test_large_bytes_take_the_short_way_to_the_same_bytes() -> None:
    for size in (2**16 - 7, 2**16 - 1, 2**16, 2**20):
        data = b"\xd6\xff" * (size // 2)

        assert encode(data) == msgpack.packb(data)
        assert decode(encode(data)) == data
        assert decode(encode([data])) == [data]


@pytest.mark.parametrize("stamp", [1, 2**33, 2**40], ids=["32 bits", "64 bits", "96 bits"])
def test_a_timestamp_of_msgpack_is_an_unknown_code(stamp: int) -> None:
    for value in (msgpack.Timestamp(stamp), [1, msgpack.Timestamp(stamp)]):
        with pytest.raises(CheckpointCorrupt, match="code -1"):
            decode(msgpack.packb(value))


def test_an_unknown_extension_code_is_named() -> None:
    with pytest.raises(CheckpointCorrupt, match="code 99") as caught:
        decode(msgpack.packb([msgpack.ExtType(99, b"")]))

    assert caught.value.code == 99


def test_a_time_zone_that_is_missing_here_is_named_and_not_called_damage() -> None:
    good = encode(datetime(2024, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")))

    with pytest.raises(CheckpointError, match="Nowhere/Berlin") as caught:
        decode(good.replace(b"Europe", b"Nowhere").replace(bytes([26, 8]), bytes([27, 8])))

    assert not isinstance(caught.value, CheckpointCorrupt)
    assert caught.value.needs == "tzdata"


def test_numpy_that_is_missing_here_is_named_and_not_called_damage() -> None:
    program = f"""
import sys
sys.modules["numpy"] = None
from graflow_ckpt.checkpoint.values.codec import decode
try:
    decode({encode(np.float32(1))!r})
except ValueError as error:
    print(type(error).__name__, error.needs)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)

    assert run.stdout == "CheckpointError numpy\n"


def test_a_type_that_claims_to_be_of_numpy_does_not_get_numpy_imported() -> None:
    program = """
import sys
from graflow_ckpt.checkpoint.values.codec import to_cell
print(to_cell(type("float64", (), {"__module__": "numpy"})()), "numpy" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)

    assert run.stdout == "Live(float64) False\n"


def test_a_numpy_payload_cannot_name_another_dtype() -> None:
    for dtype in (b"|O", b"<g", b"<U1", b"i4,i4"):
        with pytest.raises(CheckpointCorrupt):
            decode(msgpack.packb(msgpack.ExtType(13, bytes([len(dtype)]) + dtype + bytes(16))))


def test_importing_the_codec_loads_nothing_that_it_may_never_need() -> None:
    program = (
        "import sys, graflow_ckpt.checkpoint.values.codec; print([m for m in NAMES if m in sys.modules])"
    )
    names = ["numpy", "datetime", "decimal", "uuid", "pathlib", "zoneinfo", "cloudpickle", "json"]
    bare = "import msgpack, sys; print([m for m in NAMES if m in sys.modules])"
    runs = [
        subprocess.run(
            [sys.executable, "-S", "-c", f"import sys; sys.path = {sys.path!r}; NAMES = {names!r}; {text}"],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for text in (program, bare)
    ]

    assert runs[0] == runs[1]  # msgpack itself loads datetime


def test_threads_and_finalizers_do_not_get_into_each_others_bytes() -> None:
    wrong: list[Any] = []

    class Noise:
        def __del__(self) -> None:
            encode((1, {2}))

    def work(start: int) -> None:
        for i in range(start, start + 3000):
            value = {"n": i, "t": (i, (i, [i])), "s": {i, str(i)}}
            loop = [Noise()]
            loop.append(loop)  # type: ignore[arg-type]
            if decode(encode(value)) != value:
                wrong.append(i)

    at_once([partial(work, start) for start in (0, 10_000)])

    assert wrong == []


def test_atoms_are_immutable_builtins_and_nothing_else() -> None:
    assert all(map(is_atom, [None, True, 1, 2**99, 1.5, "a", b"a", 1j]))
    assert not any(map(is_atom, [[], (), {}, Level.LOW, Word("a"), date(2024, 1, 1), np.int8(1)]))


def test_none_has_bytes_of_its_own_name() -> None:
    assert encode(None) == NONE
    assert decode(NONE) is None


def test_a_path_comes_back_with_its_own_class() -> None:
    for path in (Path("a"), PurePath("a"), PureWindowsPath("a")):
        assert type(decode(encode(path))) is type(path)


@pytest.mark.parametrize("code", [2, 3, 4])
@pytest.mark.parametrize("levels", [102, 3_000])
def test_more_levels_than_are_ever_written_are_refused_before_the_stack_ends(code: int, levels: int) -> None:
    data = b"\xc0"
    for _ in range(levels):
        data = b"\xc9" + (len(data) + 1).to_bytes(4, "big") + bytes([code]) + b"\x91" + data

    with pytest.raises(CheckpointCorrupt, match="levels of tuples and sets"):
        decode(data)


# --- cells ------------------------------------------------------------------------------


class Model:
    def __init__(self, part: Any) -> None:
        self.part = part


def test_a_plain_value_is_its_bytes() -> None:
    for make in (to_cell, lambda value: check_storable("x", value)):
        cell = make({"a": (1, 2)})

        assert isinstance(cell, bytes)
        assert decode(cell) == {"a": (1, 2)}


def test_a_live_value_is_itself() -> None:
    model = Model(1)

    for cell in (to_cell(model), check_storable("x", model)):
        assert isinstance(cell, Live)
        assert cell.value is model


def test_a_list_that_is_in_two_places_stays_one() -> None:
    row = [0]

    cell = to_cell([row, row])

    assert isinstance(cell, Live)
    assert cell.value[0] is cell.value[1]


def test_what_nothing_could_keep_is_refused_with_its_path() -> None:
    with pytest.raises(NotStorable) as caught:
        check_storable("channel['model']", Model([1, threading.Lock()]))

    assert caught.value.path == "channel['model'].part[1]"


def test_checking_an_array_does_not_copy_it() -> None:
    check_storable("x", Model(1))
    array = np.ones(1 << 20)

    tracemalloc.start()
    check_storable("x", Model(array))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < array.nbytes // 4
