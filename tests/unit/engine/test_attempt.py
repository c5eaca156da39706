"""One attempt: what it read, changed and asked for, and what of it becomes ops.

Every test works against a real session and commits what the attempt came to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graflow_ckpt.checkpoint.values.codec import check_storable
from graflow_ckpt.core.errors import Fenced, NotStorable, WriteConflict
from graflow_ckpt.core.facts import Claim, Live, Next, TaskSpec
from graflow_ckpt.core.state import SessionState
from graflow_ckpt.engine.body.attempt import Attempt, is_list
from graflow_ckpt.engine.body.live import from_cells
from graflow_ckpt.sessions.memory import MemorySession
from graflow_ckpt.sessions.views import MemoryChannel


class Model:
    """A live value."""

    def __init__(self, weight: int = 0) -> None:
        self.weight = weight


@pytest.fixture
def session() -> MemorySession:
    return MemorySession(SessionState("s"))


def attempt(session: MemorySession, **options: bool) -> Attempt:
    return Attempt(session, Claim(TaskSpec("a"), 1), **options)


def channel(session: MemorySession) -> MemoryChannel:
    return MemoryChannel(session, check_storable, from_cells)


def commit(session: MemorySession, one: Attempt) -> list[str]:
    """The names that were written, in order."""
    ops = one.effects().ops
    session.commit(ops)
    one.live_values().give_back()
    return [op[1] for op in ops]


# --- plain values ----------------------------------------------------------------------


Values = dict[str, Any]
Script = Callable[[Attempt], object]

ATTEMPTS: dict[str, tuple[Values, Script, Values, list[str], Values]] = {
    # what is there before, what an attempt does, what others set meanwhile; names that are written; the end
    "what was got and changed in place counts as set": (
        {"x": {"n": [1]}}, lambda one: one.get("x", None, False)["n"].append(2), {}, ["x"],
        {"x": {"n": [1, 2]}},
    ),
    "what was got and left alone is not written": (
        {"x": [1], "y": 5}, lambda one: (one.get("x", None, False), one.get("y", None, False)), {}, [],
        {"x": [1], "y": 5},
    ),
    "what was got read-only is not looked at again": (
        {"x": [1]}, lambda one: one.get("x", None, True).append(2), {}, [], {"x": [1]},
    ),
    "what was set and then changed in place is committed as changed": (
        {}, lambda one: (one.set("x", mine := [1]), mine.append(2)), {}, ["x"], {"x": [1, 2]},
    ),
    "what is appended after a changed default comes after it": (
        {}, lambda one: (one.get("x", [], False).append(1), one.append("x", 2)), {}, ["x"], {"x": [1, 2]},
    ),
    "a set takes the place of a changed default": (
        {}, lambda one: (one.get("x", [], False).append(1), one.set("x", [5])), {}, ["x"], {"x": [5]},
    ),
    "a blind set is last commit wins": ({}, lambda one: one.set("n", 1), {"n": 10}, ["n"], {"n": 1}),
    "reading what another one changes is no conflict": (
        {"x": [1]}, lambda one: one.get("x", None, False), {"x": [2]}, [], {"x": [2]},
    ),
    "items that were there before are not written again": (
        {"log": [1]}, lambda one: one.get("log", None, False), {}, [], {"log": [1]},
    ),
    "an append to what was set extends it": (
        {}, lambda one: (one.set("log", [1]), one.append("log", 2)), {}, ["log"], {"log": [1, 2]},
    ),
    "a set drops what the attempt appended before": (
        {}, lambda one: (one.append("log", 1), one.append("other", 1), one.set("log", [])), {},
        ["log", "other"], {"log": [], "other": [1]},
    ),
}  # fmt: skip


def found(session: MemorySession) -> Values:
    names = channel(session).keys()
    return {name: channel(session).get(name) for name in names}


def play(session: MemorySession, before: Values, script: Script, meanwhile: Values) -> Attempt:
    """One list is appended item by item; nothing of an attempt is seen before its commit."""
    for name, value in before.items():
        if name == "log":
            for item in value:
                channel(session).append(name, item)
        else:
            channel(session).set(name, value)
    one = attempt(session)
    script(one)
    assert found(session) == before
    for name, value in meanwhile.items():
        channel(session).set(name, value)
    return one


@pytest.mark.parametrize(
    ("before", "script", "meanwhile", "written", "after"), ATTEMPTS.values(), ids=ATTEMPTS.keys()
)
def test_what_an_attempt_does_is_committed(
    session: MemorySession,
    before: Values,
    script: Script,
    meanwhile: Values,
    written: list[str],
    after: Values,
) -> None:
    one = play(session, before, script, meanwhile)

    assert sorted(commit(session, one)) == sorted(written)
    assert found(session) == after


@pytest.mark.parametrize(
    ("before", "script", "name"),
    [
        pytest.param({}, lambda one: one.get("x", [], False).append(1), "x", id="a changed default"),
        pytest.param(
            {"n": 1}, lambda one: one.set("n", one.get("n", 0, False) + 1), "n", id="what was got before"
        ),
        pytest.param(
            {}, lambda one: one.set("n", one.get("n", 0, False) + 1), "n", id="what was looked for in vain"
        ),
    ],
)
def test_what_came_meanwhile_is_a_conflict(
    session: MemorySession, before: Values, script: Script, name: str
) -> None:
    one = play(session, before, script, {name: [2]})

    with pytest.raises(WriteConflict, match=f"'{name}'"):
        commit(session, one)


def test_a_value_got_twice_is_one_object(session: MemorySession) -> None:
    channel(session).set("x", [1])
    one = attempt(session)

    assert one.get("x", None, False) is one.get("x", None, False)


def test_what_was_set_is_seen_by_its_own_attempt_alone(session: MemorySession) -> None:
    one, other = attempt(session), attempt(session)

    one.set("x", 1)

    assert one.get("x", None, False) == 1
    assert other.get("x", "nothing", False) == "nothing"
    assert one.names() == ["x"]
    assert other.names() == []


def test_the_default_is_the_one_of_each_call(session: MemorySession) -> None:
    one = attempt(session)

    assert [one.get("x", default, False) for default in (1, 2, None)] == [1, 2, None]


@pytest.mark.parametrize(
    ("default", "change"),
    [
        ([], lambda it: it.append(1)),
        ({}, lambda it: it.update(a=1)),
        ({"n": 0}, lambda it: it.update(n=1)),
        (Model(), lambda it: setattr(it, "weight", 1)),
        ([], lambda it: it.append(Model(1))),
    ],
)
def test_a_default_that_is_changed_in_place_counts_as_set(
    session: MemorySession, default: Any, change: Any
) -> None:
    one, same = attempt(session), deepcopy(default)

    change(one.get("x", default, False))

    assert one.get("x", None, False) is one.get("x", same, False) is default
    assert commit(session, one) == ["x"]
    assert channel(session).get("x") is not None


@pytest.mark.parametrize("default", [[], {"a": 1}, Model(), threading.Lock(), (n for n in ())])
def test_a_default_that_is_not_changed_is_not_set(session: MemorySession, default: Any) -> None:
    one = attempt(session)

    one.get("x", default, False)

    assert commit(session, one) == []


Step = tuple[str, int]
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(st.sampled_from(["get", "append", "change first", "change last", "look"]), st.integers(0, 9)),
    max_size=8,
)


@example([("get", 0), ("append", 1), ("change first", 2)])
@example([("get", 0), ("get", 0), ("change first", 1)])
@example([("get", 0), ("append", 1), ("look", 0), ("change first", 2), ("look", 0)])
@example([("get", 0), ("append", 1), ("get", 0), ("change first", 2), ("append", 3)])
@given(STEPS)
def test_nothing_is_lost_of_what_is_appended_to_a_default_and_to_its_name(steps: list[Step]) -> None:
    session = MemorySession(SessionState("s"))
    one = attempt(session)
    held: list[list[int]] = []
    added: list[int] = []

    for number, (step, _) in enumerate(steps):
        if step == "get":
            held.append(one.get("x", [], False))
        elif step == "append":
            one.append("x", number)
            added.append(number)
        elif step.startswith("change") and held:
            held[0 if step == "change first" else -1].append(number)
            added.append(number)
        elif step == "look":
            assert sorted(one.get("x", [], True)) == sorted(added)
    commit(session, one)

    assert sorted(channel(session).get("x", [])) == sorted(added)


def test_two_different_defaults_that_are_both_changed_are_refused(session: MemorySession) -> None:
    one = attempt(session)
    first, second = one.get("x", [], False), one.get("x", {"n": 1}, False)
    first.append(1)
    second["n"] = 2

    with pytest.raises(NotStorable, match="'a' got 'x' several times with different defaults"):
        one.effects()


def test_a_default_that_is_no_list_and_was_changed_takes_no_appends(session: MemorySession) -> None:
    one = attempt(session)
    default = one.get("x", {}, False)
    one.append("x", 1)
    default["n"] = 2

    with pytest.raises(TypeError, match="'x' is a dict"):
        one.effects()


def test_an_attempt_knows_which_names_it_has(session: MemorySession) -> None:
    channel(session).set("there", 1)
    channel(session).set("got", 1)
    one = attempt(session)
    one.get("got", None, False)
    one.get("missed", None, False)
    one.set("set", 1)
    one.append("appended", 1)

    assert [name for name in ("there", "got", "missed", "set", "appended", "nowhere") if one.has(name)] == [
        "there", "got", "set", "appended",
    ]  # fmt: skip


# --- conflicts -------------------------------------------------------------------------


def test_two_that_change_what_they_got_conflict(session: MemorySession) -> None:
    channel(session).set("x", [1])
    one, other = attempt(session), attempt(session)
    for each in (one, other):
        each.get("x", None, False).append(2)
    commit(session, one)

    with pytest.raises(WriteConflict, match="'x'"):
        commit(session, other)

    assert channel(session).get("x") == [1, 2]


# --- append ----------------------------------------------------------------------------


def test_appends_of_several_attempts_are_all_kept(session: MemorySession) -> None:
    attempts = [attempt(session) for _ in range(3)]
    for number, each in enumerate(attempts):
        each.append("log", number)
        each.append("log", number * 10)
    for each in attempts:
        commit(session, each)

    assert channel(session).get("log") == [0, 0, 1, 10, 2, 20]


def test_an_append_after_a_look_that_found_nothing_is_kept_and_never_conflicts(
    session: MemorySession,
) -> None:
    one = attempt(session)
    assert one.get("log", [], False) == []
    channel(session).append("log", "other")

    one.append("log", "mine")
    assert one.get("log", [], True) == ["other", "mine"]
    commit(session, one)

    assert channel(session).get("log") == ["other", "mine"]


def test_an_attempt_sees_its_own_appends_after_the_committed_items(session: MemorySession) -> None:
    channel(session).append("log", 1)
    one = attempt(session)
    one.append("log", 2)

    assert one.get("log", None, True) == [1, 2]
    assert one.get("log", None, False) == [1, 2]
    one.append("log", 3)
    assert one.get("log", None, False) == [1, 2, 3]
    commit(session, one)

    assert channel(session).get("log") == [1, 2, 3]


@pytest.mark.parametrize("value", [(1,), {"a": 1}, "text", None, Model()])
@pytest.mark.parametrize("how", ["committed", "set", "got"])
def test_an_append_to_what_is_no_list_is_refused_where_it_is_called(
    session: MemorySession, value: Any, how: str
) -> None:
    one = attempt(session)
    if how == "set":
        one.set("x", value)
    else:
        channel(session).set("x", value)
    if how == "got":
        one.get("x", None, False)

    with pytest.raises(TypeError, match=f"'x' is a {type(value).__name__}; only lists can be appended to"):
        one.append("x", 1)
    one.live_values().give_back()


@pytest.mark.parametrize("size", [0, 15, 16, 65535, 65536])
def test_a_list_of_any_size_can_be_appended_to(session: MemorySession, size: int) -> None:
    channel(session).set("x", [None] * size)
    one = attempt(session)

    one.append("x", 1)
    commit(session, one)

    assert len(channel(session).get("x")) == size + 1


def test_a_live_list_is_a_list() -> None:
    assert is_list(Live([Model()]))
    assert not is_list(Live(Model()))


# --- live values -----------------------------------------------------------------------


def test_a_live_value_is_the_object_itself_and_on_loan(session: MemorySession) -> None:
    model = Model()
    channel(session).set("m", model)
    one = attempt(session)

    assert one.get("m", None, False) is model
    assert (one.live_values().on_loan(), session.on_loan()) == (["m"], ["m"])
    model.weight = 3
    assert commit(session, one) == ["m"]

    assert session.on_loan() == []
    assert channel(session).get("m").weight == 3


def test_siblings_that_share_a_live_object_do_not_conflict(session: MemorySession) -> None:
    channel(session).set("m", Model())
    one, other = attempt(session), attempt(session)
    for each in (one, other):
        each.get("m", None, False).weight += 1
    commit(session, one)
    commit(session, other)

    assert channel(session).get("m").weight == 2


def test_two_that_replace_a_live_object_conflict(session: MemorySession) -> None:
    channel(session).set("m", Model())
    one, other = attempt(session), attempt(session)
    for each in (one, other):
        each.get("m", None, False)
        each.set("m", Model(5))
    commit(session, one)

    with pytest.raises(WriteConflict):
        commit(session, other)
    other.live_values().give_back()


def test_a_live_value_that_was_got_readonly_is_not_on_loan(session: MemorySession) -> None:
    channel(session).set("m", Model())
    one = attempt(session)

    one.get("m", None, True)

    assert (one.live_values().on_loan(), commit(session, one), session.on_loan()) == ([], [], [])


def test_a_live_value_that_was_got_readonly_and_changed_is_named(session: MemorySession) -> None:
    channel(session).set("m", Model())
    channel(session).set("n", Model())
    one = attempt(session, watch=True)
    assert one.watch is not None
    one.get("n", None, True)
    model = one.get("m", None, True)
    assert one.watch.check() is None

    model.weight = 5

    error = one.watch.check()
    assert error is not None
    assert "'a' changed 'm', which it had read-only" in str(error)


def test_an_array_that_was_got_readonly_cannot_be_written(session: MemorySession) -> None:
    array = np.zeros(3)
    channel(session).set("w", array)
    one = attempt(session)

    seen = one.get("w", None, True)

    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 1
    one.get("w", None, False)[0] = 2
    assert (array[0], seen[0]) == (2, 2)
    one.live_values().give_back()


def test_live_objects_that_were_appended_are_on_loan_and_given_back(session: MemorySession) -> None:
    channel(session).append("models", Model())
    one = attempt(session)

    one.get("models", None, False)[0].weight = 7
    assert session.on_loan() == ["models"]
    assert commit(session, one) == ["models"]

    assert session.on_loan() == []
    assert [model.weight for model in channel(session).get("models")] == [7]


def test_a_live_list_with_own_appends_is_on_loan_too(session: MemorySession) -> None:
    channel(session).set("models", [Model(1)])
    one = attempt(session)
    one.append("models", Model(2))

    one.get("models", None, False)[0].weight = 5
    assert session.on_loan() == ["models"]
    commit(session, one)

    assert [model.weight for model in channel(session).get("models")] == [5, 2]
    assert session.on_loan() == []


def test_a_value_that_became_plain_while_it_was_lent_is_still_given_back(session: MemorySession) -> None:
    class Replaced(MemorySession):
        def lend(self, name: str) -> None:
            channel(self).set(name, [1])
            super().lend(name)

    mine = Replaced(SessionState("s"))
    mine.commit([("put", "m", Live(Model()), -1)])
    one = attempt(mine)

    assert one.get("m", None, False) == [1]
    commit(mine, one)

    assert mine.on_loan() == []


def test_what_is_lent_to_an_attempt_that_is_over_meanwhile_comes_back(session: MemorySession) -> None:
    class Late(MemorySession):
        def lend(self, name: str) -> None:
            super().lend(name)
            one.over = Fenced("too late")

    mine = Late(SessionState("s"))
    mine.commit([("put", "m", Live(Model()), -1)])
    one = attempt(mine)

    with pytest.raises(Fenced):
        one.get("m", None, False)

    assert mine.on_loan() == []


def test_a_live_value_that_was_made_unpicklable_is_torn(session: MemorySession) -> None:
    channel(session).set("m", Model())
    one = attempt(session, digest=True)
    one.get("m", None, False).weight = (n for n in ())

    assert one.live_values().torn() == ["m"]
    one.live_values().give_back()


def test_an_attempt_with_retries_knows_whether_a_live_value_was_changed(session: MemorySession) -> None:
    channel(session).set("m", Model())
    channel(session).set("n", Model())
    one = attempt(session, digest=True)
    one.get("m", None, False)
    one.get("n", None, False)
    assert one.live_values().torn() == []

    one.got["m"].value.weight = 1

    assert one.live_values().torn() == ["m"]
    one.live_values().give_back()


def test_an_attempt_without_retries_may_have_changed_all_that_it_had(session: MemorySession) -> None:
    channel(session).set("m", Model())
    one = attempt(session)
    one.get("m", None, False)

    assert one.live_values().torn() == ["m"]
    one.live_values().give_back()


# --- what cannot be kept ---------------------------------------------------------------


def test_what_cannot_be_pickled_is_refused_when_it_is_set(session: MemorySession) -> None:
    one = attempt(session)

    with pytest.raises(NotStorable) as caught:
        one.set("x", {"rows": [1, (n for n in ())]})

    assert str(caught.value.path).startswith("x")
    assert "rows" in str(caught.value.path)
    assert one.names() == []


@pytest.mark.parametrize("known", [False, True])
def test_what_cannot_be_pickled_is_refused_when_it_is_appended(session: MemorySession, known: bool) -> None:
    one = attempt(session)
    if known:
        one.set("x", [])

    with pytest.raises(NotStorable):
        one.append("x", (n for n in ()))

    assert one.get("x", [], False) == []


def test_what_was_made_unpicklable_after_it_was_set_is_refused_at_the_commit(session: MemorySession) -> None:
    one = attempt(session)
    model = Model()
    one.set("m", model)
    model.weight = (n for n in ())  # type: ignore[assignment]

    with pytest.raises(NotStorable, match="weight"):
        one.effects()


def test_a_session_that_keeps_nothing_takes_everything(session: MemorySession) -> None:
    one = attempt(session, check=False)
    generator = (n for n in ())

    one.set("x", generator)
    one.append("y", generator)
    commit(session, one)

    assert channel(session).get("x") is generator


@pytest.mark.parametrize("name", [1, None, b"x"])
def test_a_name_is_a_string(session: MemorySession, name: Any) -> None:
    with pytest.raises(TypeError, match="A channel name is a string"):
        attempt(session).set(name, 1)


# --- the rest --------------------------------------------------------------------------


def test_an_attempt_that_is_over_is_told_so_at_its_next_call(session: MemorySession) -> None:
    one = attempt(session)
    one.over = Fenced("too late")

    for call in (lambda: one.get("x", 0, False), lambda: one.set("x", 0), lambda: one.append("x", 0)):
        with pytest.raises(Fenced, match="too late"):
            call()


def test_all_that_was_asked_for_is_in_the_effects(session: MemorySession) -> None:
    one = attempt(session)
    asks = one.asking()
    asks.nexts.append(Next("b", None, False))
    asks.one_more(b"\x05")
    asks.end("enough")

    effects = one.effects()

    assert (effects.nexts, effects.again, effects.terminate) == ((Next("b", None, False),), b"\x05", "enough")


def test_items_on_top_of_what_is_no_list_are_refused() -> None:
    with pytest.raises(TypeError, match="'x' is a int"):
        from_cells("x", b"\x05", (b"\x01",))
