"""Retention: what values keep, alone and combined. No store, no clock."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graflow_ckpt.checkpoint.retention import (
    DEFAULT,
    Automatic,
    BestOf,
    Cut,
    DeleteOnSuccess,
    KeepEvery,
    KeepFor,
    KeepLast,
    KeepWithin,
    LastSuccessful,
    OfAll,
    Retention,
    automatic,
    forked_from,
)
from graflow_ckpt.core.errors import GraphError

NOW = 1_000_000.0
DAY = 86400.0


def cut(session: str, sequence: int, **more: Any) -> Cut:
    facts = {"id": f"{session}{sequence}", "workflow": "w", "created": NOW + sequence, "cause": "policy"}
    return Cut(f"{session}{sequence}", session, sequence=sequence, **{**facts, **more})


def line(session: str, count: int, **more: Any) -> list[Cut]:
    return [cut(session, sequence, **more) for sequence in range(1, count + 1)]


def kept(retention: Retention, cuts: list[Cut], now: float = NOW) -> list[str]:
    return sorted(retention.keeps(cuts, now))


# --- values ----------------------------------------------------------------------------


def test_the_last_ones_of_each_session_are_kept() -> None:
    assert kept(KeepLast(2), [*line("a", 4), *line("b", 1)]) == ["a3", "a4", "b1"]


def test_the_last_ones_may_be_counted_per_workflow_or_in_all() -> None:
    cuts = [*line("a", 2), *line("b", 2, workflow="v")]
    cuts.append(cut("c", 1, created=NOW + 99))

    assert kept(KeepLast(2, per="workflow"), cuts) == ["a2", "b1", "b2", "c1"]
    assert kept(KeepLast(1, per="store"), cuts) == kept(KeepLast(1, per="tenant"), cuts) == ["c1"]


def test_within_a_session_epoch_and_sequence_count_and_no_clock() -> None:
    stepped = [cut("a", 1, created=NOW + 500), cut("a", 2, created=NOW), cut("a", 1, epoch=2, created=0.0)]

    assert KeepLast(1).keeps(stepped, NOW) == {"a1"}
    assert [c.epoch for c in stepped if c.path in KeepLast(1).keeps(stepped[1:], NOW)] == [0, 2]


def test_what_is_not_too_old_is_kept() -> None:
    cuts = [cut("a", 1, created=NOW - 8 * DAY), cut("a", 2, created=NOW - 7 * DAY), cut("a", 3)]

    assert kept(KeepFor(days=7), cuts) == ["a2", "a3"]
    assert KeepFor(days=1, hours=1, minutes=1, seconds=1).period == 90061


def test_a_time_that_cannot_be_read_and_one_to_come_are_not_old() -> None:
    cuts = [cut("a", 1, created=float("inf")), cut("a", 2, created=NOW + DAY)]

    assert kept(KeepFor(seconds=1), cuts) == ["a1", "a2"]


def test_every_nth_is_the_same_one_after_the_others_have_gone() -> None:
    cuts = line("a", 10)

    first = KeepEvery(4).keeps(cuts, NOW)

    assert sorted(first) == ["a4", "a8"]
    assert KeepEvery(4).keeps([c for c in cuts if c.path in first], NOW) == first


def test_the_best_ones_are_kept_the_newer_among_equals() -> None:
    losses = [0.5, 0.1, 0.9, 0.1]
    cuts = [cut("a", n, metrics={"loss": loss}) for n, loss in enumerate(losses, 1)]
    cuts.append(cut("a", 5))

    assert kept(BestOf("loss"), cuts) == ["a4"]
    assert kept(BestOf("loss", 3, "min"), cuts) == ["a1", "a2", "a4"]
    assert kept(BestOf("loss", 1, "max"), cuts) == ["a3"]
    assert kept(BestOf("accuracy"), cuts) == []
    tied = [cut("a", n, metrics={"x": 1}) for n in (1, 2)]
    assert kept(BestOf("x", 1, "max"), tied) == ["a2"]


def test_a_budget_keeps_the_newest_that_fit_and_fills_no_gaps() -> None:
    cuts = [cut("a", 1, size=1), cut("a", 2, size=900), cut("a", 3, size=500)]

    assert kept(KeepWithin(kb=1), cuts) == ["a3"]
    assert kept(KeepWithin(kb=1.4), cuts) == ["a2", "a3"]
    assert kept(KeepWithin(kb=0.4), cuts) == []
    assert KeepWithin(gb=1, mb=1, kb=1).budget == 1_001_001_000
    assert kept(KeepWithin(kb=1, per="session"), [*cuts, cut("b", 1, size=900)]) == ["a3", "b1"]


def test_of_each_workflow_the_last_end_that_was_good_is_kept() -> None:
    cuts = [
        *line("a", 2), cut("a", 3, status="completed"),
        cut("b", 1, status="completed", created=NOW + 50),
        cut("c", 1, status="failed", created=NOW + 60),
        cut("d", 1, status="completed", workflow="v"),
        cut("e", 1, status="completed", created=NOW + 90), cut("e", 2, created=NOW + 99),  # it was reopened
    ]  # fmt: skip

    assert kept(LastSuccessful(), cuts) == ["b1", "d1"]
    assert kept(LastSuccessful(2), cuts) == ["a3", "b1", "d1"]
    assert kept(LastSuccessful(per="session"), cuts) == ["a3", "b1", "d1"]


def test_nothing_of_what_has_ended_well_is_kept_on_request() -> None:
    cuts = [*line("a", 2), cut("a", 3, status="completed"), *line("b", 1), cut("c", 1, status="failed")]

    assert kept(DeleteOnSuccess(), cuts) == ["b1", "c1"]
    assert kept(KeepLast(1) & DeleteOnSuccess(), cuts) == ["b1", "c1"]


# --- combined --------------------------------------------------------------------------


def test_and_keeps_what_both_keep_or_what_one_does() -> None:
    cuts = [cut("a", n, created=NOW - n * DAY) for n in range(1, 6)]

    assert kept(KeepLast(2) & KeepFor(days=4), cuts) == ["a4"]
    assert kept(KeepLast(1) | KeepFor(days=1), cuts) == ["a1", "a5"]
    assert kept(KeepLast(2) & KeepFor(days=4) | KeepEvery(2), cuts) == ["a2", "a4"]


def test_the_default_is_ten_seven_days_and_the_last_good_end() -> None:
    cuts = [cut("a", n, created=NOW - (20 - n) * DAY) for n in range(1, 21)]
    many = line("m", 12, workflow="m")
    ended = [cut("e", 1, status="completed", workflow="e", created=NOW - 99 * DAY)]

    assert kept(DEFAULT, cuts) == [f"a{n}" for n in range(13, 21)]
    assert len(kept(DEFAULT, many)) == 10
    assert kept(DEFAULT, ended) == ["e1"]


def test_after_a_save_what_was_asked_for_stays_and_does_not_count() -> None:
    cuts = [cut("a", 1), cut("a", 2), cut("a", 3, cause="request")]

    assert kept(automatic(KeepLast(1)), cuts) == ["a2", "a3"]
    assert kept(automatic(OfAll(KeepLast(1))), cuts) == ["a3"]


@pytest.mark.parametrize(
    "made",
    [
        lambda: OfAll(KeepLast(1)) & KeepFor(days=1),
        lambda: KeepFor(days=1) | OfAll(KeepLast(1)),
        lambda: OfAll(KeepLast(1)) | OfAll(KeepEvery(2)),
    ],
)
def test_of_all_holds_for_the_whole(made: Callable[[], Retention]) -> None:
    assert type(made()) is OfAll


@pytest.mark.parametrize(
    ("retention", "alone"),
    [
        (DEFAULT, True),
        (KeepLast(1, per="workflow"), False),
        (KeepWithin(gb=1), False),
        (KeepWithin(gb=1, per="session"), True),
        (BestOf("x", per="workflow"), False),
        (KeepLast(1) & KeepWithin(gb=1), False),
        (OfAll(KeepLast(1, per="store")), False),
        (Automatic(KeepLast(1)), True),
    ],
)
def test_what_counts_over_sessions_says_so(retention: Retention, alone: bool) -> None:
    assert retention.per_session is alone


def test_a_retention_of_ones_own_has_to_say_what_it_keeps() -> None:
    with pytest.raises(NotImplementedError):
        Retention().keeps([], NOW)


def test_values_travel_and_are_equal() -> None:
    made = KeepLast(3) & KeepFor(days=7) | OfAll(BestOf("loss", 2, "max"))

    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: KeepLast(0), "nothing to resume from"),
        (lambda: KeepFor(), "would keep nothing"),
        (lambda: KeepFor(days=-1), "would keep nothing"),
        (lambda: KeepFor(days=float("nan")), "nan is not a finite number"),
        (lambda: KeepEvery(0), "from 1 on"),
        (lambda: KeepWithin(), "would keep nothing"),
        (lambda: BestOf("loss", 0), "at least 1"),
        (lambda: BestOf("loss", 1, "best"), "min or max"),  # type: ignore[arg-type]
        (lambda: LastSuccessful(0), "at least 1"),
        (lambda: KeepLast(1, per="planet"), "none of 'session'"),  # type: ignore[arg-type]
    ],
)
def test_values_that_mean_nothing_are_refused(make: Callable[[], Retention], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        make()


# --- forks -----------------------------------------------------------------------------


def test_what_another_session_began_with_is_known_by_its_first_cut_and_by_all_others() -> None:
    cuts = [*line("a", 3), cut("b", 1, parent="a1"), cut("c", 7, parent="c6", origin="a2")]

    assert forked_from(cuts) == {"a1", "a2"}


def test_the_line_of_a_session_itself_is_no_fork() -> None:
    cuts = [cut("a", 1), cut("a", 2, parent="a1"), cut("a", 3, parent="gone"), cut("b", 1, origin="gone")]

    assert forked_from(cuts) == frozenset()


# --- any of them -----------------------------------------------------------------------

leaves = st.one_of(
    st.builds(KeepLast, st.integers(1, 4), st.sampled_from(["session", "workflow", "tenant", "store"])),
    st.builds(KeepFor, st.integers(1, 5)),
    st.builds(KeepEvery, st.integers(1, 4)),
    st.builds(BestOf, st.just("x"), st.integers(1, 3), st.sampled_from(["min", "max"])),
    st.builds(
        KeepWithin, kb=st.floats(0.01, 1), per=st.sampled_from(["session", "workflow", "tenant", "store"])
    ),
    st.builds(LastSuccessful, st.integers(1, 2)),
    st.just(DeleteOnSuccess()),
)
retentions = st.recursive(leaves, lambda r: st.tuples(r, r, st.booleans()).map(
    lambda t: t[0] & t[1] if t[2] else t[0] | t[1]
), max_leaves=4)  # fmt: skip
stores = st.lists(
    st.builds(
        cut,
        st.sampled_from("abc"),
        st.integers(1, 30),
        created=st.floats(NOW - 9 * DAY, NOW),
        workflow=st.sampled_from("vw"),
        status=st.sampled_from(["running", "completed", "failed"]),
        size=st.integers(0, 400),
        metrics=st.dictionaries(st.just("x"), st.integers(0, 3)),
    ),
    unique_by=lambda c: c.path,
)


@given(retentions, retentions, stores)
def test_combining_is_what_sets_do(one: Retention, other: Retention, cuts: list[Cut]) -> None:
    first, second = one.keeps(cuts, NOW), other.keeps(cuts, NOW)

    assert (one & other).keeps(cuts, NOW) == first & second
    assert (one | other).keeps(cuts, NOW) == first | second
    assert first <= {c.path for c in cuts}


@given(retentions, stores, st.randoms())
def test_the_order_in_which_a_store_lists_does_not_matter(
    retention: Retention, cuts: list[Cut], random: Any
) -> None:
    shuffled = list(cuts)
    random.shuffle(shuffled)
    distinct = len({c.created for c in cuts}) == len(cuts)

    if distinct:  # between sessions only the time tells
        assert retention.keeps(shuffled, NOW) == retention.keeps(cuts, NOW)
