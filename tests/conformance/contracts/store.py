"""The contracts of a store together: of one process, of several, and of one with contents."""

from __future__ import annotations

from tests.conformance.contracts.contents import ContentContract, ContentProcessContract
from tests.conformance.contracts.fencing import (
    FencingContract,
    FencingProcessContract,
    OwnershipContract,
)
from tests.conformance.contracts.journal import JournalContract, ProcessContract, ThreadContract
from tests.conformance.contracts.listing import BatchContract, ListingContract, NamesContract
from tests.conformance.contracts.trio import AlongContract, BytesContract, TrioContract


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


class InProcess(StoreContract, AlongContract, FencingContract):
    """As far as one process goes, where a session can be taken from a living owner."""


class WithProcesses(
    InProcess, ProcessContract, FencingProcessContract, ContentContract, ContentProcessContract
):
    """All that there is."""

    lease_seconds = 1.0
