"""Storages that were put back to an older state: not in the contract of all (contracts/fencing.py)."""

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
from graflow_ckpt.stores.claims import lines_of, lost, number, owner_of, parsed
from graflow_ckpt.stores.driver import Put
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.files.lock import Flock
from graflow_ckpt.stores.files.store import LocalStore
from graflow_ckpt.stores.head import head_key
from tests.trios import listed, owning, put_own

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
    assert [path.name for path in tmp_path.glob(".s*")] == [".s.lock", ".s.owner"]


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
