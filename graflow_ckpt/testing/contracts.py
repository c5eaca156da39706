"""The suite as a whole: which contracts there are, and which tests a class of tests has.

`StoreContract` is what one process can see of a store, `ProcessContract` what takes several, and
`RestoredContract` what a backup or a failover does to one. A store that lacks a part of it (an object store
without a journal) names the pieces that it keeps instead, and says so in its docstring; nothing is skipped
when the tests run.
"""

from __future__ import annotations

from graflow_ckpt.core.errors import PackageMissing

try:
    import pytest
except ModuleNotFoundError as missing:
    raise PackageMissing(
        "Stores are tested with pytest, and it is not installed.",
        hint="Install it with: pip install 'graflow-ckpt[testing]'.",
        extra="testing",
    ) from missing

_PIECES = (
    "batches",
    "contents",
    "trios",
    "trio",
    "bytes",
    "names",
    "listing",
    "ownership",
    "fencing",
    "journal",
    "threads",
    "processes",
    "restored",
)
# Before they are loaded, so that an assertion that fails shows the two sides.
pytest.register_assert_rewrite(*(f"graflow_ckpt.testing.store_{piece}" for piece in _PIECES))

from graflow_ckpt.testing.contract import Contract, Opener  # noqa: E402
from graflow_ckpt.testing.store_batches import BatchContract  # noqa: E402
from graflow_ckpt.testing.store_bytes import BytesContract  # noqa: E402
from graflow_ckpt.testing.store_contents import ContentContract, ContentProcessContract  # noqa: E402
from graflow_ckpt.testing.store_fencing import FencingContract, FencingProcessContract  # noqa: E402
from graflow_ckpt.testing.store_journal import JournalContract  # noqa: E402
from graflow_ckpt.testing.store_listing import ListingContract  # noqa: E402
from graflow_ckpt.testing.store_names import NamesContract  # noqa: E402
from graflow_ckpt.testing.store_ownership import OwnershipContract  # noqa: E402
from graflow_ckpt.testing.store_processes import ProcessContract  # noqa: E402
from graflow_ckpt.testing.store_restored import RestoredContract, Snapshot  # noqa: E402
from graflow_ckpt.testing.store_threads import ThreadContract  # noqa: E402
from graflow_ckpt.testing.store_trio import TrioContract  # noqa: E402

__all__ = [
    "BatchContract", "BytesContract", "ContentContract", "ContentProcessContract", "Contract",
    "FencingContract", "FencingProcessContract", "JournalContract", "ListingContract", "NamesContract",
    "Opener", "OwnershipContract", "ProcessContract", "RestoredContract", "Snapshot", "StoreContract",
    "ThreadContract", "TrioContract", "names_of_tests",
]  # fmt: skip


class StoreContract(
    TrioContract,
    BytesContract,
    NamesContract,
    ListingContract,
    BatchContract,
    OwnershipContract,
    JournalContract,
    ThreadContract,
):
    """Everything that one process can see of a store."""


def names_of_tests(suite: type[Contract]) -> list[str]:
    """The names of the tests that a class has: count them, so that none can get lost in silence."""
    return sorted(name for name in dir(suite) if name.startswith("test_"))
