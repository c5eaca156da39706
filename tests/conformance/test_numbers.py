"""How many tests of the contract each store passes: none can get lost in silence."""

from __future__ import annotations

import pytest

from graflow_ckpt.testing import (
    Contract,
    FencingContract,
    FencingProcessContract,
    ProcessContract,
    RestoredContract,
    StoreContract,
    names_of_tests,
)
from tests.conformance import test_local, test_memory, test_objects, test_postgres, test_redis, test_sqlite

# More is good news: change the numbers. Fewer is what this file is for.
IN_PROCESS = 105
WITH_PROCESSES = 117
IN_A_FOLDER = 94
IN_A_FOLDER_IN_PROCESS = 84


@pytest.mark.parametrize(
    ("suite", "number"),
    [
        (test_memory.TestMemory, IN_PROCESS),
        (test_memory.TestBoundedMemory, IN_PROCESS),
        (test_local.TestLocal, IN_A_FOLDER),
        (test_objects.TestObjects, WITH_PROCESSES),
        (test_redis.TestRedis, WITH_PROCESSES),
        (test_postgres.TestPostgres, WITH_PROCESSES),
        (test_sqlite.TestSqlite, WITH_PROCESSES),
    ],
)
def test_a_store_has_as_many_tests_as_it_had(suite: type[Contract], number: int) -> None:
    assert len(names_of_tests(suite)) == number


def test_no_piece_hides_a_test_of_another() -> None:
    pieces = [
        *StoreContract.__bases__, FencingContract, RestoredContract, ProcessContract, FencingProcessContract,
    ]  # fmt: skip

    assert sum(len(names_of_tests(piece)) for piece in pieces) == WITH_PROCESSES


def test_no_store_changes_or_skips_a_test() -> None:
    for suite in (
        test_memory.TestMemory,
        test_memory.TestBoundedMemory,
        test_local.TestLocal,
        test_objects.TestObjects,
        test_redis.TestRedis,
        test_postgres.TestPostgres,
        test_sqlite.TestSqlite,
    ):
        assert not [name for name in vars(suite) if name.startswith("test_") or name == "pytestmark"]
