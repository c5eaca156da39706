"""Storages that were put back to an older state (see contracts/fencing.py), and the bytes of heads."""

from __future__ import annotations

import json
import logging
import shutil
import zlib
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from graflow_ckpt.core.errors import CheckpointCorrupt, Fenced, SessionBusy
from graflow_ckpt.core.protocols import Line
from graflow_ckpt.links.processes import myself, named
from graflow_ckpt.stores import lease as leases
from graflow_ckpt.stores.driver import Put
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.files.lock import Flock
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.head import (
    MOST,
    Head,
    HeadRecord,
    Held,
    Pin,
    base_in,
    decode,
    decoded,
    encoded,
    head_key,
    meta_key,
    new_mark,
    scope_of,
)
from graflow_ckpt.stores.owners import lines_of, lost, number, owner_of, parsed
from tests.trios import listed, owning, put_own

# --- many checkpoints ------------------------------------------------------------------


def test_a_page_that_another_thread_has_pushed_out_of_the_cache_is_not_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "_PAGES", 0)  # each is pushed out before its reader looks at it
    store = MemoryStore("memory://pages")
    with owning(store) as lease:
        for number in range(MOST + 1):
            put_own(store, lease, number)

    head = MemoryStore("memory://pages").heads.read("s").head

    assert (len(head.pages), len([*head.all()])) == (1, MOST + 1)
    assert not store.heads._pages
    store.forget()


# --- what is said ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "said"),
    [(9, "was taken over by process"), (8, "under the same epoch, 8"), (7, "has forgotten epoch 8")],
)
def test_who_has_lost_a_session_is_told_how(found: int, said: str) -> None:
    error = lost("s", 8, found, myself())

    assert said in error.message
    assert (error.ids["session"], error.ids["epoch"], error.ids["owner"]) == ("s", 8, myself())


def test_a_second_owner_of_one_epoch_is_evidence_for_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        lost("s", 8, 9, myself())
        assert caplog.records == []
        lost("s", 8, 8, myself())

    (record,) = caplog.records
    assert "under the same epoch, 8" in record.getMessage()
    assert f"process {myself().pid}" in record.getMessage()
    assert vars(record)["session"] == "s"


# --- a bucket --------------------------------------------------------------------------


def test_in_a_bucket_that_was_put_back_as_a_whole_nobody_reads_what_a_forgotten_owner_appends(
    objects_url: str,
) -> None:
    store = ObjectStore(objects_url)
    store.acquire("s").release()
    (kept,) = store.driver.get(head_key("s"))
    assert kept is not None
    first = store.acquire("s")
    old = store.journal(first, 1)
    old.append(b"lost;")
    gone = [entry.key for kind in ("lease/s/", "journal/s/") for entry in store.driver.keys(kind)]
    store.driver.batch([], gone)
    store.driver.batch([Put(head_key("s"), kept.data, fresh=False)])
    second = store.acquire("s")
    new = store.journal(second, 1)
    new.append(b"one;")

    old.append(b"late;")  # the price of an append that asks for nothing else: confirmed, and in no history

    new.append(b"two;")
    assert first.epoch == second.epoch == 2
    assert list(store.segments("s")) == [(2, 1, b"one;two;")]
    for refused in (lambda: store.journal(first, 2), lambda: put_own(store, first, 1)):
        with pytest.raises(Fenced, match="under the same epoch, 2"):
            refused()
    assert listed(store) == []
    second.release()


# --- a folder --------------------------------------------------------------------------


def test_the_lock_file_of_an_earlier_commit_is_read_and_the_session_continued(tmp_path: Path) -> None:
    def slot(**said: object) -> bytes:
        body = json.dumps(said).encode()
        return (b"%08x %s\n" % (zlib.crc32(body), body)).ljust(8192, b"\0")

    former = slot(turn=4, epoch=5, owner=None, lines=[[2, 1]])
    newer = slot(turn=5, epoch=6, claim="c", owner=None, lines=[[2, 1], [6, 4]])
    (tmp_path / ".s.lock").write_bytes(former + newer)
    (tmp_path / ".s.6.alive").touch()
    store = LocalStore(tmp_path)

    assert [line.epoch for line in store.former_lines("s")] == [2, 6]
    with owning(store) as lease:
        assert (lease.epoch, lease.taken_from) == (7, None)
        put_own(store, lease, 1)

    assert [line.epoch for line in store.former_lines("s")] == [2, 6]
    assert sorted(path.name for path in tmp_path.glob(".s*")) == [".s.lock", ".s.owner"]


