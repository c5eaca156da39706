"""What a released version has encrypted and compressed is read by this one."""

from __future__ import annotations

from graflow_ckpt.stores import encrypted_journal
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.testing.trios import path_of, read, values_of
from tests.golden.make_wrapped import AFTER, EPOCH, FOLDER, FRAMES, RING, SIZE, encrypted, wrapped


def test_checkpoints_behind_wrappers_are_read() -> None:
    around, alone = wrapped(LocalStore(FOLDER)), encrypted(LocalStore(FOLDER))

    assert read(around, path_of(around, "wrapped")).values == values_of("golden", SIZE)
    assert read(alone, path_of(alone, "encrypted")).values == values_of("golden", SIZE)
    assert [path.rpartition("/")[2] for path, _ in around.list("s")] == ["wrapped.pkl"]


def test_an_encrypted_journal_is_read() -> None:
    raw = (FOLDER / "journal").read_bytes()

    assert encrypted_journal.read(RING, ("s", EPOCH, AFTER), raw) == b"".join(FRAMES)
