"""How many tests of the contract each wrapper passes: none can get lost in silence."""

from __future__ import annotations

import pytest

from graflow_ckpt.testing import Contract, FencingContract, ProcessContract, StoreContract, names_of_tests
from tests.conformance import test_compressed, test_encrypted, test_tenant, test_wrappers_around
from tests.conformance.test_numbers import IN_A_FOLDER, IN_A_FOLDER_IN_PROCESS, IN_PROCESS

SUITES: list[type[Contract]] = [
    test_encrypted.TestEncryptedMemory,
    test_encrypted.TestEncryptedLocal,
    test_compressed.TestCompressedMemory,
    test_compressed.TestCompressedLocal,
    test_tenant.TestTenantInMemory,
    test_tenant.TestTenantInFolder,
    test_wrappers_around.TestAroundAFolder,
    test_wrappers_around.TestCached,
]


@pytest.mark.parametrize("suite", SUITES)
def test_a_wrapper_has_as_many_tests_as_it_had(suite: type[Contract]) -> None:
    in_a_folder = IN_A_FOLDER if issubclass(suite, ProcessContract) else IN_A_FOLDER_IN_PROCESS
    number = IN_PROCESS if issubclass(suite, FencingContract) else in_a_folder

    assert issubclass(suite, StoreContract)
    assert len(names_of_tests(suite)) == number


@pytest.mark.parametrize("suite", SUITES)
def test_no_wrapper_changes_or_skips_a_test(suite: type[Contract]) -> None:
    assert not [name for name in vars(suite) if name.startswith("test_") or name == "pytestmark"]