def test_a_living_owner_of_an_earlier_commit_keeps_its_session(tmp_path: Path) -> None:
    alive = Flock(f"{tmp_path}/.s.6.alive")
    alive.take()

    with pytest.raises(SessionBusy):
        LocalStore(tmp_path).acquire("s")

    alive.close()
    LocalStore(tmp_path).acquire("s").release()


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"epoch": 4', b'{"epoch": -1, "owner": null, "lines": []}'])
def test_a_damaged_record_is_no_obstacle_and_no_epoch_is_given_out_again(raw: bytes, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with owning(store):
        pass
    with owning(store) as lease:
        put_own(store, lease, 1)
    with owning(store) as lease:
        store.journal(lease, 1).append(b"frame")
    (tmp_path / ".s.owner").write_bytes(raw)

    with owning(store) as lease:
        assert lease.epoch == 4


def test_an_owner_whose_folder_was_put_back_with_other_files_is_fenced(tmp_path: Path) -> None:
    store, copy = LocalStore(tmp_path / "c"), tmp_path / "copy"
    with owning(store) as lease:
        put_own(store, lease, 1)
    shutil.copytree(tmp_path / "c", copy)
    first = store.acquire("s")
    shutil.rmtree(tmp_path / "c")
    copy.rename(tmp_path / "c")

    with owning(store) as second:
        assert second.epoch == first.epoch
        with pytest.raises(Fenced, match="under the same epoch"):
            put_own(store, first, 2)
        with pytest.raises(Fenced):
            store.journal(first, 2)
        first.release()
        second.check()


# --- claims -----------------------------------------------------------------------------


ME = myself()
SAID = asdict(ME)


def test_an_owner_comes_back_and_so_do_lines() -> None:
    assert owner_of(parsed(json.dumps(SAID), "here"), "here") == ME
    assert owner_of(parsed(json.dumps(SAID).encode(), "here"), "here") == ME
    assert lines_of([[1, 2], [b"3", b"4"]], "here") == (Line(1, 2), Line(3, 4))


@pytest.mark.parametrize(
    "said",
    [
        b"{", b"\xff", b"[" * 100_000, b"[]", b"7", b'"x"', b"{}", json.dumps(SAID | {"pid": "../../x"}),
        json.dumps(SAID | {"pid": -1}), json.dumps(SAID | {"pid": 2**40}), json.dumps(SAID | {"pid": True}),
        json.dumps(SAID | {"host": 7}), json.dumps({k: v for k, v in SAID.items() if k != "boot"}),
    ],
    ids=count(),  # not what they say: processes that run tests side by side have to agree on names
)  # fmt: skip
def test_an_owner_that_nobody_can_have_written_is_refused(said: str | bytes) -> None:
    with pytest.raises(
        CheckpointCorrupt, match="owners of a session in here was not written by this package"
    ):
        owner_of(parsed(said, "here"), "here")


@pytest.mark.parametrize(
    "said", [7, None, [1], [[1]], [[1, 2, 3]], ["x"], [[1, -2]], [[1.5, 2]], [[True, 2]]]
)
def test_lines_that_nobody_can_have_written_are_refused(said: Any) -> None:
    with pytest.raises(CheckpointCorrupt):
        lines_of(said, "here")


@pytest.mark.parametrize("said", [-1, 2**63, 1e999, "x", None, [], "9" * 5000])
def test_a_number_that_nothing_reaches_is_refused(said: Any) -> None:
    with pytest.raises(CheckpointCorrupt):
        number(said, "here")


def test_json_may_hold_anything() -> None:
    assert parsed("[1]", "here") == [1]


def test_an_owner_is_named_without_what_a_terminal_would_obey() -> None:
    said = owner_of(SAID | {"host": "\x1b[2Jbox", "argv": "a\nb\u202e"}, "here")

    assert "on ?[2Jbox" in named(said)
    assert "a?b?" in named(said)


# --- heads ----------------------------------------------------------------------------


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
    def no_page(marks: object) -> Any:
        raise AssertionError(f"no head here has a page: {marks}")

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
