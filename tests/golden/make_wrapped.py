"""Makes tests/golden/wrapped-1: `python -m tests.golden.make_wrapped`. Once per version of the formats."""

from __future__ import annotations

from pathlib import Path

from graflow_ckpt.core.protocols import CheckpointStore
from graflow_ckpt.stores.compressed import Compressed
from graflow_ckpt.stores.encrypted import Encrypted
from graflow_ckpt.stores.keys import Keyring
from graflow_ckpt.stores.local import LocalStore
from graflow_ckpt.stores.memory import MemoryStore
from graflow_ckpt.stores.tenant import Tenant
from graflow_ckpt.testing.trios import owning, put

FOLDER = Path(__file__).parent / "wrapped-1"
RING = Keyring({"golden": bytes(range(32))})
SIZE = 66_000  # more than one frame
FRAMES = (b"one;", b"two;", b"three;")
EPOCH, AFTER = 1, 3


def wrapped(inner: CheckpointStore) -> Tenant:
    return Tenant(Compressed(Encrypted(inner, RING)), "acme")


def encrypted(inner: CheckpointStore) -> Encrypted:
    return Encrypted(inner, RING)


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
