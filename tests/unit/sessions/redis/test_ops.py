"""Ops as arguments, and records as specs: what goes to the server comes back the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.checkpoint.seals.cells import SealedCells
from graflow_ckpt.core.errors import GraphError, TooLarge
from graflow_ckpt.core.facts import Claim, Op, TaskSpec
from graflow_ckpt.sessions.redis.ops import arguments, claim_of, spec_of, turn
from graflow_ckpt.sessions.redis.tables import spec_bytes
from tests.unit.sessions.pair import Plain

NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1)
SPECS = st.builds(
    TaskSpec,
    task_id=NAMES,
    task_data=st.none() | st.binary(min_size=1),
    status=st.just("pending"),
    priority=st.integers(-(2**15), 2**15),
    retry_count=st.integers(0, 99),
    max_retries=st.integers(0, 99),
    execution_strategy=st.sampled_from(["direct", "pass", "skip", "lost", "doubt"]),
    cycle=st.integers(0, 10**9),
    not_before=st.sampled_from([0.0, 0.1, 1e9 + 1 / 3, 1e300]),
    queue=st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True),
    key=st.integers(1, 10**12),
    crashes=st.integers(0, 9),
)


@given(SPECS)
def test_a_spec_comes_back_as_it_was(spec: TaskSpec) -> None:
    assert spec_of(spec_bytes(spec, Plain()), Plain()) == spec


@given(SPECS, st.integers(1, 10**12), st.sampled_from(["e1t1", "!0123"]))
def test_a_claim_is_its_number_and_its_spec(spec: TaskSpec, number: int, token: str) -> None:
    record = b"%d\x1f%b\x1f%b" % (number, token.encode(), spec_bytes(spec, Plain()))

    assert claim_of(record, Plain()) == Claim(spec, number)


def test_checks_come_before_the_ops() -> None:
    ops = [("put", "x", b"\x01", 7), ("end", 5, 3, "completed", b"\x02"), ("put", "y", b"", -1), ("claim", 2)]

    args = arguments(ops, Plain(), "gpu")

    assert args[:6] == [1, 5, 3, 1, "x", 7]
    assert args[6:] == ["P", "x", b"\x01", "E", 5, b"\x02", "P", "y", b"", "C", 2, "gpu"]


@pytest.mark.parametrize(
    ("task", "priority", "queue"),
    [
        ("a\x1fb", 0, "default"),
        ("a\n", 0, "default"),
        ("caf\udce9", 0, "default"),
        ("a", 0, "x|y"),
        ("a", 0, "x,y"),
        ("a", 0, ""),
        ("a", 2**15, "default"),
        ("a", -(2**15), "default"),
        ("a", 0.5, "default"),
    ],
)
def test_a_spec_that_would_break_the_records_of_others_is_not_sent(
    task: str, priority: int, queue: str
) -> None:
    spec = (task, None, priority, 0, queue, "direct")
    arrive = ("arrive", task, 1, 2, 0, priority, 0, queue, "direct")

    for op in (("enqueue", *spec), ("later", *spec, 9.0), arrive):
        with pytest.raises(GraphError):
            arguments([op], Plain(), "default")


@pytest.mark.parametrize("op", [("put", "caf\udce9", b"", -1), ("append", "caf\udce9", b"")])
def test_a_name_that_cannot_be_sent_is_refused(op: Op) -> None:
    with pytest.raises(GraphError, match="lone surrogates"):
        arguments([op], Plain(), "default")


def test_a_transition_may_be_empty() -> None:
    assert arguments([], Plain(), "*") == [0, 0]


END = ("end", 7, 3, "completed", b"\xc0")
NEW = ("enqueue", "next", None, 2, 1, "default", "direct")
CLAIM = ("claim", 1)


def test_the_everyday_transition_has_few_words() -> None:
    assert turn([END, CLAIM], Plain(), "default") == [7, 3, "default", b"\xc0"]
    assert turn([END, NEW, CLAIM], Plain(), "*") == [7, 3, "*", b"\xc0", "next", 2, 1, "default"]


@pytest.mark.parametrize(
    "ops",
    [
        [CLAIM],
        [END],
        [END, ("claim", 2)],
        [END, ("claim", 0)],
        [("end", 7, 3, "passed"), CLAIM],
        [("end", 7, 3, "failed", "ValueError"), CLAIM],
        [("put", "x", b"\x01", -1), END, CLAIM],
        [END, ("arrive", "join", 1, 2, 2, 0, 0, "default", "direct"), CLAIM],
        [END, (*NEW[:2], b"data", *NEW[3:]), CLAIM],
        [END, (*NEW[:6], "pass"), CLAIM],
        [END, NEW, NEW, CLAIM],
    ],
)
def test_any_other_is_said_in_full(ops: list[Op]) -> None:
    assert turn(ops, Plain(), "default") is None


def test_a_large_result_is_packed_where_its_size_is_judged() -> None:
    with pytest.raises(TooLarge):
        turn([(*END[:4], b"x" * 5000), CLAIM], SealedCells("s", None, limit=4999), "default")


def test_a_name_that_would_break_a_record_is_refused_in_few_words_too() -> None:
    with pytest.raises(GraphError):
        turn([END, ("enqueue", "a\x1fb", *NEW[2:]), CLAIM], Plain(), "default")
