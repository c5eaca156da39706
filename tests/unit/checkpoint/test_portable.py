"""The portable file: whole or not there, read as a store is, and refused when it is something else."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from graflow_ckpt.checkpoint import archive
from graflow_ckpt.checkpoint.copying import Move
from graflow_ckpt.checkpoint.portable import PortableFile, PortableWriter
from graflow_ckpt.core.errors import CheckpointCorrupt, CheckpointError, CheckpointNotFound, SchemaUnsupported
from graflow_ckpt.core.protocols import Line
from graflow_ckpt.stores.disk import SMALL
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.memory import MemoryStore
from tests.unit.checkpoint import stocked, trios
from tests.unit.checkpoint.test_copying import append, replayed


@pytest.fixture
def origin(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "origin")
    stocked.line(store, "s", 2)
    append(store, 2, 3, after=1)
    return store


@pytest.fixture
def file(origin: LocalStore, tmp_path: Path) -> Path:
    made = tmp_path / "s.ckpt"
    with PortableWriter(made) as writer:
        writer.session(origin, "s")
        for path, _ in origin.list():
            writer.cut(origin, trios.RING, path)
    return made


def changed(file: Path, name: str, data: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    """The same archive with another member."""
    with zipfile.ZipFile(file) as old:
        members = {info.filename: old.read(info) for info in old.infolist()} | {name: data}
    with zipfile.ZipFile(file, "w", compression) as new:
        for member, content in members.items():
            new.writestr(member, content)


def test_what_goes_into_a_file_comes_out_of_it_byte_for_byte(origin: LocalStore, file: Path) -> None:
    with PortableFile(file) as found:
        assert (found.url, found.sessions) == (origin.url, ("s",))
        assert list(found.segments("s")) == [(e, a, raw) for e, a, raw in origin.segments("s")]
        for path, raw in found.list("s"):
            assert json.loads(raw) == json.loads(origin.meta(f"{origin.folder}/{path}"))
            archive.check(found, trios.RING, path)
        assert list(found.list("t")) == []
    assert os.stat(file).st_mode & 0o777 == 0o600


def test_a_session_goes_on_from_a_file(file: Path) -> None:
    target = MemoryStore("memory://imported")

    with PortableFile(file) as found:
        moved = Move(found, target, trios.RING, trios.RING).session("s")

    assert ([cut.state for cut in moved.cuts], moved.records) == (["copied", "copied"], 2)
    assert replayed(target, trios.RING) == [2, 3]
    target.forget()


def test_how_far_a_session_went_back_travels_too(origin: LocalStore, tmp_path: Path) -> None:
    lease = origin.acquire("s")
    origin.rewound(lease, 1)
    lease.release()

    with PortableWriter(tmp_path / "back.ckpt") as writer:
        writer.session(origin, "s")

    with PortableFile(tmp_path / "back.ckpt") as found:
        assert found.lines("s") == (Line(lease.epoch, 1),)


def test_a_damaged_checkpoint_leaves_no_file_behind(origin: LocalStore, tmp_path: Path) -> None:
    path = next(path for path, _ in origin.list())
    Path(path).write_bytes(b"?")

    with pytest.raises(CheckpointCorrupt), PortableWriter(tmp_path / "bad.ckpt") as writer:
        writer.cut(origin, trios.RING, path)

    assert sorted(os.listdir(tmp_path)) == ["origin"]


def test_a_file_that_is_there_is_not_written_over_unless_asked(origin: LocalStore, file: Path) -> None:
    before = file.read_bytes()

    with pytest.raises(CheckpointError, match="is there already"), PortableWriter(file):
        pass
    with pytest.raises(RuntimeError), PortableWriter(file, replace=True):
        raise RuntimeError
    assert file.read_bytes() == before

    with PortableWriter(file, replace=True) as writer:
        writer.session(origin, "other")
    with PortableFile(file) as found:
        assert found.sessions == ("other",)


def test_two_checkpoints_of_one_name_are_refused(origin: LocalStore, tmp_path: Path) -> None:
    path = next(path for path, _ in origin.list())

    with PortableWriter(tmp_path / "once.ckpt") as writer:
        writer.cut(origin, trios.RING, path)
        with pytest.raises(CheckpointError, match="Two checkpoints are called"):
            writer.cut(origin, trios.RING, path)


def test_a_byte_that_was_changed_on_the_way_is_found(file: Path) -> None:
    with zipfile.ZipFile(file) as found:
        name = next(n for n in found.namelist() if n.endswith(".pkl"))
        data = found.read(name)
    changed(file, name, data[:-1] + b"?")

    with PortableFile(file) as found, pytest.raises(CheckpointCorrupt, match="corrupted"):
        archive.check(found, trios.RING, name.removeprefix("cuts/"))


@pytest.mark.parametrize("left", [0, 10, 500, -40])
def test_a_file_that_was_broken_off_is_none(file: Path, left: int) -> None:
    file.write_bytes(file.read_bytes()[:left])

    with pytest.raises(CheckpointCorrupt, match="no file of checkpoints, or not a whole one"):
        PortableFile(file)


def test_something_else_is_refused_by_name(file: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Cannot open"):
        PortableFile(tmp_path / "none.ckpt")
    changed(file, "graflow-ckpt.json", b'{"format": 1, "origin": "", "sessions": {"../up": []}}')
    with pytest.raises(CheckpointCorrupt, match="not what it should be"):
        PortableFile(file)
    changed(file, "graflow-ckpt.json", b'{"format": 2, "origin": "", "sessions": {}}')
    with pytest.raises(SchemaUnsupported, match="format 2"):
        PortableFile(file)


def test_what_is_compressed_or_there_twice_is_refused(file: Path) -> None:
    """It could hold more than its size, or something else for one reader than for another."""
    with zipfile.ZipFile(file) as found:
        name = found.namelist()[0]
    changed(file, name, b"x" * 5000, zipfile.ZIP_DEFLATED)

    with pytest.raises(CheckpointCorrupt, match="twice, compressed or encrypted"):
        PortableFile(file)

    with zipfile.ZipFile(file, "w") as doubled:
        doubled.writestr("a", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            doubled.writestr("a", b"2")
    with pytest.raises(CheckpointCorrupt, match="twice, compressed or encrypted"):
        PortableFile(file)


def test_what_is_not_in_it_is_not_found(file: Path) -> None:
    with PortableFile(file) as found, pytest.raises(CheckpointNotFound):
        found.meta("another.pkl")


@pytest.mark.parametrize(
    "head", [b'{"format": 1, "sessions": {}}', b'{"format": 1, "origin": 7, "sessions": {}}']
)
def test_a_file_that_does_not_say_where_it_comes_from_is_refused(file: Path, head: bytes) -> None:
    changed(file, "graflow-ckpt.json", head)

    with pytest.raises(CheckpointCorrupt, match="not what it should be"):
        PortableFile(file)


def test_a_directory_that_leads_elsewhere_than_it_says_is_found(file: Path) -> None:
    raw = file.read_bytes()
    with zipfile.ZipFile(file) as found:
        info = next(info for info in found.infolist() if info.filename.endswith(".pkl"))
    at = info.header_offset + 30  # the name in front of the part itself; the directory has another one
    file.write_bytes(raw[:at] + b"x" + raw[at + 1 :])

    with PortableFile(file) as found, pytest.raises(CheckpointCorrupt, match="cannot be read"):
        found.open(info.filename.removeprefix("cuts/"), "pkl", "")


def test_a_large_journal_travels_too(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "origin")
    lease = store.acquire("s")
    journal = store.journal(lease, 0)
    journal.append(b"x" * (SMALL + 1))
    journal.close()
    lease.release()
    with PortableWriter(tmp_path / "s.ckpt") as writer:
        writer.session(store, "s")

    with PortableFile(tmp_path / "s.ckpt") as found:
        assert [len(raw) for _, _, raw in found.segments("s")] == [SMALL + 1]
