"""The suite as a whole: which contracts there are, and which tests a class of tests has.

`StoreContract` is what one process can see of a store, `ProcessContract` what takes several, and
`RestoredContract` what a backup or a failover does to one. A store that lacks a part of it (an object store
without a journal) names the pieces that it keeps instead, and says so in its docstring; nothing is skipped
when the tests run.
"""

from __future__ import annotations

from graflow_ckpt.core.errors import not_installed

try:
    import pytest
except ModuleNotFoundError as missing:
    raise not_installed(missing, "Stores are tested with pytest", "testing") from missing

# Before they are loaded, so that an assertion that fails shows the two sides.
_PIECES = ("contents", "fencing", "journal", "listing", "processes", "trio")
pytest.register_assert_rewrite(*(f"graflow_ckpt.testing.store_{piece}" for piece in _PIECES))
pytest.register_assert_rewrite("graflow_ckpt.testing.drivers")

from graflow_ckpt.testing.contract import Contract, Opener  # noqa: E402, F401
from graflow_ckpt.testing.drivers import AtomicDriverContract, DriverContract  # noqa: E402, F401
from graflow_ckpt.testing.store_contents import ContentContract, ContentProcessContract  # noqa: E402, F401
from graflow_ckpt.testing.store_fencing import (  # noqa: E402, F401
    FencingContract,
    FencingProcessContract,
    OwnershipContract,
    RestoredContract,
    Snapshot,
)
from graflow_ckpt.testing.store_journal import JournalContract, ThreadContract  # noqa: E402
from graflow_ckpt.testing.store_listing import BatchContract, ListingContract, NamesContract  # noqa: E402
from graflow_ckpt.testing.store_processes import ProcessContract  # noqa: E402, F401
from graflow_ckpt.testing.store_trio import BytesContract, TrioContract  # noqa: E402


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
