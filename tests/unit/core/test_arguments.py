"""What users give to constructors is checked there: one clear error, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt import AtLeast, Backoff, Budget, EveryN, EverySeconds, KeepLast, group, task, workflow
from graflow_ckpt.checkpoint.model import check_metadata
from graflow_ckpt.checkpoint.retention import BestOf, KeepEvery, KeepFor, KeepWithin, LastSuccessful, OfAll
from graflow_ckpt.core.errors import GraphError
from graflow_ckpt.fleet.accepting import Terms
from graflow_ckpt.stores.drivers.memory.store import MemoryStore
from graflow_ckpt.stores.drivers.objects.store import ObjectStore
from graflow_ckpt.stores.drivers.postgres.store import PostgresStore
from graflow_ckpt.stores.drivers.redis.store import RedisStore
from graflow_ckpt.stores.drivers.sqlite.store import SqliteStore

ANY: Any = None

WRONG: dict[str, Callable[[], object]] = {
    "checkpoint: 10 is not a policy": lambda: workflow("w", checkpoint=ANY or 10),
    "checkpoint: 0 is not a policy": lambda: workflow("w", checkpoint=ANY or 0),
    "keep: 10 is not a retention": lambda: workflow("w", keep=ANY or 10),
    "keep: 0 is not a retention": lambda: workflow("w", keep=ANY or 0),
    "workflow: '' is not a text": lambda: workflow(""),
    "workflow: 5 is not a text": lambda: workflow(ANY or 5),
    "session_id: 7 is not a session id": lambda: workflow("w", ANY or 7),
    "max_parallel: '4' is not a whole number": lambda: workflow("w", max_parallel=ANY or "4"),
    "max_parallel: 1.5 is not a whole number": lambda: workflow("w", max_parallel=ANY or 1.5),
    "max_parallel: True is not a whole number": lambda: workflow("w", max_parallel=True),
    "max_checkpoint_size_mb: nan": lambda: workflow("w", max_checkpoint_size_mb=nan),
    "max_checkpoint_size_mb: inf": lambda: workflow("w", max_checkpoint_size_mb=inf),
    "grace: nan is not": lambda: workflow("w", grace=nan),
    "grace: '30s' is not": lambda: workflow("w", grace=ANY or "30s"),
    "rng: 1 is not True or False": lambda: workflow("w", rng=ANY or 1),
    "observers: 'log' is not a list": lambda: workflow("w", observers=ANY or "log"),
    "observers: 5 is not a list": lambda: workflow("w", observers=ANY or 5),
    "observers: 3 is not a list of callables": lambda: workflow("w", observers=ANY or [3]),
    "middleware: 3 is not a list of callables": lambda: workflow("w", middleware=ANY or [3]),
    "inputs: 'a' is not a list": lambda: workflow("w", inputs="a"),
    "policy: 'all' is not a policy of groups": lambda: group(task(print), policy=ANY or "all"),
    "inputs: 3 is not a dict": lambda: workflow("w").execute(inputs=ANY or 3),
    "max_steps: '5' is not a whole number": lambda: workflow("w").execute(max_steps=ANY or "5"),
    "metadata: 3 is not a dict": lambda: check_metadata(ANY or 3),
    "durability=.*is none of": lambda: workflow("w", durability=ANY or ["journal"]),
    "on_finished='agian' is none of": lambda: workflow("w", on_finished=ANY or "agian"),
    "timeout: nan is not a finite number above 0": lambda: task(timeout=nan),
    "timeout: inf is not": lambda: task(timeout=inf),
    "timeout: '90s' is not": lambda: task(timeout=ANY or "90s"),
    "timeout: True is not": lambda: task(timeout=True),
    "timeout: -1 is not": lambda: task(timeout=-1),
    "max_retries: 2.0 is not": lambda: task(max_retries=ANY or 2.0),
    "max_retries: nan is not": lambda: task(max_retries=ANY or nan),
    "max_retries: -1 is not": lambda: task(max_retries=-1),
    "priority: 'high' is not": lambda: task(priority=ANY or "high"),
    "max_cycles: 0 is not": lambda: task(max_cycles=0),
    "queue: None is not a text": lambda: task(queue=ANY),
    "queue: '' is not a text": lambda: task(queue=""),
    "inject_context: 'yes' is not": lambda: task(inject_context=ANY or "yes"),
    "backoff: '1s' is not": lambda: task(backoff=ANY or "1s"),
    r"Backoff\(base=\): nan": lambda: task(backoff=nan),
    r"Backoff\(jitter=\): nan": lambda: task(jitter=nan),
    r"Backoff\(limit=\): inf": lambda: Backoff(limit=inf),
    "@task: 5 is not a function": lambda: task(ANY or 5),
    "@task: 'name' is not a function": lambda: task(ANY or "name"),
    "id: '' is not a text": lambda: task(id=""),
    "id: 5 is not a text": lambda: task(print).bind(id=ANY or 5),
    "id: '' is not a text.": lambda: task(print).bind(id=""),
    "name: 5 is not a text": lambda: group(task(print), name=ANY or 5),
    "@task has no option 'max_retry'.*Did you mean 'max_retries'": lambda: task(max_retry=3),  # type: ignore[call-overload]
    "EverySeconds: 1000.*is not a finite": lambda: EverySeconds(10**400),
    "EveryN: '10' is not": lambda: EveryN(ANY or "10"),
    "EveryN: 2.5 is not": lambda: EveryN(ANY or 2.5),
    "EverySeconds: nan": lambda: EverySeconds(nan),
    r"\|: 10 is not a policy": lambda: EveryN(1) | (ANY or 10),
    "KeepLast: '3' is not": lambda: KeepLast(ANY or "3"),
    r"KeepFor\(days=\): nan": lambda: KeepFor(days=nan),
    r"KeepFor\(hours=\): '7' is not": lambda: KeepFor(hours=ANY or "7"),
    r"KeepWithin\(gb=\): inf": lambda: KeepWithin(gb=inf),
    "KeepEvery: None": lambda: KeepEvery(ANY),
    r"BestOf\(metric=\): 5": lambda: BestOf(ANY or 5),
    r"BestOf\(n=\): '3'": lambda: BestOf("loss", ANY or "3"),
    "LastSuccessful: 1.5": lambda: LastSuccessful(ANY or 1.5),
    "OfAll: 10 is not a retention": lambda: OfAll(ANY or 10),
    "&, |".replace("|", r"\|") + ": 10 is not": lambda: KeepLast(1) & (ANY or 10),
    r"Budget\(share=\): '5%' is not": lambda: Budget(ANY or "5%"),
    r"Budget\(share=\): True is not": lambda: Budget(True),
    r"Budget\(share=\): 5 is not at most 1": lambda: Budget(5),
    r"Budget\(credit=\): inf is not": lambda: Budget(credit=inf),
    r"Budget\(credit=\): None is not": lambda: Budget(credit=ANY),
    "durability='' is none of": lambda: workflow("w", durability=ANY or ""),
    "durability=0 is none of": lambda: workflow("w", durability=ANY or 0),
    "max_parallel: 1000.* is not at most": lambda: workflow("w", max_parallel=10**30),
    "until_damage: 'yes' is not True or False": lambda: workflow("w", until_damage=ANY or "yes"),
    "store: 5 is not an address": lambda: workflow("w", store=ANY or 5),
    "inputs: 0 is not a list": lambda: workflow("w", inputs=ANY or 0),
    "inputs: b'a' is not a list": lambda: workflow("w", inputs=ANY or b"a"),
    "existing: 'refuse' is not 'return', 'again' or 'error'": lambda: Terms(existing=ANY or "refuse"),
    "session: 7 is not a session id": lambda: Terms(ANY or 7),
    "kept: nan is not": lambda: Terms(kept=nan),
    "store: None is not an address": lambda: Terms(store=ANY),
    "ledger: 1 is not True": lambda: Terms(ledger=ANY or 1),
    "max_bytes: '1MB' is not": lambda: MemoryStore(max_bytes=ANY or "1MB"),
    "max_checkpoints: 0 is not": lambda: MemoryStore(max_checkpoints=0),
    "lease: nan is not": lambda: RedisStore("redis://localhost", lease=nan),
    "lease: 0 is not": lambda: PostgresStore("postgresql://localhost/db", lease=0),
    "lease: '9s' is not": lambda: SqliteStore("runs.db", lease=ANY or "9s"),
    "patience: inf is not": lambda: SqliteStore("runs.db", patience=inf),
    "lease: -1 is not": lambda: ObjectStore("s3://bucket/at", lease=-1),
    "AtLeast: '2' is not": lambda: AtLeast(ANY or "2"),
}


@pytest.mark.parametrize("said", WRONG)
def test_a_value_that_cannot_be_meant_is_refused_where_it_is_given(said: str) -> None:
    with pytest.raises(GraphError, match=f"(?s){said}"):
        WRONG[said]()


def test_numbers_of_other_libraries_are_numbers() -> None:
    assert EveryN(ANY or np.int64(3)).steps == 3
    assert task(timeout=ANY or np.float32(1.5), max_retries=ANY or np.int8(2), backoff=ANY or Fraction(1, 2))
    assert workflow("w", max_parallel=ANY or np.int64(2)).settings.slots == (2, 2, 2)


def test_a_session_keeps_numbers_of_other_libraries(tmp_path: Path) -> None:
    options = {
        "max_retries": np.int8(2),
        "priority": np.int64(3),
        "timeout": np.float32(20),
        "backoff": np.float32(1),
    }
    flow = workflow(
        "w",
        "s",
        store=tmp_path,
        checkpoint=EveryN(ANY or np.int64(1)),
        keep=KeepLast(ANY or np.int64(3)),
        max_parallel=ANY or np.int64(2),
        grace=ANY or np.float32(3),
    )
    with flow:
        task(id="a", **options)(lambda: 1)  # type: ignore[call-overload]

        assert flow.execute() == 1

    assert flow.execution_context.last_save_error is None


NAMES = ["checkpoint", "keep", "max_parallel", "grace", "rng", "observers", "durability", "changed"]
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.lists(st.integers())
    | st.binary()
)


@given(st.sampled_from(NAMES), VALUES)
def test_whatever_a_workflow_is_given_it_takes_it_or_names_what_is_wrong(name: str, value: object) -> None:
    given: Any = {name: value}
    refused = ""
    try:
        workflow("w", **given)
    except GraphError as error:
        refused = error.message

    assert name in refused or not refused
