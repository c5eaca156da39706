"""How many tests of the contract each wrapper passes: none can get lost in silence."""

from __future__ import annotations

import pytest

from graflow_ckpt.testing import Contract, ProcessContract, StoreContract, names_of_tests
from tests.conformance import test_compressed, test_encrypted, test_tenant

SUITES: list[type[Contract]] = [
    test_encrypted.TestEncryptedMemory,
    test_encrypted.TestEncryptedLocal,
    test_compressed.TestCompressedMemory,
    test_compressed.TestCompressedLocal,
    test_tenant.TestTenantInMemory,
    test_tenant.TestTenantInFolder,
]
# More is good news: change the numbers. Fewer is what this file is for.
IN_PROCESS = 88
OF_PROCESSES = 11


@pytest.mark.parametrize("suite", SUITES)
def test_a_wrapper_has_as_many_tests_as_it_had(suite: type[Contract]) -> None:
    processes = OF_PROCESSES if issubclass(suite, ProcessContract) else 0

    assert issubclass(suite, StoreContract)
    assert len(names_of_tests(suite)) == IN_PROCESS + processes


@pytest.mark.parametrize("suite", SUITES)
def test_no_wrapper_changes_or_skips_a_test(suite: type[Contract]) -> None:
    assert not [name for name in vars(suite) if name.startswith("test_") or name == "pytestmark"]
