"""What a head says comes back from its bytes; what it cannot have said is damage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt
from graflow_ckpt.links.processes import myself
from graflow_ckpt.stores.head import (
    Head,
    HeadRecord,
    Held,
    Pin,
    base_in,
    decode,
    decoded,
    encoded,
    meta_key,
    new_mark,
    scope_of,
)

HELD = Held("a" * 64, "3-00aa", 70_000)
OTHER = Held("b" * 64, "0-00bb", 5)
FULL = Head(
    epoch=3,
    claim="mine",
    owner=myself(),
    seconds=30.0,
    last="n",
    number=2,
    records={
        "one": HeadRecord("one", "3-0a", 1, "stage", {"pkl": (0, 3)}, 3, ("3-0a", 4), (HELD,), b"pklmeta"),
        "größe": HeadRecord("größe", "3-0b", 2, "\udcff", {}, 0, ("3-0b", 9), (HELD, OTHER), b""),
    },
    freed=frozenset([OTHER]),
    pins={"0-0c": Pin(17.5, (OTHER,))},
    bad=frozenset([HELD]),
    segments=("1-2-c",),
    announced=("@best",),
)


def read(raw: bytes) -> Head:
    def no_page(mark: str) -> Any:
        raise AssertionError(f"no head here has a page: {mark}")

    return decode("s", raw, no_page)


@pytest.mark.parametrize("head", [FULL, Head(), FULL._replace(owner=None, records={})])
def test_a_head_comes_back_and_each_time_in_other_bytes(head: Head) -> None:
    raw = head.encode()

    assert read(raw) == head
    assert head.encode() != raw  # equal ones would have equal tags in a bucket


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"7", b"\xff", b'{"epoch": 1e999}', b"[" * 100_000, FULL.encode() + b"x"],
    ids=["nothing", "begun", "list", "number", "no text", "infinite", "deep", "more behind it"],
)
def test_bytes_that_no_head_has_are_damage(raw: bytes) -> None:
    with pytest.raises(CheckpointCorrupt, match="who owns session 's' is damaged"):
        read(raw)


@pytest.mark.parametrize(
    ("field", "value"),
    [("checkpoints", []), ("checkpoints", {"x": 1}), ("epoch", 1e999), ("epoch", -1), ("n", "x"),
     ("segments", 7), ("announced", 7), ("owner", {"pid": "../x"}), ("owner", 7), ("seconds", {}),
     ("seconds", 1e999), ("seconds", float("nan")), ("seconds", -1), ("pins", {"0-a": [1e999, []]}),
     ("freed", [["../x", "0-a", 3]]), ("bad", [7]), ("pins", {"0-x": ["yesterday", []]}), ("pins", [1])],
)  # fmt: skip
def test_a_field_of_another_kind_is_damage(field: str, value: Any) -> None:
    line = FULL._replace(records={}).encode()

    with pytest.raises(CheckpointCorrupt, match="is damaged"):
        read(json.dumps(json.loads(line) | {field: value}).encode() + b"\n")


@pytest.mark.parametrize(
    "name", ["best", "a b", "50%", "x=y", "#?*&+", "naïve ☃", "a\\b", "\udcff", "...", "m.", "line\nline"]
)
def test_every_name_has_a_key_of_its_own_and_comes_back_from_it(name: str) -> None:
    key = encoded(name)

    assert decoded(key) == name
    assert key.isascii()
    assert not set(key) & set("%#?*/\\ ")
    assert base_in(meta_key("s", "3-0a", name)) == base_in(meta_key(scope_of(name), "0-0a", name)) == name


def test_a_session_has_its_own_checkpoints_and_each_other_name_a_scope_alone() -> None:
    assert scope_of("session_s-1_step_3_1700000000-7") == "s-1"
    assert scope_of("best") == "@best"
    assert scope_of("xsession_s_step_1_1700000000-1").startswith("@")


def test_marks_rise_and_are_never_the_same() -> None:
    marks = [new_mark(7) for _ in range(1000)]

    assert len(set(marks)) == 1000
    assert [mark[:16] for mark in marks] == sorted(mark[:16] for mark in marks)
