"""What users test their own stores with: one suite, which every store of this package passes.

    class TestMyStore(StoreContract, ProcessContract):
        @pytest.fixture
        def opener(self, tmp_path):
            return partial(MyStore, tmp_path / "checkpoints")

`StoreContract` holds for every store. `ProcessContract` is for those that several processes can
reach; it kills some. `RestoredContract` is for those whose storage can be put back to an older state, and
needs a fixture that does so. `DriverContract` is for the six calls that a keyed store asks of a place, and
`AtomicDriverContract` for those of one that changes several keys at once. Each is also there in pieces
(`TrioContract`, `JournalContract`, …). pytest is loaded with the first name.
Not here: what a store is (core/protocols.py), and how to write one (docs/stores.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graflow_ckpt.testing.contract import Contract, Opener
    from graflow_ckpt.testing.contracts import StoreContract, names_of_tests
    from graflow_ckpt.testing.drivers import AtomicDriverContract, DriverContract
    from graflow_ckpt.testing.store_contents import ContentContract, ContentProcessContract
    from graflow_ckpt.testing.store_fencing import (
        FencingContract,
        FencingProcessContract,
        OwnershipContract,
        RestoredContract,
        Snapshot,
    )
    from graflow_ckpt.testing.store_journal import JournalContract, ThreadContract
    from graflow_ckpt.testing.store_listing import BatchContract, ListingContract, NamesContract
    from graflow_ckpt.testing.store_processes import ProcessContract
    from graflow_ckpt.testing.store_trio import BytesContract, TrioContract

__all__ = [
    "AtomicDriverContract", "BatchContract", "BytesContract", "ContentContract", "ContentProcessContract",
    "Contract", "DriverContract", "FencingContract", "FencingProcessContract", "JournalContract",
    "ListingContract", "NamesContract", "Opener", "OwnershipContract", "ProcessContract",
    "RestoredContract", "Snapshot", "StoreContract", "ThreadContract", "TrioContract", "names_of_tests",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Loaded when they are first used: the children that `ProcessContract` starts need no pytest."""
    if name not in __all__:
        raise AttributeError(f"module 'graflow_ckpt.testing' has no attribute {name!r}")
    value = getattr(import_module("graflow_ckpt.testing.contracts"), name)
    globals()[name] = value
    return value
