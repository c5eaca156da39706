"""What a released version has encrypted and compressed is read by this one.

python -m tests.golden.test_wrapped        makes wrapped-1, once per version of the formats
"""

from __future__ import annotations

from pathlib import Path

from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.around import encryption
from graflow_ckpt.stores.around.compressed import Compressed
from graflow_ckpt.stores.around.encrypted import Encrypted
from graflow_ckpt.stores.around.keys import Keyring
from graflow_ckpt.stores.around.tenant import Tenant
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.files.store import LocalStore
from tests.trios import owning, path_of, put, read, values_of

FOLDER = Path(__file__).parent / "wrapped-1"
RING = Keyring({"golden": bytes(range(32))})
SIZE = 66_000  # more than one frame
FRAMES = (b"one;", b"two;", b"three;")
EPOCH, AFTER = 1, 3


def wrapped(inner: CheckpointStore) -> Tenant:
    return Tenant(Compressed(Encrypted(inner, RING)), "acme")


def encrypted(inner: CheckpointStore) -> Encrypted:
    return Encrypted(inner, RING)


def test_checkpoints_behind_wrappers_are_read() -> None:
    around, alone = wrapped(LocalStore(FOLDER)), encrypted(LocalStore(FOLDER))

    assert read(around, path_of(around, "wrapped")).values == values_of("golden", SIZE)
    assert read(alone, path_of(alone, "encrypted")).values == values_of("golden", SIZE)
    assert [path.rpartition("/")[2] for path, _ in around.list("s")] == ["wrapped.pkl"]


def test_an_encrypted_journal_is_read() -> None:
    raw = (FOLDER / "journal").read_bytes()

    assert encryption.read_segment(RING, ("s", EPOCH, AFTER), raw) == b"".join(FRAMES)


def main() -> None:
    FOLDER.mkdir()
    put(wrapped(LocalStore(FOLDER)), "wrapped", "golden", size=SIZE)
    put(encrypted(LocalStore(FOLDER)), "encrypted", "golden", size=SIZE)
    inner = MemoryStore("memory://golden")
    store = encrypted(inner)
    with owning(store) as lease:
        journal = store.journal(lease, AFTER)
        for frame in FRAMES:
            journal.append(frame)
        assert lease.epoch == EPOCH
    (FOLDER / "journal").write_bytes(next(raw for _, _, raw in inner.segments("s")))


if __name__ == "__main__":
    main()
